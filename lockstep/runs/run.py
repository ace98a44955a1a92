"""Runs and their folders: begin a run, finish it, and resume it, with other settings too."""

from __future__ import annotations

import shutil
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.algorithms import get_config
from lockstep.analysis import plot_runs
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.cluster.torchrun import RankInfo
from lockstep.envs.make import name_of_env
from lockstep.learner.many.reduction import Reducer
from lockstep.options.checks import check_flags, check_whole
from lockstep.options.schedules import ConfiguredValueWarning
from lockstep.options.section import settings_by_path
from lockstep.policy.files import find_policy
from lockstep.policy.policy import Policy
from lockstep.state.checkpoint import (
    CheckpointError,
    checkpoints_in,
    damaged_files,
    newest_attempt,
    newest_checkpoint,
    read_checkpoint,
    verify_checkpoint,
)
from lockstep.state.sizes import claims_of
from lockstep.state.trust import handed_in, without_signature
from lockstep.tracking import RunFolder, RunFolderError
from lockstep.tracking.rank_marks import RankMark, restart_reason
from lockstep.tracking.records import leaves
from lockstep.tracking.run_folder import CHECKPOINTS, CONFIG
from lockstep.tracking.statistics import EpochStats, InfoStats
from lockstep.trainer.build import RunLength, Trainer, build_trainer, rescale_schedules, take_lock
from lockstep.trainer.callbacks import Callback
from lockstep.trainer.display import ProgressDisplay
from lockstep.trainer.ranks import config_on_ranks, find_run_of_job, join
from lockstep.trainer.run_state import REPLAY

TOTAL_STEPS = "reporting.total_steps"
STEPS_PER_EPOCH = "reporting.steps_per_epoch"

NEW_RUN_ADVICE = "begin a run with its weights: lockstep train ... --from RUN, lockstep.train(..., init_from=path)"
ENVIRONMENTS_REASON = f"the episodes of the run continue in its environments; {NEW_RUN_ADVICE}"
EVALUATION_REASON = f"evaluation continues in its environments; {NEW_RUN_ADVICE}"
REPLAY_REASON = f"the run keeps its replay buffer; {NEW_RUN_ADVICE}"
FIXED_OPTIONS = {
    "environment": ENVIRONMENTS_REASON,
    "rl_module": "the run keeps its networks; train a new run",
    "multi_agent": f"the run keeps its modules and agents; {NEW_RUN_ADVICE}",
    "offline_data": f"the run keeps its data; {NEW_RUN_ADVICE}",
    "debugging": "the run keeps its random numbers; train a new run",
    "env_runners.num_env_runners": ENVIRONMENTS_REASON,
    "env_runners.num_envs_per_env_runner": ENVIRONMENTS_REASON,
    "env_runners.vectorize_mode": ENVIRONMENTS_REASON,
    "env_runners.batch_mode": "it would cut the episodes of the run otherwise; train a new run",
    "evaluation.evaluation_num_envs": EVALUATION_REASON,
    "evaluation.evaluation_num_env_runners": EVALUATION_REASON,
    "evaluation.evaluation_parallel_to_training": f"an evaluation may run at the same time; {NEW_RUN_ADVICE}",
    "replay.capacity": REPLAY_REASON,
    "replay.prioritized": REPLAY_REASON,
    "replay.her": REPLAY_REASON,
    "replay.ignore_obs_next": REPLAY_REASON,
    "replay.storage": REPLAY_REASON,
    "reporting.loggers": "the records of the run keep their form; train a new run",
    "training.optimizer": f"the run keeps the state of its optimizers; {NEW_RUN_ADVICE}",
    "training.learner_class": f"the run keeps its learner; {NEW_RUN_ADVICE}",
    "framework.dtype": f"the run keeps its networks; {NEW_RUN_ADVICE}",
}
"""Sections and options that cannot change when a run is resumed, each with the reason and what to do instead."""
CHANGEABLE = ("rl_module.algorithm_config_overrides_per_module", "multi_agent.reward_metric")
"""Options that can change although their section is in `FIXED_OPTIONS`."""


