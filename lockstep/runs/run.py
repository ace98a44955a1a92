"""A run and its folder: how it begins, ends and goes on, with other settings too."""

from __future__ import annotations

import shutil
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.algorithms import get_config
from lockstep.analysis import plot_runs
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.cluster.torchrun import Place
from lockstep.envs.make import name_of_env
from lockstep.export.exported import CHECKPOINT
from lockstep.learner.many.reduction import Reducer
from lockstep.options.checks import check_whole
from lockstep.options.schedules import ConfiguredValueWarning
from lockstep.options.section import by_path
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
from lockstep.tracking.records import leaves
from lockstep.tracking.run_folder import CHECKPOINTS, CONFIG, find_run
from lockstep.tracking.statistics import EpochStats, InfoStats
from lockstep.trainer.build import RunLength, Trainer, build_trainer, stretched_schedules, take_lock
from lockstep.trainer.callbacks import Callback
from lockstep.trainer.ranks import config_on_ranks, join, run_begun_before
from lockstep.trainer.run_state import REPLAY

ANEW = "begin a run with its weights: lockstep train ... --from RUN, lockstep.train(..., init_from=path)"
IN_ITS_ENVIRONMENTS = f"the episodes of the run go on in its environments; {ANEW}"
WITH_ITS_REPLAY = f"the run goes on with its replay buffer; {ANEW}"
KEPT = {
    "environment": IN_ITS_ENVIRONMENTS,
    "rl_module": "the run goes on with its networks; train a new run",
    "multi_agent": f"the run goes on with its modules and agents; {ANEW}",
    "offline_data": f"the run goes on with its data; {ANEW}",
    "debugging": "the run goes on with its random numbers; train a new run",
    "env_runners.num_env_runners": IN_ITS_ENVIRONMENTS,
    "env_runners.num_envs_per_env_runner": IN_ITS_ENVIRONMENTS,
    "env_runners.vectorize_mode": IN_ITS_ENVIRONMENTS,
    "env_runners.batch_mode": "it would cut the episodes of the run otherwise; train a new run",
    "evaluation.evaluation_num_envs": f"evaluation goes on in its environments; {ANEW}",
    "evaluation.evaluation_num_env_runners": f"evaluation goes on in its environments; {ANEW}",
    "evaluation.evaluation_parallel_to_training": f"an evaluation may be under way beside it; {ANEW}",
    "replay.capacity": WITH_ITS_REPLAY,
    "replay.prioritized": WITH_ITS_REPLAY,
    "replay.her": WITH_ITS_REPLAY,
    "replay.ignore_obs_next": WITH_ITS_REPLAY,
    "replay.storage": WITH_ITS_REPLAY,
    "reporting.loggers": "the records of the run go on as they began; train a new run",
    "training.optimizer": f"the run goes on with what its optimizers remember; {ANEW}",
    "training.learner_class": f"the run goes on with its learner; {ANEW}",
    "framework.dtype": f"the run goes on with its networks; {ANEW}",
}
"""sections and options that a run keeps, and what to do instead of changing them"""
CHANGEABLE = ("rl_module.algorithm_config_overrides_per_module", "multi_agent.reward_metric")
"""exceptions in sections that are kept"""
TOTAL, EPOCH = "reporting.total_steps", "reporting.steps_per_epoch"


@dataclass(frozen=True)
class TrainResult:
    """What a run leaves: the policy, the statistics, the folder."""

    policy: Policy
    info: InfoStats
    path: Path
    """the run's folder"""
    sources: tuple[str, ...] = ()
    """where the settings come from, in words: the recipe or the defaults first"""

    @property
    def history(self) -> tuple[EpochStats, ...]:
        """One entry for each epoch."""
        return self.info.history


