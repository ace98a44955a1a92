"""A run and its folder: how it begins, ends and goes on."""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lockstep.algorithms import get_config
from lockstep.algorithms.config import AlgorithmConfig
from lockstep.algorithms.learning import policy_from_checkpoint
from lockstep.algorithms.multi_agent_policy import AnyPolicy
from lockstep.algorithms.plain_values import named_options
from lockstep.algorithms.starting import start_from
from lockstep.state.checkpoint import newest_checkpoint, read_checkpoint
from lockstep.state.checks import check_whole
from lockstep.state.schedules import ConfiguredValueWarning
from lockstep.tracking import RunFolder, plot_runs
from lockstep.tracking.statistics import EpochStats, InfoStats, merge_training_stats
from lockstep.trainer.build import Trainer, build_trainer, epoch_length, restore_trainer, steps_per_update
from lockstep.trainer.callbacks import Callback
from lockstep.trainer.changes import (
    EPOCH,
    TOTAL,
    Changes,
    changes_between,
    check_changes,
    follow_total,
    history_entry,
    in_words,
)


@dataclass(frozen=True)
class TrainResult:
    """What a run gave."""

    policy: AnyPolicy
    info: InfoStats
    path: Path
    """the run's folder"""
    sources: tuple[str, ...] = ()
    """where the settings come from, in words: the recipe or the defaults first (of `lockstep.train`)"""

    @property
    def history(self) -> tuple[EpochStats, ...]:
        """One entry for each epoch."""
        return self.info.history


def prepare_run(
    config: AlgorithmConfig,
    root: str | Path = "runs",
    *,
    callbacks: Sequence[Callback] = (),
    init_from: str | Path | None = None,
) -> tuple[Trainer, RunFolder]:
    """Return the trainer of a new run and its folder. Where the trainer cannot be built, no folder is left.

    `init_from`: a run (its best policy, as for `load_policy`) or a checkpoint whose weights and connectors' statistics
    the policy begins with; all else is new.
    """
    config.validate()
    parents = [Path(root).absolute(), *Path(root).absolute().parents]
    made = [one for one in parents if not one.exists()]
    source = None if init_from is None else find_policy(init_from).absolute()
    folder = new_folder(config, root, init_from=source)
    try:
        trainer = build_trainer(config, folder=folder, callbacks=callbacks)
        if source is not None:
            try:
                start_from(trainer.policy, source)
            except BaseException:
                close_environments(trainer)
                raise
        return trainer, folder
    except BaseException:
        shutil.rmtree(folder.path, ignore_errors=True)
        with contextlib.suppress(OSError):  # another run has begun in it
            for one in made:
                one.rmdir()
        raise


def new_folder(config: AlgorithmConfig, root: str | Path, *, init_from: Path | None = None) -> RunFolder:
    """A new run's folder with its `config.json`."""
    env = config.env
    name = "offline" if env is None else env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
    options, source = named_options(config), None if init_from is None else str(init_from)
    return RunFolder.create(root, algo=config.algorithm, env=name, seed=config.seed, config=options, init_from=source)


def run_in_folder(trainer: Trainer, folder: RunFolder) -> TrainResult:
    """Runs to the end; writes `summary.json` and `curve.png` and ends the environments whatever ends the run."""
    try:
        info = trainer.run()
    except BaseException as error:
        try:
            write_summary(trainer, folder)
        except Exception as second:  # a full disk, say: what ended the run is what matters
            error.add_note(f"the summary could not be written either: {second}")
        raise
    else:
        write_summary(trainer, folder)
        trainer.policy.bring_home()
    finally:
        close_environments(trainer)
    return TrainResult(trainer.policy, info, folder.path)


def close_environments(trainer: Trainer) -> None:
    """Ends the processes and the environments that the run made; one that the caller handed over stays open."""
    if isinstance(trainer.policy.config.env, str) or callable(trainer.policy.config.env):
        for collector in (trainer.train_collector, trainer.test_collector):
            if collector is not None:
                collector.close()
    if trainer.policy.learner_group.is_remote:  # an error ended the run, or its learners are lost
        trainer.policy.learner_group.shutdown()


def write_summary(trainer: Trainer, folder: RunFolder) -> None:
    """Returns, speed by stage, how the run ended; and the curve where matplotlib is installed."""
    info = trainer.info()
    timing = info.timing
    trained = [epoch.training_stat for epoch in trainer.history if epoch.training_stat is not None]
    last = None if trainer.last_test is None else trainer.last_test.returns_stat
    stages = {
        "environment": timing.env_time,
        "acting": timing.act_time,
        "storing": max(0.0, timing.train_time_collect - timing.env_time - timing.act_time),
        "update": timing.train_time_update,
        "evaluation": timing.test_time,
    }
    folder.write_summary(
        {
            **info.to_dict(),
            "final_return": None if last is None else last.mean,
            "final_return_std": None if last is None else last.std,
            "final_return_step": trainer.last_test_at,
            "steps_per_second": timing.update_speed,
            "seconds_by_stage": stages,
            "update_seconds_by_stage": merge_training_stats(trained).stage_seconds,
        }
    )
    try:
        plot_runs([folder.path], folder.curve_path)
    except (ImportError, ValueError):
        return  # no matplotlib, or no evaluation to draw
    except OSError as error:
        folder.curve_path.unlink(missing_ok=True)
        warnings.warn(f"{folder.curve_path} could not be written: {error}", stacklevel=2)