@dataclass(frozen=True)
class TrainResult:
    """Result of a run: its policy, its statistics and its folder."""

    policy: Policy
    info: InfoStats
    path: Path
    """Folder of the run."""
    sources: tuple[str, ...] = ()
    """Where the settings come from, in words; the recipe or the defaults come first."""

    @property
    def history(self) -> tuple[EpochStats, ...]:
        """Statistics of each epoch, the first epoch first."""
        return self.info.history


@dataclass(frozen=True)
class Run:
    """A trainer, and the folder that its run is written to."""

    trainer: Trainer
    folder: RunFolder
    sources: tuple[str, ...] = ()
    """Where the settings come from, in words."""

    @property
    def is_writer(self) -> bool:
        """Whether this process writes to the folder. Among several ranks only rank 0 does."""
        return self.trainer.policy.learner_group.reducer.rank == 0

    def finish(self) -> TrainResult:
        """Train to the end and return the result.

        Whatever ends the run, `summary.json` and `curve.png` are written and the environments are closed.
        """
        rank_info = RankInfo.of_process()
        with ExitStack() as while_training:
            if self.is_writer:
                while_training.enter_context(self.folder.lock)
            if rank_info.can_be_restarted:
                while_training.enter_context(RankMark(self.folder.path, rank_info.rank).training())
            return self._finish()

    def _finish(self) -> TrainResult:
        trainer = self.trainer
        try:
            info = trainer.run()
        except BaseException as error:
            # This includes KeyboardInterrupt: a second Ctrl-C ends the run at once, and it must leave a summary too.
            try:
                self.write_summary()
            except Exception as summary_error:  # for example a full disk; the error that ended the run is raised
                error.add_note(f"the summary could not be written either: {summary_error}")
            raise
        else:
            self.write_summary()
            # The result's policy is used in this process, but its learners may be Ray actors that `close` ends.
            trainer.policy.use_local_learner()
        finally:
            trainer.close()
        return TrainResult(trainer.policy, info, self.folder.path, self.sources)

    def write_summary(self) -> None:
        """Write `summary.json` with returns, speeds and the run's end, and `curve.png` if matplotlib is installed."""
        if self.is_writer:
            with self.folder.lock:
                self._write_summary()

    def _write_summary(self) -> None:
        info = self.trainer.info()
        timing = info.timing
        update_seconds: Counter[str] = Counter()
        for epoch in self.trainer.history:
            if epoch.training_stat is not None:
                update_seconds.update(epoch.training_stat.stage_seconds)

        final_return: float | None = None
        final_return_std: float | None = None
        last_evaluation = self.trainer.last_test
        if last_evaluation is not None and last_evaluation.returns_stat is not None:
            final_return = last_evaluation.returns_stat.mean
            final_return_std = last_evaluation.returns_stat.std

        summary = {
            **info.to_dict(),
            "final_return": final_return,
            "final_return_std": final_return_std,
            "final_return_step": self.trainer.last_test_at,
            "steps_per_second": timing.update_speed,
            "seconds_by_stage": {
                "environment": timing.env_time,
                "acting": timing.act_time,
                "storing": max(0.0, timing.train_time_collect - timing.env_time - timing.act_time),
                "update": timing.train_time_update,
                "evaluation": timing.test_time,
            },
            "update_seconds_by_stage": dict(update_seconds),
            "num_restarts": len(self.folder.restarts),
            "restarts": self.folder.restarts,
        }

        # The summary marks the run as ended, so it is written last: if the process is killed before, `resume` finishes
        # the run.
        try:
            self._draw_curve()
        finally:
            self.folder.write_summary(summary)

    def _draw_curve(self) -> None:
        folder = self.folder
        try:
            plot_runs([folder.path], folder.curve_path)
        except (ImportError, ValueError):
            return  # matplotlib is not installed, or there is no evaluation to draw
        except OSError as error:
            folder.curve_path.unlink(missing_ok=True)  # a part of the picture, after a full disk
            warnings.warn(f"{folder.curve_path} could not be drawn: {error}", stacklevel=3)