@dataclass(frozen=True)
class Run:
    """A trainer and the folder that its run writes into."""

    trainer: Trainer
    folder: RunFolder
    sources: tuple[str, ...] = ()
    """where the settings come from, in words"""

    @property
    def writes(self) -> bool:
        """Whether this process writes into the folder: of several ranks, the first."""
        return self.trainer.policy.learner_group.reducer.rank == 0

    def finish(self) -> TrainResult:
        """Run to the end; write `summary.json` and `curve.png` and close the environments whatever ends the run."""
        with self.folder.lock if self.writes else nullcontext():
            return self._finish()

    def _finish(self) -> TrainResult:
        trainer = self.trainer
        try:
            info = trainer.run()
        except BaseException as error:
            try:
                self.write_summary()
            except Exception as second:  # a full disk, say: what ended the run is what matters
                error.add_note(f"the summary could not be written either: {second}")
            raise
        else:
            self.write_summary()
            trainer.policy.bring_home()
        finally:
            trainer.close()
        return TrainResult(trainer.policy, info, self.folder.path, self.sources)

    def write_summary(self) -> None:
        """Write returns, speed by stage and how the run ended; and the curve where matplotlib is installed."""
        if self.writes:
            with self.folder.lock:
                self._write_summary()

    def _write_summary(self) -> None:
        trainer, folder = self.trainer, self.folder
        info = trainer.info()
        timing = info.timing
        update_seconds: Counter[str] = Counter()
        for epoch in trainer.history:
            if epoch.training_stat is not None:
                update_seconds.update(epoch.training_stat.stage_seconds)
        last = None if trainer.last_test is None else trainer.last_test.returns_stat
        stages = {
            "environment": timing.env_time,
            "acting": timing.act_time,
            "storing": max(0.0, timing.train_time_collect - timing.env_time - timing.act_time),
            "update": timing.train_time_update,
            "evaluation": timing.test_time,
        }
        # The summary says that the run has ended, so it is written last: a run that is killed before is finished later.
        try:
            self._draw_curve()
        finally:
            folder.write_summary(
                {
                    **info.to_dict(),
                    "final_return": None if last is None else last.mean,
                    "final_return_std": None if last is None else last.std,
                    "final_return_step": trainer.last_test_at,
                    "steps_per_second": timing.update_speed,
                    "seconds_by_stage": stages,
                    "update_seconds_by_stage": dict(update_seconds),
                }
            )

    def _draw_curve(self) -> None:
        folder = self.folder
        try:
            plot_runs([folder.path], folder.curve_path)
        except (ImportError, ValueError):
            return  # no matplotlib, or no evaluation to draw
        except OSError as error:
            folder.curve_path.unlink(missing_ok=True)
            warnings.warn(f"{folder.curve_path} could not be drawn: {error}", stacklevel=3)


def prepare_run(
    config: AlgorithmConfig,
    root: str | Path = "runs",
    *,
    callbacks: Sequence[Callback] = (),
    init_from: str | Path | None = None,
    sources: Sequence[str] = (),
) -> Run:
    """Make the trainer of a new run and its folder. Where the trainer cannot be built, no folder is left.

    `init_from`: a run (its best policy, as for `load_policy`) or a checkpoint whose weights and connectors' statistics
    the policy begins with; all else is new. `sources`: where the settings come from, in words. On ranks that torchrun
    started again, the run that they began goes on from its newest checkpoint.
    """
    config = config_on_ranks(config.with_agents())
    config.validate()
    source = None if init_from is None else find_policy(init_from).absolute()
    reducer = join(config)
    begun = run_begun_before(root, config.named_options()) if reducer.rank == 0 else None
    if (path := reducer.first(None if begun is None else str(begun))) is not None:
        return prepare_resume(path).build(callbacks, reducer=reducer)
    if reducer.rank == 0:
        path = RunFolder.create(
            root,
            algo=config.algorithm,
            env=name_of_env(config.environment.env),
            seed=config.debugging.seed,
            config=config.named_options(),
            init_from=None if source is None else str(source),
            run_id=Place.of_process().run_id,
        ).path
    folder = RunFolder.open(reducer.first(str(path)))
    try:
        trainer = build_trainer(config, folder=folder, callbacks=callbacks, reducer=reducer)
        run = Run(trainer, folder, tuple(sources))
        if source is not None:
            try:
                run.trainer.policy.start_from(source)
            except BaseException:
                run.trainer.close()
                raise
        return run
    except BaseException:
        if reducer.rank == 0:
            shutil.rmtree(folder.path, ignore_errors=True)
        raise


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
) -> TrainResult:
    """Continue the run in a folder from its newest intact checkpoint, bit by bit.

    `path`: the run's folder, or one of its checkpoints to go on from, e.g. `checkpoints/error`, which is used only
    where it is asked for. `config`: the run's configuration, with the objects that the folder cannot hold: classes and
    functions of the running script, environments that are objects. Its other options are those from here on. Without it
    they are those in the run's `config.json`, edited ones too. `total_steps`: a new length of the whole run.
    `settings`: other options by path from here on, `{"training.lr": 1e-4}`, or nested. `drop_damaged_replay`: where
    nothing but the replay buffer of a checkpoint is damaged, go on from it with an empty one. `trust`: take all objects
    that the run's files name, such as functions; a run that this user has made needs no `trust=True`. `take_over`: from
    the process that trains the run now, which then ends with an error at its next write.

    Raises `ValueError`, changing nothing, for options that a run keeps, for fewer steps than it has, where no
    checkpoint is intact, where another process trains the run (`RunLockError`, which names it), and for an object that
    needs `trust=True` (`UntrustedError`) or has to be handed in (`NotHandedInError`). A run that has all its steps
    trains no more.
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
        run = resumption.build(callbacks, take_over=take_over)
    return run.finish()


def find_policy(path: str | Path, *, last: bool = False) -> Path:
    """Return the checkpoint that `load_policy` reads: a run's best policy, else its newest; or `path` itself.

    Of what `export` or `save_pretrained` wrote, the checkpoint in it. `last`: of a run, the newest in any case. A
    folder that holds one run stands for it; raises `RunFolderError` for one that holds several.
    """
    path = find_run(path)
    if (path / CHECKPOINT).is_dir():
        return path / CHECKPOINT
    if (path / "config.json").exists() and (path / "best").exists():
        newest = newest_checkpoint(path / "checkpoints")
        return (newest if last else newest_checkpoint(path / "best") or newest) or path
    return path


def load_policy(path: str | Path, *, trust: bool = False) -> Policy:
    """Return the best policy of a run's folder, or the policy in a checkpoint, an export or a saved policy.

    `trust`: take all objects that it names, see `Policy.from_checkpoint`.
    """
    return Policy.from_checkpoint(find_policy(path), trust=trust)


def evaluation_of(path: str | Path, *, last: bool = False) -> dict[str, float] | None:
    """Return `return_mean` and `return_std` of a run's best evaluation, or its last; None where there is none."""
    try:
        summary = RunFolder.open(path).read_summary()
    except RunFolderError:
        return None
    mean, std = ("final_return", "final_return_std") if last else ("best_reward", "best_reward_std")
    if summary.get(mean) is None:
        return None
    return {"return_mean": float(summary[mean]), "return_std": float(summary.get(std) or 0.0)}


