"""`RunState` and `RunCheckpoint`: what of a run is saved, and how another trainer continues from it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lockstep.config.json_form import to_plain
from lockstep.options.schedules import ConfiguredValueWarning
from lockstep.policy.policy import Policy
from lockstep.replay import ReplayBuffer, TensorReplay
from lockstep.rollout import CollectorLike
from lockstep.rollout.callbacks import restore_callbacks, states_of
from lockstep.state.checkpoint import read_checkpoint, read_manifest, write_checkpoint
from lockstep.tracking import BaseLogger, LazyLogger
from lockstep.tracking.history import HistoryPieces, joined_history
from lockstep.tracking.metrics import Metrics
from lockstep.tracking.statistics import CollectStats, EpochStats
from lockstep.tracking.totals import Totals
from lockstep.trainer.callbacks import Callback, tell
from lockstep.trainer.counters import Counters
from lockstep.trainer.evaluation import Evaluator

HISTORY = "history"
"""Folder of a checkpoint with the statistics of all epochs."""
REPLAY = "replay"
"""Folder of a checkpoint with the replay buffer; of several agents it has one for each module."""
OPTIONS = (
    "batch_size",
    "step_per_epoch",
    "step_per_collect",
    "episode_per_collect",
    "repeat_per_collect",
    "update_per_step",
    "learning_starts",
)
"""Options of a trainer on which the bits of a run depend: a trainer that continues it should have the same."""


class SavableTrainer(Protocol):
    """A trainer, as far as the state of its run knows it (`BaseTrainer`, which is above this file)."""

    policy: Policy
    train_collector: CollectorLike | None
    test_collector: CollectorLike | None
    buffer: Any
    evaluator: Evaluator
    logger: BaseLogger
    callbacks: list[Callback]
    metrics: Metrics
    attempt: int
    counters: Counters
    totals: Totals
    best_stats: CollectStats | None
    last_test: CollectStats | None
    history: list[EpochStats]
    bad_batch: dict[str, Any] | None

    @property
    def is_complete(self) -> bool:
        """Whether the run has made all its epochs or steps."""
        ...

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        ...

    def own_folders(self) -> dict[str, dict[str, Any]]:
        """Return the folders of large things."""
        ...

    def set_own_folders(self, folders: Mapping[str, Any]) -> None:
        """Restore the large things from their folders."""
        ...

    def checkpoint_folders(self) -> dict[str, dict[str, Any]]:
        """Return all folders of a checkpoint."""
        ...


@dataclass(frozen=True)
class RunCheckpoint:
    """Checkpoint of a whole run, read and verified."""

    path: Path
    folders: dict[str, dict[str, Any]]

    @classmethod
    def read(cls, path: str | Path, without: Sequence[str] = ()) -> RunCheckpoint:
        """Read a checkpoint, leaving out the folders `without`.

        Raises:
            ValueError: it is damaged, or not of a whole run.
        """
        folders = read_checkpoint(path, without=without)
        if "trainer" not in folders:
            raise ValueError(f"{path} holds a policy only, not a whole run; give a folder below `checkpoints/`")
        state = folders["trainer"]["state"]
        if not isinstance(state["history"], list):  # in version 0.2 the history is part of the state
            state["history"] = joined_history(folders.pop(HISTORY, {}), state["history"])
        return cls(Path(path), folders)

    @property
    def state(self) -> dict[str, Any]:
        """The trainer's state."""
        state: dict[str, Any] = self.folders["trainer"]["state"]
        return state

    @property
    def algorithm(self) -> str:
        """Name of the algorithm that was trained."""
        return str(self.folders["trainer"]["made_by"]["algorithm"])