def prepare_run(
    config: AlgorithmConfig,
    root: str | Path = "runs",
    *,
    callbacks: Sequence[Callback] = (),
    init_from: str | Path | None = None,
    sources: Sequence[str] = (),
) -> Run:
    """Make the folder and the trainer of a new run. If the trainer cannot be built, the folder is removed.

    On ranks that torchrun has restarted, the run that they began is resumed from its newest checkpoint instead.

    Args:
        config: Configuration of the run.
        root: Folder that the run's folder is made in.
        callbacks: Callbacks in addition to those of the configuration.
        init_from: Run (its best policy, as for `load_policy`) or checkpoint whose weights and connector statistics the
            policy starts with. Everything else is new.
        sources: Where the settings come from, in words.
    """
    config = config_on_ranks(config.with_agents().with_groups_of_environment())
    config.validate()
    init_checkpoint = None if init_from is None else find_policy(init_from).absolute()
    reducer = join(config)

    # Rank 0 decides for all ranks: on a file system that is slow to show new folders, they might decide differently.
    restarted = find_run_of_job(root, config.named_options()) if reducer.rank == 0 else None
    restarted_path = reducer.first(None if restarted is None else str(restarted))
    if restarted_path is not None:
        return prepare_resume(restarted_path).build(callbacks, reducer=reducer)

    path: Path | None = None
    if reducer.rank == 0:
        path = RunFolder.create(
            root,
            algo=config.algorithm,
            env=name_of_env(config.environment.env),
            seed=config.debugging.seed,
            config=config.named_options(),
            init_from=None if init_checkpoint is None else str(init_checkpoint),
            run_id=RankInfo.of_process().run_id,
        ).path
    folder = RunFolder.open(reducer.first(str(path)))

    with ExitStack() as on_failure:
        if reducer.rank == 0:
            on_failure.callback(shutil.rmtree, folder.path, ignore_errors=True)
            if RankInfo.of_process().num_restarts:
                folder.record_restart(0, "the ranks ended before the first checkpoint of their run")
        trainer = build_trainer(config, folder=folder, callbacks=callbacks, reducer=reducer)
        on_failure.callback(trainer.close)
        if init_checkpoint is not None:
            trainer.policy.start_from(init_checkpoint)
        on_failure.pop_all()
    return Run(trainer, folder, tuple(sources))


def resume(
    path: str | Path,
    *,
    config: AlgorithmConfig | None = None,
    total_steps: int | None = None,
    settings: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    drop_damaged_replay: bool = False,
    trust: bool = False,
    take_over: bool = False,
    progress: bool = False,
) -> TrainResult:
    """Continue a run from its newest intact checkpoint, with the same bits as if it had not been interrupted.

    A run that already has all its steps is not trained further.

    Args:
        path: Folder of the run, or the checkpoint in it to continue from. `checkpoints/error` is used only if it is
            given here.
        config: Configuration of the run, if it has objects that the folder cannot hold: classes and functions of the
            running script, or environments that are objects. All its options apply from here on. By default the options
            are those in the run's `config.json`, which may have been edited.
        total_steps: New length of the whole run in environment steps (offline: gradient steps).
        settings: Options that change from here on, by path (`{"training.lr": 1e-4}`) or nested.
        callbacks: Callbacks in addition to those of the configuration.
        drop_damaged_replay: Whether to continue with an empty replay buffer from a checkpoint of which only the replay
            buffer is damaged.
        trust: Whether to accept all objects that the run's files name, such as functions. A run that this user has
            made does not need it.
        take_over: Whether to take the run from another process that is training it. That process ends with an error at
            its next write.
        progress: Whether to show the progress, as `lockstep.train` does.

    Raises:
        ValueError: an option cannot change in a run, the run has more steps than `total_steps`, or no checkpoint is
            intact. As with all errors before the training begins, nothing has changed.
        RunLockError: another process, which the message names, is training the run.
        UntrustedError: the files name an object that needs `trust=True`.
        NotHandedInError: the files name an object of a script, which only `config` can hand in.
    """
    with claims_of(path):
        resumption = prepare_resume(
            path,
            config=config,
            total_steps=total_steps,
            settings=settings,
            drop_damaged_replay=drop_damaged_replay,
            trust=trust,
        )
        displays = progress_displays(progress, resumption.config)
        run = resumption.build([*displays, *callbacks], take_over=take_over)
    return run.finish()