# -- going on with other settings ---


Changes = dict[str, tuple[Any, Any]]
"""options by path, as plain values: before and after"""


def option_changes(before: AlgorithmConfig, after: AlgorithmConfig) -> Changes:
    """Return the options that differ."""
    old, new = (dict(leaves(without_signature(config.named_options()))) for config in (before, after))
    pairs = {path: (old.get(path), new.get(path)) for path in {**old, **new}}
    return {path: (left, right) for path, (left, right) in pairs.items() if left != right}


def check_changes(changes: Changes, first_values: Sequence[str]) -> None:
    """Raise `ValueError` naming an option that a run keeps, with its two values and what to do instead.

    `first_values`: training options that only begin what the run has gone on with.
    """
    for path, (before, after) in changes.items():
        section, _, option = path.partition(".")
        reason = KEPT.get(path) or KEPT.get(section)
        if section == "training" and option in first_values:
            reason = f"the run goes on with what has become of it; {ANEW}"
        if reason is not None and not path.startswith(CHANGEABLE):
            raise ValueError(
                f"{path}={after!r} (the run has {before!r}) cannot be changed in a run that goes on: {reason}"
            )


def _in_words(changes: Changes) -> str:
    """Return `"training.lr=0.001 (was 0.0003), ..."`."""
    return ", ".join(f"{path}={after!r} (was {before!r})" for path, (before, after) in changes.items())


def _history_entry(changes: Changes, step: int) -> dict[str, Any]:
    """Return the entry that a run's `config.json` gets for changes from a step on."""
    pairs = {path: {"before": before, "after": after} for path, (before, after) in changes.items()}
    return {"step": step, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "changes": pairs}