class RunState:
    """What of a trainer's run is saved and restored. The values themselves are attributes of the trainer.

    `BaseTrainer` leads the run and decides when its state may be taken or replaced.
    """

    def __init__(self, trainer: SavableTrainer) -> None:
        self.trainer = trainer
        self._history_pieces = HistoryPieces()

    # -- state of the trainer ---

    def get_state(self) -> dict[str, Any]:
        """Return counters, statistics, collectors, callbacks and logger."""
        history = [stats.get_state() for stats in self.trainer.history]
        return {**self._state_without_history(), "history": history}

    def _state_without_history(self) -> dict[str, Any]:
        trainer = self.trainer
        collector = trainer.train_collector
        return {
            "options": self._options(),
            "counters": trainer.counters.get_state(),
            "best": None if trainer.best_stats is None else trainer.best_stats.get_state(),
            "last_test": None if trainer.last_test is None else trainer.last_test.get_state(),
            **trainer.totals.get_state(),
            "train_collector": None if collector is None else collector.get_state(),
            "test_collector": trainer.evaluator.collector_state(),
            "evaluated_meanwhile": trainer.evaluator.under_way(),
            **self._replay_agents(),
            "callbacks": states_of(trainer.callbacks),
            "evaluation_callbacks": trainer.evaluator.callback_states(),
            "metrics": trainer.metrics.get_state(),
            "logger": trainer.logger.get_state(),
            "logger_class": type(trainer.logger).__name__,
        }

    def set_records(self, state: Mapping[str, Any]) -> None:
        """Restore all but the collectors, in a trainer whose records are those of a new run."""
        trainer = self.trainer
        trainer.counters = Counters.from_state(state["counters"])
        trainer.best_stats = None if state["best"] is None else CollectStats.from_state(state["best"])
        trainer.last_test = None if state["last_test"] is None else CollectStats.from_state(state["last_test"])
        trainer.totals = Totals()
        trainer.totals.set_state(state)
        trainer.history = [EpochStats.from_state(stats) for stats in state["history"]]
        restore_callbacks(trainer.callbacks, state["callbacks"])
        restore_callbacks(trainer.evaluator.callbacks, state.get("evaluation_callbacks", ()))
        if "metrics" in state:
            trainer.metrics.set_state(state["metrics"])
        kept_by = state["logger_class"]
        logger = trainer.logger
        if kept_by == type(logger).__name__:
            logger.set_state(state["logger"])
        elif not isinstance(logger, LazyLogger):
            warnings.warn(
                f"the records of this run were kept by a {kept_by}; the {type(logger).__name__} of this one begins a "
                "new record",
                RuntimeWarning,
                stacklevel=4,
            )

    # -- collectors ---

    def collectors(self) -> dict[str, CollectorLike]:
        """Return the collectors that the trainer has, by the name of its parameter."""
        pairs = (
            ("train_collector", self.trainer.train_collector),
            ("test_collector", self.trainer.test_collector),
        )
        return {name: collector for name, collector in pairs if collector is not None}

    def set_collectors(self, state: Mapping[str, Any]) -> None:
        """Restore the collectors and the evaluation that was under way.

        Raises:
            ValueError: they are of other environments, or of another number of them. Nothing is changed then.
        """
        with self._put_back_where_refused():
            self._set_collectors(state)

    def _set_collectors(self, state: Mapping[str, Any]) -> None:
        for name, collector in self.collectors().items():
            saved = state[name]
            if saved is None:
                continue
            there = "env runners" if "group" in saved else f"{len(saved['lengths'])} environments"
            runners = collector.in_runners and ("group" in saved or not collector.takes_state_of_one)
            here = "env runners" if runners else f"{collector.num_envs} environments"
            if there != here:
                raise ValueError(f"the {name} of the checkpoint has {there}, this one has {here}; resume with the same")
            collector.set_state(saved)
        self.trainer.evaluator.set_state(state.get("evaluated_meanwhile"))

    @contextmanager
    def _put_back_where_refused(self) -> Iterator[None]:
        """Put several buffers, the policy, the collectors and the evaluation back where a state is refused.

        One buffer is not copied, which may be most of the memory: it is restored last, and refuses before it changes.
        """
        replays = self._replays().values()
        parts = [*(replays if len(replays) > 1 else ()), self.trainer.policy, *self.collectors().values()]
        before: list[tuple[Any, Any]] = []
        for part in parts:
            with suppress(ValueError):  # a collector that holds data has no state
                before.append((part, part.get_state()))
        undo_evaluation = self.trainer.evaluator.undo()
        try:
            yield
        except BaseException:
            for part, state in before:
                part.set_state(state)
            undo_evaluation()
            raise

    # -- replay buffers ---

    def replay_folders(self) -> dict[str, dict[str, Any]]:
        """Return the folder of each replay buffer."""
        return {folder: buffer.checkpoint_state() for folder, buffer in self._replays().items()}

    def set_replay_folders(self, folders: Mapping[str, Any]) -> None:
        """Restore each replay buffer from its folder, of all folders of a checkpoint.

        Raises:
            ValueError: a folder is missing, or does not fit the buffer.
        """
        self._fit_replay_to(folders["trainer"].get("state", {}))
        replays = self._replays()
        if not set(replays) <= set(folders):
            raise ValueError(f"the checkpoint has no replay buffer, only {sorted(folders)}; a run needs its own")
        for folder, buffer in replays.items():
            buffer.set_state(folders[folder])

    def _replays(self) -> dict[str, ReplayBuffer | TensorReplay]:
        """Return the replay buffers by their folders: of several agents one for each module."""
        buffer = self.trainer.buffer
        if buffer is None:
            return {}
        return {f"{REPLAY}/{name}" if name else REPLAY: replay for name, replay in buffer.replays().items()}

    def _replay_agents(self) -> dict[str, Any]:
        """Return the agents whose transitions the buffer of each module keeps, by their numbers."""
        buffer = self.trainer.buffer
        collector = self.trainer.train_collector
        if buffer is None or buffer.agents is None or collector is None:
            return {}
        names = list(collector.observation_space)
        return {"replay_agents": [[mid, list(map(names.index, each))] for mid, each in buffer.agents.items()]}

    def _fit_replay_to(self, state: Mapping[str, Any]) -> None:
        """Give each module the replay buffer for the agents that it had when the state was taken."""
        agents = state.get("replay_agents")
        collector = self.trainer.train_collector
        if agents is not None and collector is not None and collector.agents_of_modules:
            names = list(collector.observation_space)
            collector.fit_replay({module_id: [names[i] for i in numbers] for module_id, numbers in agents})

    # -- checkpoints ---

    def folders(self) -> dict[str, dict[str, Any]]:
        """Return the folders of a full checkpoint.

        The statistics of past epochs are a folder of their own, in pieces that checkpoints share: written with each
        checkpoint, they would soon be most of what a long run writes.
        """
        trainer = self.trainer
        state = {**self._state_without_history(), "history": len(trainer.history)}
        folders = {
            **trainer.policy.checkpoint_folders(),
            "trainer": {"state": state, "made_by": {"algorithm": trainer.policy.config.algorithm}},
            HISTORY: dict(self._history_pieces.by_name(trainer.history)),
            **trainer.own_folders(),
            **trainer.evaluator.folders(trainer.counters.where),
        }
        if trainer.bad_batch is not None:
            folders["bad_batch"] = {"batch": trainer.bad_batch}
        return folders

    def save(self, path: str | Path, attempt: int, carried: Mapping[str, Path] | None) -> Path:
        """Write a full checkpoint and return its path; see `BaseTrainer.save_to_path`."""
        counters = self.trainer.counters
        return write_checkpoint(
            path,
            self.trainer.checkpoint_folders(),
            metadata={
                "epoch": counters.epoch,
                "env_step": counters.env_step,
                "gradient_step": counters.gradient_step,
                "stop_reason": counters.stop_reason,
            },
            steps=counters.position,
            attempt=attempt,
            carried=carried,
        )

    def check_algorithm(self, checkpoint: RunCheckpoint) -> None:
        """Raise `ValueError` unless the checkpoint is of a run of this policy's algorithm."""
        algorithm = self.trainer.policy.config.algorithm
        if checkpoint.algorithm != algorithm:
            raise ValueError(
                f"{checkpoint.path} is of a run of {checkpoint.algorithm!r}, and this trainer's policy is of "
                f"{algorithm!r}; give it one of {algorithm!r}"
            )

    def restore(
        self,
        checkpoint: RunCheckpoint,
        *,
        keep_record: bool = False,
        drop_replay: bool = False,
        trust: bool = False,
    ) -> None:
        """Continue from a checkpoint of this algorithm, in a trainer that is not running.

        `keep_record`: the logger's last save is of this checkpoint. Other arguments: `BaseTrainer.restore_from_path`.
        """
        trainer = self.trainer
        path = checkpoint.path
        state = checkpoint.state
        with self._put_back_where_refused():
            trainer.policy.set_checkpoint_folders(checkpoint.folders, trust=trust, file=path)
            trainer.evaluator.take_folders(checkpoint.folders, trust=trust, file=path)
            self._set_collectors(state)
            if drop_replay:
                self._fit_replay_to(state)
                for replay in self._replays().values():
                    replay.reset()
            else:
                trainer.set_own_folders(checkpoint.folders)
        # `set_state` sets the collectors a second time. Where environments could not be restored they write boundaries,
        # and the first ones were overwritten when the buffer was restored.
        trainer.set_state(state)
        if drop_replay:
            learning_starts = getattr(trainer, "learning_starts", 0)
            trainer.counters.learning_resumes_at = trainer.counters.env_step + learning_starts
        trainer.attempt = int(read_manifest(path).get("attempt", 0))
        self._warn_of_other_options(state["options"])
        self._keep_record(path, state["counters"]["stop_reason"], keep_record)
        self._report_cut_episodes()
        tell(trainer.callbacks, "on_checkpoint_loaded", path)

    def _keep_record(self, path: Path, reason: str | None, keep_record: bool) -> None:
        """Let the logger's record have exactly the saves of a run that never stopped."""
        trainer = self.trainer
        ended_early = reason in ("interrupted", "error") or (reason == "max_epoch" and not trainer.is_complete)
        if ended_early and not keep_record:
            trainer.logger.drop_save()  # a run that never stopped has no such checkpoint
        else:  # a kill may have come between the checkpoint and its record; a record that exists is not doubled
            trainer.logger.save_data(*trainer.counters.where, lambda *_: path)

    def _report_cut_episodes(self) -> None:
        """Warn and log that environments could not be restored, so that their episodes end at the checkpoint."""
        collector = self.trainer.train_collector
        if collector is None or not collector.episodes_cut:
            return
        cut = collector.episodes_cut
        warnings.warn(
            f"the state of the {collector.env.backend!r} environments is not in the checkpoint: {cut} running "
            "episodes end there (nothing is estimated across), and the run is not bit by bit the one that would "
            "never have stopped",
            RuntimeWarning,
            stacklevel=4,
        )
        self.trainer.logger.remark("env_step", self.trainer.counters.env_step, {"save/episodes_cut": cut})

    def restore_logged(self) -> bool:
        """Continue from the logger's last save, in a trainer that is not running.

        Returns True where the save names a full checkpoint, of which everything is restored. Otherwise only its three
        counters are.

        Raises:
            ValueError: the full checkpoint does not fit this trainer.
        """
        logger = self.trainer.logger
        counters = self.trainer.counters
        path = logger.last_checkpoint()
        reason = (
            "the log names no checkpoint: policy, optimizers and replay buffer are those of this trainer "
            "(CheckpointCallback writes full checkpoints)"
        )
        if path is not None:
            try:
                checkpoint = RunCheckpoint.read(path)
            except (OSError, ValueError) as error:
                reason = f"{path} is no full checkpoint ({error})"
            else:
                self.check_algorithm(checkpoint)
                self.restore(checkpoint, keep_record=True)
                return True
        counters.epoch, counters.env_step, counters.gradient_step = logger.restore_data()
        if path is not None or any(counters.where):
            warnings.warn(f"resume_from_log: only the counters are restored, as {reason}", RuntimeWarning, stacklevel=2)
        return False

    # -- options ---

    def _options(self) -> dict[str, Any]:
        """Return the options on which the bits of the run depend. Functions are left out."""
        found = {name: getattr(self.trainer, name) for name in OPTIONS if hasattr(self.trainer, name)}
        config = self.trainer.policy.config
        options = {
            **config.training.options(),
            **config.framework.options(),
            "algorithm_config_overrides_per_module": config.rl_module.algorithm_config_overrides_per_module,
        }
        for name, value in options.items():
            with suppress(ValueError):  # it holds a function that has no name
                found[f"policy.{name}"] = to_plain(name, value)
        for folder, replay in self._replays().items():
            found |= {f"{folder}.{name}": value for name, value in replay.drawing_options().items()}
        return {name: value for name, value in found.items() if not callable(value)}

    def _warn_of_other_options(self, saved: Mapping[str, Any]) -> None:
        """Warn where options of the trainer, its policy or its buffer are not those of the run that continues."""
        others = []
        for name, value in self._options().items():
            before = saved.get(name, value)
            if value != before:
                others.append(f"{name}={value!r} (was {before!r})")
        if others:
            warnings.warn(
                f"the run goes on with other options than it had: {', '.join(others)}; from here it is not bit by bit "
                "the run that would never have stopped",
                ConfiguredValueWarning,
                stacklevel=4,
            )