def progress_displays(progress: bool, config: AlgorithmConfig) -> list[ProgressDisplay]:
    """Return the display of a run as a list of callbacks. It is empty without `progress`, and on ranks above 0."""
    check_flags(progress=progress)
    if not progress or RankInfo.of_process().rank:
        return []
    env = name_of_env(config.environment.env)
    return [ProgressDisplay(title=f"{config.algorithm.upper()} on {env}, seed {config.debugging.seed}")]


def load_policy(path: str | Path, *, trust: bool = False) -> Policy:
    """Return the best policy of a run's folder, or the policy in a checkpoint, an export or a saved policy.

    `trust`: whether to accept all objects that the files name, see `Policy.from_checkpoint`.
    """
    return Policy.from_checkpoint(find_policy(path), trust=trust)


def evaluation_of(path: str | Path, *, last: bool = False) -> dict[str, float] | None:
    """Return `return_mean` and `return_std` of a run's best evaluation, or of its last; None without an evaluation."""
    try:
        summary = RunFolder.open(path).read_summary()
    except RunFolderError:
        return None
    prefix = "final_return" if last else "best_reward"
    mean = summary.get(prefix)
    if mean is None:
        return None
    std = summary.get(f"{prefix}_std")
    return {"return_mean": float(mean), "return_std": float(std or 0.0)}


# -- resuming with other settings ---


Changes = dict[str, tuple[Any, Any]]
"""Changed options by path: the plain value before and after."""


def option_changes(before: AlgorithmConfig, after: AlgorithmConfig) -> Changes:
    """Return the options in which two configurations differ."""
    old_values = dict(leaves(without_signature(before.named_options())))
    new_values = dict(leaves(without_signature(after.named_options())))
    changes = {}
    for path in {**old_values, **new_values}:
        old = old_values.get(path)
        new = new_values.get(path)
        if old != new:
            changes[path] = (old, new)
    return changes


def check_changes(changes: Changes, first_values: Sequence[str]) -> None:
    """Check that all changed options may change when a run is resumed.

    Args:
        changes: Changed options with their values.
        first_values: Training options that are only the first value of something that a run adapts, such as the
            entropy coefficient of SAC.

    Raises:
        ValueError: an option cannot change. The message has its two values, the reason, and what to do instead.
    """
    for path, (before, after) in changes.items():
        section, _, option = path.partition(".")
        reason = FIXED_OPTIONS.get(path) or FIXED_OPTIONS.get(section)
        if section == "training" and option in first_values:
            reason = f"it is a first value, and the run continues with what has become of it; {NEW_RUN_ADVICE}"
        if reason is not None and not path.startswith(CHANGEABLE):
            raise ValueError(f"{path}={after!r} (the run has {before!r}) cannot be changed in a resumed run: {reason}")


def _in_words(changes: Changes) -> str:
    """Return changes as text: `"training.lr=0.001 (was 0.0003), ..."`."""
    return ", ".join(f"{path}={after!r} (was {before!r})" for path, (before, after) in changes.items())


def _history_entry(changes: Changes, step: int) -> dict[str, Any]:
    """Return the entry in the history of a run's `config.json` for options that change at a step."""
    pairs = {path: {"before": before, "after": after} for path, (before, after) in changes.items()}
    return {"step": step, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "changes": pairs}