@dataclass(frozen=True)
class Resumption:
    """How a run goes on: decided, and nothing done yet."""

    folder: RunFolder
    checkpoint: Path
    config: AlgorithmConfig
    step: int
    """where the checkpoint was made"""
    changes: Changes
    """options that are other ones from here on"""
    sources: tuple[str, ...]
    """where the settings come from, in words"""
    is_finished: bool = False
    """the run has all its steps, and its end was noted"""
    end_reason: str | None = None
    """the run had come to this end, but the process was killed before it was noted"""
    drops_replay: bool = False
    """The replay buffer of the checkpoint is damaged, and the run goes on with an empty one."""
    trust: bool = False
    """The user's word that the checkpoint may name any object."""
    seen: tuple[int, tuple[str, ...]] = (0, ())
    """The checkpoints that the decision was made with, see `seen_checkpoints`."""
    script_objects: tuple[Any, ...] = ()
    """Objects of the running script that the user has handed in."""

    def build(
        self, callbacks: Sequence[Callback] = (), *, reducer: Reducer | None = None, take_over: bool = False
    ) -> Run:
        """Return the run with its trainer restored; note the changes in the run's `config.json`.

        `reducer`: what joins this process with the other ranks, where they have met already. `take_over`: see `resume`.
        """
        reducer = join(config_on_ranks(self.config)) if reducer is None else reducer
        if reducer.rank == 0:
            take_lock(take_over, self.folder)
            if self.seen != seen_checkpoints(self.folder.checkpoints):
                self.folder.lock.release()
                raise ValueError(f"{self.folder.path} was trained by another process meanwhile; resume it again")
        trainer = build_trainer(self.config, folder=self.folder, callbacks=callbacks, resume=True, reducer=reducer)
        self.config.framework.compile = trainer.policy.config.framework.compile  # False without a compiler
        try:
            with warnings.catch_warnings():
                if self.changes:  # they are in the sources
                    warnings.simplefilter("ignore", ConfiguredValueWarning)
                with handed_in(*self.script_objects):
                    trainer.restore_from_path(self.checkpoint, drop_replay=self.drops_replay, trust=self.trust)
            if trainer.policy.learner_group.reducer.rank == 0:
                self.folder.restore_best(self.checkpoint, has_best=trainer.best_score is not None)
                if self.changes:
                    self.folder.record_changes(self.config.named_options(), _history_entry(self.changes, self.step))
        except BaseException:
            trainer.close()
            raise
        trainer.stop_reason = self.end_reason
        return Run(trainer, self.folder, self.sources)


def prepare_resume(
    path: str | Path,
    *,
    config: AlgorithmConfig | None = None,
    total_steps: int | None = None,
    settings: Mapping[str, Any] | None = None,
    drop_damaged_replay: bool = False,
    trust: bool = False,
) -> Resumption:
    """Decide how the run in a folder goes on, changing nothing; see `resume`."""
    asked = by_path(settings or {})
    if check_whole("total_steps", total_steps, 1, optional=True) is not None:
        asked[TOTAL] = int(total_steps or 0)
    folder, chosen = _folder_and_checkpoint(Path(path).absolute())
    seen = seen_checkpoints(folder.checkpoints)
    checkpoint = _intact_checkpoint(chosen, folder, drop_damaged_replay)
    damaged = damaged_files(checkpoint) if drop_damaged_replay else {}
    if damaged:
        warnings.warn(
            f"{checkpoint}: its replay buffer is damaged ({', '.join(damaged)}); the run goes on with an empty one, "
            "and learns nothing until it has filled again",
            RuntimeWarning,
            stacklevel=2,
        )
    saved = read_checkpoint(checkpoint / "policy")[""]["state"]["config"]
    before, source, script_objects = get_config(folder.algo), "the run's config.json", ()
    if config is None:
        before.update_from_dict(saved, trust=trust, file=checkpoint)
        config = get_config(folder.algo)
        config.update_from_dict(folder.info["config"], trust=trust, file=folder.path / CONFIG)
        edited = option_changes(before, config)
    else:
        if config.algorithm != before.algorithm:
            raise ValueError(f"config= is for {config.algorithm!r}; the run in {folder.path} is of {folder.algo!r}")
        script_objects = tuple(config.script_objects())
        with handed_in(*script_objects):
            before.update_from_dict(saved, trust=trust, file=checkpoint)
        config, source = config_on_ranks(config.copy().with_agents()), "the configuration that was given"
        if config.framework.compile == "auto":
            config.framework.compile = before.framework.compile  # as it was decided when the run began
        edited = {}
    for option, value in asked.items():
        config.set_path(option, value)
    stretched = _follow_total(before, config, asked)
    config.validate()
    changes = option_changes(before, config)
    if EPOCH in changes and config.reporting.steps_per_epoch == RunLength.of(before).per_epoch:
        del changes[EPOCH]  # as long as they were
    check_changes(changes, config.first_values)
    counters = read_checkpoint(checkpoint / "trainer")[""]["state"]["counters"]
    step, total = int(counters["env_step"] or counters["gradient_step"]), config.reporting.total_steps
    is_shorter = total < before.reporting.total_steps
    if is_shorter and step - total >= RunLength.of(config).per_update:  # more than the last whole collect brought
        raise ValueError(
            f"total_steps={total} is not allowed; the run in {folder.path} has {step} steps already, give as many or "
            "more"
        )
    unasked = {name: change for name, change in edited.items() if name in changes and name not in asked}
    if unasked and not folder.has_recorded(_history_entry(changes, step)):
        warnings.warn(
            f"{folder.path / 'config.json'} is not as it was at the checkpoint; the run goes on with "
            f"{_in_words(unasked)}",
            RuntimeWarning,
            stacklevel=2,
        )
    sources = [source]
    if words := _in_words({path: change for path, change in changes.items() if path not in stretched}):
        sources.append(f"from step {step:,} on {words}")
    if stretched:
        sources.append(f"{', '.join(stretched)} stretched to {total:,} steps")
    has_ended = folder.ended_at() == (counters["env_step"], counters["gradient_step"])
    is_finished = has_ended and step >= total and not counters["in_epoch"]
    reason = counters["stop_reason"]
    if has_ended or reason in ("interrupted", "error", "max_epoch"):
        reason = None
    return Resumption(
        folder,
        checkpoint,
        config,
        step,
        changes,
        tuple(sources),
        is_finished,
        reason,
        drops_replay=bool(damaged),
        trust=trust,
        seen=seen,
        script_objects=script_objects,
    )


