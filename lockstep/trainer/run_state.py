"""`RunState` and `RunCheckpoint`: saving the state of a run, and restoring it in another trainer."""

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
from lockstep.state.optional import optional_state
from lockstep.tracking import BaseLogger
from lockstep.tracking.history import HistoryPieces, joined_history
from lockstep.tracking.metrics import Metrics
from lockstep.tracking.statistics import CollectStats, EpochStats
from lockstep.tracking.totals import Totals
from lockstep.trainer.callbacks import Callback, notify_callbacks
from lockstep.trainer.counters import Counters
from lockstep.trainer.evaluation import Evaluator

HISTORY = "history"
"""Name of the checkpoint folder with the statistics of all epochs."""
REPLAY = "replay"
"""Name of the checkpoint folder with the replay buffer. For several agents it contains a folder for each module."""
OPTIONS = (
    "batch_size",
    "step_per_epoch",
    "step_per_collect",
    "episode_per_collect",
    "repeat_per_collect",
    "update_per_step",
    "learning_starts",
)
"""Trainer options that affect the results of a run. A trainer that continues the run should have the same values."""


class SavableTrainer(Protocol):
    """Protocol of a trainer whose run can be saved, which `BaseTrainer` implements.

    This file cannot import `BaseTrainer`, because `BaseTrainer` imports this file.
    """

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
        """Whether the run has finished all its epochs or made all its steps."""
        ...

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a run."""
        ...

    def own_folders(self) -> dict[str, dict[str, Any]]:
        """Return additional checkpoint folders for large data."""
        ...

    def set_own_folders(self, folders: Mapping[str, Any]) -> None:
        """Restore the large data from all folders of a checkpoint."""
        ...

    def checkpoint_folders(self) -> dict[str, dict[str, Any]]:
        """Return all folders of a full checkpoint."""
        ...


@dataclass(frozen=True)
class RunCheckpoint:
    """Contents of a verified checkpoint of a whole run."""

    path: Path
    """Folder of the checkpoint."""
    folders: dict[str, dict[str, Any]]
    """Contents of its folders, by name."""

    @classmethod
    def read(cls, path: str | Path, without: Sequence[str] = ()) -> RunCheckpoint:
        """Read and verify a checkpoint, except for the folders `without`.

        Raises:
            ValueError: the checkpoint is damaged, or contains only a policy.
        """
        folders = read_checkpoint(path, without=without)
        if "trainer" not in folders:
            raise ValueError(f"{path} holds a policy only, not a whole run; give a folder below `checkpoints/`")
        state = folders["trainer"]["state"]
        # In version 0.2 the history is a list in the state itself; since then it is a number of epochs, and the
        # statistics are in a folder.
        if not isinstance(state["history"], list):
            state["history"] = joined_history(folders.pop(HISTORY, {}), state["history"])
        return cls(Path(path), folders)

    @property
    def state(self) -> dict[str, Any]:
        """State of the trainer."""
        state: dict[str, Any] = self.folders["trainer"]["state"]
        return state

    @property
    def algorithm(self) -> str:
        """Name of the algorithm that was trained."""
        return str(self.folders["trainer"]["made_by"]["algorithm"])


class RunState:
    """Saved state of a trainer's run: which attributes of the trainer are saved, and how they are restored.

    `BaseTrainer` owns the attributes, and decides when its state may be saved or replaced.
    """

    def __init__(self, trainer: SavableTrainer) -> None:
        self.trainer = trainer
        self._history_pieces = HistoryPieces()

    # -- state of the trainer ---

    def get_state(self) -> dict[str, Any]:
        """Return the state of counters, statistics, collectors, callbacks and logger."""
        history = [stats.get_state() for stats in self.trainer.history]
        return {**self._state_without_history(), "history": history}

    def _state_without_history(self) -> dict[str, Any]:
        """Return the state except for the statistics of past epochs, which have a checkpoint folder of their own."""
        trainer = self.trainer
        collector = trainer.train_collector
        return {
            "options": self._options(),
            "counters": trainer.counters.get_state(),
            "best": optional_state(trainer.best_stats),
            "last_test": optional_state(trainer.last_test),
            **trainer.totals.get_state(),
            "train_collector": optional_state(collector),
            "test_collector": trainer.evaluator.collector_state(),
            "evaluated_meanwhile": trainer.evaluator.pending_state(),
            **self._replay_agents(),
            "callbacks": states_of(trainer.callbacks),
            "evaluation_callbacks": trainer.evaluator.callback_states(),
            "metrics": trainer.metrics.get_state(),
            "logger": trainer.logger.get_state(),
            "logger_class": type(trainer.logger).__name__,
        }

    def set_records(self, state: Mapping[str, Any]) -> None:
        """Restore the state except for the collectors. The trainer must have the empty records of a new run."""
        trainer = self.trainer
        trainer.counters = Counters.from_state(state["counters"])
        trainer.best_stats = None if state["best"] is None else CollectStats.from_state(state["best"])
        trainer.last_test = None if state["last_test"] is None else CollectStats.from_state(state["last_test"])
        trainer.totals = Totals()
        trainer.totals.set_state(state)
        trainer.history = [EpochStats.from_state(stats) for stats in state["history"]]
        # Older checkpoints have neither "evaluation_callbacks" nor "metrics".
        restore_callbacks(trainer.callbacks, state["callbacks"])
        restore_callbacks(trainer.evaluator.callbacks, state.get("evaluation_callbacks", ()))
        if "metrics" in state:
            trainer.metrics.set_state(state["metrics"])

        saved_class = state["logger_class"]
        logger = trainer.logger
        if saved_class == type(logger).__name__:
            logger.set_state(state["logger"])
        elif logger.keeps_records:
            warnings.warn(
                f"the records of this run were kept by a {saved_class}; the {type(logger).__name__} of this one begins "
                "a new record",
                RuntimeWarning,
                stacklevel=4,
            )

    # -- collectors ---

    def collectors(self) -> dict[str, CollectorLike]:
        """Return the trainer's collectors, by parameter name."""
        pairs = (
            ("train_collector", self.trainer.train_collector),
            ("test_collector", self.trainer.test_collector),
        )
        return {name: collector for name, collector in pairs if collector is not None}

    def set_collectors(self, state: Mapping[str, Any]) -> None:
        """Restore the collectors and the pending evaluation.

        Raises:
            ValueError: the state has other environments, or another number of them. Nothing is changed then.
        """
        with self._undo_on_error():
            self._set_collectors(state)

    def _set_collectors(self, state: Mapping[str, Any]) -> None:
        """Restore the collectors and the pending evaluation, without undoing it after an error."""
        for name, collector in self.collectors().items():
            saved = state[name]
            if saved is None:
                continue
            saved_by_runners = "group" in saved  # the state of the `EnvRunnerGroup`
            saved_kind = "env runners" if saved_by_runners else f"{len(saved['lengths'])} environments"
            # `takes_state_of_one`: some collectors with env runners can also restore the state of a collector whose
            # environments were all in one process.
            needs_runners = collector.in_runners and (saved_by_runners or not collector.takes_state_of_one)
            kind = "env runners" if needs_runners else f"{collector.num_envs} environments"
            if saved_kind != kind:
                raise ValueError(
                    f"the {name} of the checkpoint has {saved_kind}, this one has {kind}; resume with the same"
                )
            collector.set_state(saved)
        self.trainer.evaluator.set_state(state.get("evaluated_meanwhile"))

    @contextmanager
    def _undo_on_error(self) -> Iterator[None]:
        """Restore the present state of policy, collectors, evaluation and replay buffers if the block fails.

        A single replay buffer is not copied, because it may be most of the memory. It does not need a copy: it is
        restored last, and checks its state before it changes. Several buffers (one for each module) are copied, because
        the second one may fail after the first has changed.
        """
        replays = self._replays().values()
        parts: list[Any] = [self.trainer.policy, *self.collectors().values()]
        if len(replays) > 1:
            parts = [*replays, *parts]
        states_before: list[tuple[Any, Any]] = []
        for part in parts:
            with suppress(ValueError):  # a collector that holds a rollout cannot return its state
                states_before.append((part, part.get_state()))
        undo_evaluation = self.trainer.evaluator.make_undo()

        is_restored = False
        try:
            yield
            is_restored = True
        finally:
            if not is_restored:  # also after Ctrl-C: a half restored trainer must not train on
                for part, state in states_before:
                    part.set_state(state)
                undo_evaluation()

    # -- replay buffers ---

    def replay_folders(self) -> dict[str, dict[str, Any]]:
        """Return the checkpoint folder of each replay buffer."""
        return {folder: buffer.checkpoint_state() for folder, buffer in self._replays().items()}

    def set_replay_folders(self, folders: Mapping[str, Any]) -> None:
        """Restore each replay buffer from its folder.

        Args:
            folders: all folders of a checkpoint, among them those of `replay_folders`.

        Raises:
            ValueError: the folder of a buffer is missing, or does not fit it.
        """
        self._make_saved_replay_buffers(folders["trainer"].get("state", {}))
        replays = self._replays()
        if not set(replays) <= set(folders):
            raise ValueError(f"the checkpoint has no replay buffer, only {sorted(folders)}; a run needs its own")
        for folder, buffer in replays.items():
            buffer.set_state(folders[folder])

    def _replays(self) -> dict[str, ReplayBuffer | TensorReplay]:
        """Return the replay buffers by checkpoint folder. For several agents there is one for each module."""
        buffer = self.trainer.buffer
        if buffer is None:
            return {}
        replays = {}
        for module_id, replay in buffer.replays().items():
            folder = f"{REPLAY}/{module_id}" if module_id else REPLAY
            replays[folder] = replay
        return replays

    def _replay_agents(self) -> dict[str, Any]:
        """Return the agents whose transitions the buffer of each module contains, as indices among all agents."""
        buffer = self.trainer.buffer
        collector = self.trainer.train_collector
        if buffer is None or buffer.agents is None or collector is None:
            return {}
        all_agents = list(collector.observation_space)
        # Ids of agents may be of any type, which JSON does not keep; indices are saved in their place.
        indices = []
        for module_id, agents in buffer.agents.items():
            indices.append([module_id, [all_agents.index(agent) for agent in agents]])
        return {"replay_agents": indices}

    def _make_saved_replay_buffers(self, state: Mapping[str, Any]) -> None:
        """Make the replay buffers for the agents that each module had when the state was saved."""
        saved = state.get("replay_agents")
        collector = self.trainer.train_collector
        if saved is not None and collector is not None and collector.agents_of_modules:
            all_agents = list(collector.observation_space)
            agents_of_modules = {}
            for module_id, indices in saved:
                agents_of_modules[module_id] = [all_agents[i] for i in indices]
            collector.fit_replay(agents_of_modules)

    # -- checkpoints ---

    def folders(self) -> dict[str, dict[str, Any]]:
        """Return the folders of a full checkpoint.

        The statistics of past epochs have their own folder, in pieces that checkpoints share. In a long run they would
        otherwise become most of the data that is written.
        """
        trainer = self.trainer
        state = {**self._state_without_history(), "history": len(trainer.history)}
        folders = {
            **trainer.policy.checkpoint_folders(),
            "trainer": {"state": state, "made_by": {"algorithm": trainer.policy.config.algorithm}},
            HISTORY: dict(self._history_pieces.by_name(trainer.history)),
            **trainer.own_folders(),
            **trainer.evaluator.folders(trainer.counters.step_counts),
        }
        if trainer.bad_batch is not None:
            folders["bad_batch"] = {"batch": trainer.bad_batch}
        return folders

    def save(self, path: str | Path, attempt: int, carried: Mapping[str, Path] | None) -> Path:
        """Write a full checkpoint and return its path. See `BaseTrainer.save_to_path`."""
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
        """Raise `ValueError` if the checkpoint is from a run of another algorithm."""
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
        """Restore a checkpoint of this algorithm, in a trainer that is not running.

        Args:
            checkpoint: the checkpoint.
            keep_record: whether the logger's last record of a checkpoint is kept in any case. It is then the record of
                this checkpoint.
            drop_replay: see `BaseTrainer.restore_from_path`.
            trust: see `BaseTrainer.restore_from_path`.
        """
        trainer = self.trainer
        path = checkpoint.path
        state = checkpoint.state
        with self._undo_on_error():
            trainer.policy.set_checkpoint_folders(checkpoint.folders, trust=trust, file=path)
            trainer.evaluator.set_folders(checkpoint.folders, trust=trust, file=path)
            self._set_collectors(state)
            if drop_replay:
                self._make_saved_replay_buffers(state)
                for replay in self._replays().values():
                    replay.reset()
            else:
                trainer.set_own_folders(checkpoint.folders)
        # `set_state` restores the collectors a second time. Collectors whose environments cannot be restored mark the
        # end of the running episodes in the buffer, and restoring the buffer has overwritten the first marks.
        trainer.set_state(state)
        if drop_replay:
            learning_starts = getattr(trainer, "learning_starts", 0)
            trainer.counters.learning_resumes_at = trainer.counters.env_step + learning_starts
        trainer.attempt = int(read_manifest(path).get("attempt", 0))
        self._warn_of_other_options(state["options"])
        self._record_checkpoint(path, state["counters"]["stop_reason"], keep_record)
        self._report_cut_episodes()
        notify_callbacks(trainer.callbacks, "on_checkpoint_loaded", path)

    def _record_checkpoint(self, path: Path, reason: str | None, keep_record: bool) -> None:
        """Make the log contain the same records of checkpoints as the log of a run that was never stopped."""
        trainer = self.trainer
        ended_early = reason in ("interrupted", "error") or (reason == "max_epoch" and not trainer.is_complete)
        if ended_early and not keep_record:
            trainer.logger.drop_save()  # this checkpoint exists only because the run was stopped
        else:
            # The process may have been killed between the checkpoint and its record. The logger does not repeat a
            # record that exists.
            trainer.logger.save_data(*trainer.counters.step_counts, lambda *_: path)

    def _report_cut_episodes(self) -> None:
        """Warn and log that running episodes end at the checkpoint because environments could not be restored."""
        collector = self.trainer.train_collector
        if collector is None or not collector.episodes_cut:
            return
        cut = collector.episodes_cut
        warnings.warn(
            f"the state of the {collector.env.backend!r} environments is not in the checkpoint: {cut} running "
            "episodes end there (nothing is estimated across), and the run is not bit for bit the one that would "
            "never have stopped",
            RuntimeWarning,
            stacklevel=4,
        )
        self.trainer.logger.remark("env_step", self.trainer.counters.env_step, {"save/episodes_cut": cut})

    def restore_logged(self) -> bool:
        """Restore the logger's last save, in a trainer that is not running.

        Returns whether the save has a full checkpoint. If so the whole state is restored, otherwise only the three
        counters of the save.

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
        if path is not None or any(counters.step_counts):
            warnings.warn(f"resume_from_log: only the counters are restored, as {reason}", RuntimeWarning, stacklevel=2)
        return False

    # -- options ---

    def _options(self) -> dict[str, Any]:
        """Return the options of trainer, policy and replay buffers that affect the results of the run.

        Functions are left out.
        """
        options = {name: getattr(self.trainer, name) for name in OPTIONS if hasattr(self.trainer, name)}
        config = self.trainer.policy.config
        policy_options = {
            **config.training.options(),
            **config.framework.options(),
            "algorithm_config_overrides_per_module": config.rl_module.algorithm_config_overrides_per_module,
        }
        for name, value in policy_options.items():
            with suppress(ValueError):  # the value contains a function without a name
                options[f"policy.{name}"] = to_plain(name, value)
        for folder, replay in self._replays().items():
            for name, value in replay.drawing_options().items():
                options[f"{folder}.{name}"] = value
        return {name: value for name, value in options.items() if not callable(value)}

    def _warn_of_other_options(self, saved: Mapping[str, Any]) -> None:
        """Warn if options of the trainer, its policy or its replay buffers differ from the saved ones."""
        changes = []
        for name, value in self._options().items():
            saved_value = saved.get(name, value)
            if value != saved_value:
                changes.append(f"{name}={value!r} (was {saved_value!r})")
        if changes:
            warnings.warn(
                f"the run continues with other options than it had: {', '.join(changes)}; from here it is not bit for "
                "bit the run that would never have stopped",
                ConfiguredValueWarning,
                stacklevel=4,
            )