@dataclass(frozen=True)
class Resumption:
    """Plan for resuming a run: checkpoint, configuration and changes. Making it has changed nothing."""

    folder: RunFolder
    checkpoint: Path
    config: AlgorithmConfig
    step: int
    """Step of the checkpoint."""
    changes: Changes
    """Options that change from the checkpoint on."""
    sources: tuple[str, ...]
    """Where the settings come from, in words."""
    is_finished: bool = False
    """Whether the run has all its steps and its end was recorded."""
    end_reason: str | None = None
    """Why the run had ended when its process was killed before it recorded the end; None for any other run."""
    drops_replay: bool = False
    """Whether the replay buffer of the checkpoint is damaged, so that the run continues with an empty one."""
    trust: bool = False
    """Whether the user accepts all objects that the checkpoint names."""
    known_checkpoints: tuple[int, tuple[str, ...]] = (0, ())
    """Checkpoints that were in the folder when the plan was made, see `list_checkpoints`."""
    script_objects: tuple[Any, ...] = ()
    """Objects of the running script that the user's configuration hands in."""

    def build(
        self, callbacks: Sequence[Callback] = (), *, reducer: Reducer | None = None, take_over: bool = False
    ) -> Run:
        """Return the run with its trainer restored, and record the changes in the run's `config.json`.

        Args:
            callbacks: Callbacks in addition to those of the configuration.
            reducer: Connection to the other ranks, if it is open already.
            take_over: Whether to take the run from another process, see `resume`.
        """
        if reducer is None:
            reducer = join(config_on_ranks(self.config))
        if reducer.rank == 0:
            take_lock(take_over, self.folder)
            # The plan was made without the lock, so another process may have trained the run since.
            if self.known_checkpoints != list_checkpoints(self.folder.checkpoints):
                self.folder.lock.release()
                raise ValueError(f"{self.folder.path} was trained by another process meanwhile; resume it again")

        trainer = build_trainer(self.config, folder=self.folder, callbacks=callbacks, resume=True, reducer=reducer)
        with ExitStack() as on_failure:
            on_failure.callback(trainer.close)
            # Recorded as it is: a machine without a compiler turns `compile` off.
            self.config.framework.compile = trainer.policy.config.framework.compile
            self._restore(trainer)
            if trainer.policy.learner_group.reducer.rank == 0:
                self.folder.restore_best(self.checkpoint, has_best=trainer.best_score is not None)
                if self.changes:
                    self.folder.record_changes(self.config.named_options(), _history_entry(self.changes, self.step))
            self._record_restart(reducer)
            on_failure.pop_all()

        trainer.stop_reason = self.end_reason
        return Run(trainer, self.folder, self.sources)

    def _record_restart(self, reducer: Reducer) -> None:
        """Write down and report why a job continues the run. Every rank must call it."""
        rank_info = RankInfo.of_process()
        if not rank_info.can_be_restarted:
            return
        ends = reducer.gather(RankMark(self.folder.path, rank_info.rank).last_end())
        if reducer.rank == 0:
            self.folder.record_restart(self.step, restart_reason(ends))

    def _restore(self, trainer: Trainer) -> None:
        """Load the checkpoint into the trainer."""
        with warnings.catch_warnings():
            if self.changes:
                # The warnings would name the changed options, which `sources` names already.
                warnings.simplefilter("ignore", ConfiguredValueWarning)
            with handed_in(*self.script_objects):
                trainer.restore_from_path(self.checkpoint, drop_replay=self.drops_replay, trust=self.trust)


@dataclass(frozen=True)
class _Configurations:
    """Configurations of a run before and after its resume."""

    before: AlgorithmConfig
    """Configuration that the checkpoint was written with."""
    after: AlgorithmConfig
    """Configuration of the resumed run."""
    source: str
    """Where `after` comes from, in words."""
    script_objects: tuple[Any, ...] = ()
    """Objects of the running script that `after` hands in."""
    edited: Changes = field(default_factory=dict)
    """Options that differ in `config.json`, by an edit or by an earlier resume."""

    @classmethod
    def read(cls, folder: RunFolder, checkpoint: Path, config: AlgorithmConfig | None, trust: bool) -> _Configurations:
        """Read the configuration of a checkpoint; that of the resumed run is `config`, or the one in `config.json`."""
        saved = read_checkpoint(checkpoint / "policy")[""]["state"]["config"]
        before = get_config(folder.algo)
        if config is None:
            before.update_from_dict(saved, trust=trust, file=checkpoint)
            after = get_config(folder.algo)
            after.update_from_dict(folder.info["config"], trust=trust, file=folder.path / CONFIG)
            return cls(before, after, "the run's config.json", edited=option_changes(before, after))

        if config.algorithm != before.algorithm:
            raise ValueError(f"config= is for {config.algorithm!r}; the run in {folder.path} is of {folder.algo!r}")
        script_objects = tuple(config.script_objects())
        with handed_in(*script_objects):
            before.update_from_dict(saved, trust=trust, file=checkpoint)
        after = config_on_ranks(config.copy().with_agents().with_groups_of_environment())
        if after.framework.compile == "auto":
            # Decided once, when the run began: compiled code has other last bits.
            after.framework.compile = before.framework.compile
        return cls(before, after, "the configuration that was given", script_objects)