def seen_checkpoints(directory: Path) -> tuple[int, tuple[str, ...]]:
    """Return the newest attempt and the names of all checkpoints, newest first: they change where a run is trained."""
    return newest_attempt(directory), tuple(path.name for path in checkpoints_in(directory))


def _folder_and_checkpoint(path: Path) -> tuple[RunFolder, Path | None]:
    """Return the run in a folder; or the run that a checkpoint is of, and the checkpoint."""
    run = path.parent.parent
    if path.parent.name == CHECKPOINTS and (run / CONFIG).exists():
        return RunFolder.open(run), path
    return RunFolder.open(path), None


def _intact_checkpoint(chosen: Path | None, folder: RunFolder, drop_damaged_replay: bool) -> Path:
    """Return the checkpoint to go on from: the one chosen, else the newest intact one.

    `drop_damaged_replay`: one whose replay buffer alone is damaged is as good. Raises `ValueError` where there is none.
    """
    without = [REPLAY] if drop_damaged_replay else []
    if chosen is not None:
        try:
            verify_checkpoint(chosen, without=without)
        except CheckpointError as error:
            raise CheckpointError(f"{error}{_advice_for(chosen)}") from None
        return chosen
    found = newest_checkpoint(folder.checkpoints, without=without)
    if found is not None:
        return found
    advice = next((words for path in checkpoints_in(folder.checkpoints) if (words := _advice_for(path))), "")
    if not advice:
        there = ""
        if folder.error_checkpoint.is_dir():
            there = f" (the state at its error is kept: lockstep resume {folder.error_checkpoint})"
        advice = f"; start a new run{there}"
    raise ValueError(f"{folder.path} has no intact checkpoint to go on from{advice}")


def _advice_for(checkpoint: Path) -> str:
    """Return how to go on from a checkpoint of which only the replay buffer is damaged; "" for any other."""
    try:
        damaged = damaged_files(checkpoint)
    except CheckpointError:
        return ""
    if not damaged or not all(name.startswith(f"{REPLAY}/") for name in damaged):
        return ""
    return (
        f"; of {checkpoint.name} only its replay buffer is damaged ({', '.join(damaged)}): to go on with all the rest "
        "and an empty replay buffer, lockstep resume RUN --drop-damaged-replay, or resume(path, "
        "drop_damaged_replay=True)"
    )


def _follow_total(before: AlgorithmConfig, after: AlgorithmConfig, asked: Mapping[str, Any]) -> list[str]:
    """Fit `after` to its new length; return the paths of the options that were changed for it.

    Epochs stay as long as they were, and schedules that ended with the run are stretched. Options that are asked for,
    or that differ already, stay as they are.
    """
    if after.reporting.total_steps == before.reporting.total_steps:
        return []
    if after.reporting.steps_per_epoch is None and EPOCH not in asked:
        after.reporting(steps_per_epoch=RunLength.of(before).per_epoch)
    old, new = before.training.options(), after.training.options()
    same = {name: new[name] for name in new if old[name] == new[name] and f"training.{name}" not in asked}
    stretched = stretched_schedules(
        same, after.reporting.total_steps / before.reporting.total_steps, ended_at=before.reporting.total_steps
    )
    after.set_section("training", stretched)
    return [f"training.{name}" for name in stretched]