def resume(
    path: str | Path,
    *,
    total_steps: int | None = None,
    settings: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
) -> TrainResult:
    """Continue the run in a folder from its newest intact checkpoint, bit by bit.

    `total_steps`: a new length of the whole run. `settings`: other options by path from here on,
    `{"training.lr": 1e-4}`; so are those edited in the run's `config.json`. Raises `ValueError`, changing nothing, for
    options that a run keeps, and for less steps than it has. One that has all its steps trains no more.
    """
    resumption = prepare_resume(path, total_steps=total_steps, settings=settings)
    return replace(run_in_folder(resumption.build(callbacks), resumption.folder), sources=resumption.sources)


def load_trainer(
    path: str | Path,
    *,
    total_steps: int | None = None,
    settings: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
) -> tuple[Trainer, RunFolder]:
    """Return the trainer of a run's folder at its newest intact checkpoint, and the folder; see `resume`."""
    resumption = prepare_resume(path, total_steps=total_steps, settings=settings)
    return resumption.build(callbacks), resumption.folder


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

    def build(self, callbacks: Sequence[Callback] = ()) -> Trainer:
        """Return the trainer, restored; note the changes in the run's `config.json`."""
        trainer = build_trainer(self.config, folder=self.folder, callbacks=callbacks, resume=True)
        try:
            with warnings.catch_warnings():
                if self.changes:  # they are in the sources
                    warnings.simplefilter("ignore", ConfiguredValueWarning)
                restore_trainer(trainer, self.checkpoint)
            if self.changes:
                self.folder.record_changes(named_options(self.config), history_entry(self.changes, self.step))
        except BaseException:
            close_environments(trainer)
            raise
        trainer.stop_reason = self.end_reason
        return trainer


def prepare_resume(
    path: str | Path, *, total_steps: int | None = None, settings: Mapping[str, Any] | None = None
) -> Resumption:
    """Decide how the run in a folder goes on, changing nothing; see `resume`."""
    total_steps, given = check_whole("total_steps", total_steps, 1, optional=True), dict(settings or {})
    folder = RunFolder.open(path)
    checkpoint = folder.newest_checkpoint()
    if checkpoint is None:
        raise ValueError(f"{folder.path} has no intact checkpoint to go on from; start a new run")
    saved = read_checkpoint(checkpoint / "policy")[""]["state"]["config"]
    before, config = (get_config(folder.algo).update_from_dict(options) for options in (saved, folder.config))
    edited = changes_between(before, config)
    if total_steps is not None:
        given[TOTAL] = total_steps
    for option, value in given.items():
        config.set_path(option, value)
    stretched = follow_total(before, config, given)
    config.validate()
    changes = changes_between(before, config)
    if EPOCH in changes and config.steps_per_epoch == epoch_length(before, steps_per_update(before)):
        del changes[EPOCH]  # as long as they were
    check_changes(changes, config)
    state = read_checkpoint(checkpoint / "trainer")[""]["state"]
    step, is_finished, reason = _check_steps(folder, config, state)
    unasked = {name: change for name, change in edited.items() if name in changes and name not in given}
    if unasked and not folder.has_recorded(history_entry(changes, step)):
        warnings.warn(
            f"{folder.path / 'config.json'} is not as it was at the checkpoint; the run goes on with "
            f"{in_words(unasked)}",
            RuntimeWarning,
            stacklevel=2,
        )
    sources = ["the run's config.json"]
    said = {name: change for name, change in changes.items() if name not in stretched}
    if said:
        sources.append(f"from step {step:,} on {in_words(said)}")
    if stretched:
        sources.append(f"{', '.join(stretched)} stretched to {config.total_steps:,} steps")
    return Resumption(folder, checkpoint, config, step, changes, tuple(sources), is_finished, reason)


def _check_steps(folder: RunFolder, config: AlgorithmConfig, state: Mapping[str, Any]) -> tuple[int, bool, str | None]:
    """Return the steps of the checkpoint, whether the run is finished, and the reason for which it had ended if it was
    killed before its end was noted. Raises `ValueError` for fewer steps than it has.
    """
    counters, reason = state["counters"], state["stop_reason"]
    step = int(counters["env_step"] or counters["gradient_step"])
    if config.total_steps < step and not _rounds_up_to(config, step):
        raise ValueError(
            f"total_steps={config.total_steps} is not allowed; the run in {folder.path} has {step} steps already, give "
            "as many or more"
        )
    has_ended = _has_ended(folder, counters)
    complete = step >= config.total_steps and not state.get("under_way")
    if has_ended or reason in ("interrupted", "error", "max_epoch"):
        reason = None
    return step, complete and has_ended, reason


def _rounds_up_to(config: AlgorithmConfig, step: int) -> bool:
    """Whether a run of `total_steps` in whole collects has so many."""
    return step - config.total_steps < steps_per_update(config)


def _has_ended(folder: RunFolder, counters: Mapping[str, Any]) -> bool:
    """Whether the run's summary is that of its end, and of this checkpoint."""
    try:
        summary = folder.read_summary()
    except ValueError:
        return False
    same = all(summary.get(name) == counters[of] for name, of in (("train_step", "env_step"), ("gradient_step",) * 2))
    return same and summary.get("stop_reason") not in ("interrupted", "error")


def find_policy(path: str | Path) -> Path:
    """The checkpoint that `load_policy` reads: a run's best policy, else its newest checkpoint; or `path` itself."""
    path = Path(path)
    if (path / "config.json").exists() and (path / "best").exists():
        return newest_checkpoint(path / "best") or newest_checkpoint(path / "checkpoints") or path
    return path


def load_policy(path: str | Path) -> AnyPolicy:
    """The best policy of a run's folder, or the policy in a checkpoint."""
    return policy_from_checkpoint(find_policy(path))