def prepare_resume(
    path: str | Path,
    *,
    config: AlgorithmConfig | None = None,
    total_steps: int | None = None,
    settings: Mapping[str, Any] | None = None,
    drop_damaged_replay: bool = False,
    trust: bool = False,
) -> Resumption:
    """Plan how to resume a run, changing nothing. See `resume` for the arguments and errors."""
    requested = settings_by_path(settings or {})
    total_steps = check_whole("total_steps", total_steps, 1, optional=True)
    if total_steps is not None:
        requested[TOTAL_STEPS] = total_steps

    # Listed before a checkpoint is chosen: `build` lists the checkpoints again, and refuses if another process has
    # written one meanwhile.
    folder, chosen_checkpoint = _folder_and_checkpoint(Path(path).absolute())
    known_checkpoints = list_checkpoints(folder.checkpoints)
    checkpoint = _intact_checkpoint(chosen_checkpoint, folder, drop_damaged_replay)
    damaged = damaged_files(checkpoint) if drop_damaged_replay else {}
    if damaged:
        warnings.warn(
            f"{checkpoint}: its replay buffer is damaged ({', '.join(damaged)}); the run continues with an empty one, "
            "and learns nothing until it has filled again",
            RuntimeWarning,
            stacklevel=2,
        )

    configurations = _Configurations.read(folder, checkpoint, config, trust)
    before = configurations.before
    after = configurations.after
    for option, value in requested.items():
        after.set_path(option, value)
    stretched = _follow_total(before, after, requested)
    after.validate()

    changes = option_changes(before, after)
    if STEPS_PER_EPOCH in changes and after.reporting.steps_per_epoch == RunLength.of(before).per_epoch:
        del changes[STEPS_PER_EPOCH]  # `_follow_total` has written out the length that the epochs had by default
    try:
        check_changes(changes, after.first_values)
    except ValueError as error:
        # The other value may come from a damaged file as well as from the user.
        raise ValueError(f"{error} (the options of the run are in {folder.path / CONFIG})") from None

    counters = read_checkpoint(checkpoint / "trainer")[""]["state"]["counters"]
    step = int(counters["env_step"] or counters["gradient_step"])
    total = after.reporting.total_steps
    is_shorter = total < before.reporting.total_steps
    # The last collect of a finished run may have gone beyond its total by less than one update.
    if is_shorter and step - total >= RunLength.of(after).per_update:
        raise ValueError(
            f"total_steps={total} is not allowed; the run in {folder.path} has {step} steps already, give as many or "
            "more"
        )

    edited = configurations.edited
    edits = {name: edited[name] for name in edited if name in changes and name not in requested}
    if edits and not folder.has_recorded(_history_entry(changes, step)):
        warnings.warn(
            f"{folder.path / 'config.json'} is not as it was at the checkpoint; the run continues with "
            f"{_in_words(edits)}",
            RuntimeWarning,
            stacklevel=2,
        )

    has_ended = folder.ended_at() == (counters["env_step"], counters["gradient_step"])
    return Resumption(
        folder,
        checkpoint,
        after,
        step,
        changes,
        _sources(configurations.source, changes, stretched, step, total),
        is_finished=has_ended and step >= total and not counters["in_epoch"],
        end_reason=None if has_ended else _end_reason(counters["stop_reason"]),
        drops_replay=bool(damaged),
        trust=trust,
        known_checkpoints=known_checkpoints,
        script_objects=configurations.script_objects,
    )


def _sources(source: str, changes: Changes, stretched: Sequence[str], step: int, total: int) -> tuple[str, ...]:
    """Return where the settings of a resumed run come from, in words: its configuration, changes, schedules."""
    sources = [source]
    set_changes = {path: change for path, change in changes.items() if path not in stretched}
    if set_changes:
        sources.append(f"from step {step:,} on {_in_words(set_changes)}")
    if stretched:
        sources.append(f"{', '.join(stretched)} stretched to {total:,} steps")
    return tuple(sources)


def _end_reason(saved_reason: str | None) -> str | None:
    """Return the reason in a checkpoint for which the run stays ended; None if the resumed run trains further."""
    return None if saved_reason in ("interrupted", "error", "max_epoch") else saved_reason


def list_checkpoints(directory: Path) -> tuple[int, tuple[str, ...]]:
    """Return the number of the newest attempt and the names of all checkpoints, newest first.

    The value changes whenever a process trains the run.
    """
    return newest_attempt(directory), tuple(path.name for path in checkpoints_in(directory))


def _folder_and_checkpoint(path: Path) -> tuple[RunFolder, Path | None]:
    """Return the folder of the run, and the checkpoint if `path` is a checkpoint in a run."""
    run = path.parent.parent
    if path.parent.name == CHECKPOINTS and (run / CONFIG).exists():
        return RunFolder.open(run), path
    return RunFolder.open(path), None


def _intact_checkpoint(chosen: Path | None, folder: RunFolder, drop_damaged_replay: bool) -> Path:
    """Return the checkpoint to continue from: the chosen one, or by default the newest intact one.

    `drop_damaged_replay`: whether a checkpoint counts as intact if only its replay buffer is damaged.

    Raises:
        ValueError: no checkpoint is intact.
        CheckpointError: the chosen checkpoint is not intact.
    """
    ignored = [REPLAY] if drop_damaged_replay else []
    if chosen is not None:
        try:
            verify_checkpoint(chosen, without=ignored)
        except CheckpointError as error:
            raise CheckpointError(f"{error}{_replay_advice(chosen)}") from None
        return chosen

    newest = newest_checkpoint(folder.checkpoints, without=ignored)
    if newest is not None:
        return newest
    advice = _advice_without_checkpoint(folder.checkpoints, folder.error_checkpoint)
    raise ValueError(f"{folder.path} has no intact checkpoint to continue from{advice}")


def _advice_without_checkpoint(checkpoints: Path, error_checkpoint: Path) -> str:
    """Return what a user can do with a run that has no intact checkpoint, as the end of an error message."""
    for checkpoint in checkpoints_in(checkpoints):
        advice = _replay_advice(checkpoint)
        if advice:
            return advice
    if error_checkpoint.is_dir():
        return f"; start a new run (the state at its error is kept: lockstep resume {error_checkpoint})"
    return "; start a new run"


def _replay_advice(checkpoint: Path) -> str:
    """Return how to continue from a checkpoint of which only the replay buffer is damaged; "" for any other."""
    try:
        damaged = damaged_files(checkpoint)
    except CheckpointError:
        return ""
    if not damaged or not all(name.startswith(f"{REPLAY}/") for name in damaged):
        return ""
    return (
        f"; of {checkpoint.name} only its replay buffer is damaged ({', '.join(damaged)}): to continue with everything "
        "else and an empty replay buffer, lockstep resume RUN --drop-damaged-replay, or resume(path, "
        "drop_damaged_replay=True)"
    )


def _follow_total(before: AlgorithmConfig, after: AlgorithmConfig, requested: Mapping[str, Any]) -> list[str]:
    """Fit `after` to its new total of steps; return the paths of the schedules that were stretched.

    Epochs keep their length, and schedules that ended with the run end with the longer run. Options that are requested,
    or that differ already, are left alone.
    """
    if after.reporting.total_steps == before.reporting.total_steps:
        return []

    # The default is a tenth of the run, which a new total would change in the middle of an epoch.
    if after.reporting.steps_per_epoch is None and STEPS_PER_EPOCH not in requested:
        after.reporting(steps_per_epoch=RunLength.of(before).per_epoch)

    old_options = before.training.options()
    new_options = after.training.options()
    unchanged = {
        name: value
        for name, value in new_options.items()
        if old_options[name] == value and f"training.{name}" not in requested
    }
    factor = after.reporting.total_steps / before.reporting.total_steps
    stretched = rescale_schedules(unchanged, factor, ended_at=before.reporting.total_steps)
    after.set_section("training", stretched)
    return [f"training.{name}" for name in stretched]
