"""A run and its folder: how it begins, ends and goes on."""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.algorithms import get_config
from lockstep.algorithms.config import AlgorithmConfig
from lockstep.algorithms.learning import policy_from_checkpoint
from lockstep.algorithms.multi_agent_policy import AnyPolicy
from lockstep.algorithms.plain_values import named_options
from lockstep.state.checkpoint import newest_checkpoint, verify_checkpoint
from lockstep.state.values import check_whole
from lockstep.tracking import RunFolder, plot_runs
from lockstep.tracking.statistics import EpochStats, InfoStats, merge_training_stats
from lockstep.trainer.build import Trainer, build_trainer, epoch_length, num_epochs, restore_trainer, steps_per_update
from lockstep.trainer.callbacks import Callback


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
    config: AlgorithmConfig, root: str | Path = "runs", *, callbacks: Sequence[Callback] = ()
) -> tuple[Trainer, RunFolder]:
    """The trainer of a new run and its folder. Where the trainer cannot be built, no folder is left."""
    config.validate()
    parents = [Path(root).absolute(), *Path(root).absolute().parents]
    made = [one for one in parents if not one.exists()]
    folder = new_folder(config, root)
    try:
        return build_trainer(config, folder=folder, callbacks=callbacks), folder
    except BaseException:
        shutil.rmtree(folder.path, ignore_errors=True)
        with contextlib.suppress(OSError):  # another run has begun in it
            for one in made:
                one.rmdir()
        raise


def new_folder(config: AlgorithmConfig, root: str | Path) -> RunFolder:
    """A new run's folder with its `config.json`."""
    env = config.env
    name = "offline" if env is None else env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
    return RunFolder.create(root, algo=config.algorithm, env=name, seed=config.seed, config=named_options(config))


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


def resume(path: str | Path, *, total_steps: int | None = None, callbacks: Sequence[Callback] = ()) -> TrainResult:
    """Continues the run in a folder from its newest intact checkpoint, bit by bit."""
    trainer, folder = load_trainer(path, total_steps=total_steps, callbacks=callbacks)
    return run_in_folder(trainer, folder)


def load_trainer(
    path: str | Path, *, total_steps: int | None = None, callbacks: Sequence[Callback] = ()
) -> tuple[Trainer, RunFolder]:
    """The trainer of a run's folder at its newest intact checkpoint. `ValueError` where there is none, or where it has
    more epochs than `total_steps` make."""
    total_steps = check_whole("total_steps", total_steps, 1, optional=True)
    folder = RunFolder.open(path)
    config = get_config(folder.algo).update_from_dict(folder.config)
    if total_steps is not None:
        config.reporting(total_steps=total_steps, steps_per_epoch=_epoch_of(config))
    checkpoint = folder.newest_checkpoint()
    if checkpoint is None:
        raise ValueError(f"{folder.path} has no intact checkpoint to go on from; start a new run")
    counters = verify_checkpoint(checkpoint)["metadata"]
    done = counters["env_step"] or counters["gradient_step"]
    if total_steps is not None and total_steps < done and num_epochs(config) < counters["epoch"]:
        raise ValueError(
            f"total_steps={total_steps} is not allowed; the run in {folder.path} has {done} steps already, give as "
            "many or more"
        )
    trainer = build_trainer(config, folder=folder, callbacks=callbacks, resume=True)
    try:
        restore_trainer(trainer, checkpoint)
    except BaseException:
        close_environments(trainer)
        raise
    return trainer, folder


def _epoch_of(config: AlgorithmConfig) -> int:
    """The length of an epoch as the run began, which a new total must not change."""
    return epoch_length(config, steps_per_update(config))


def find_policy(path: str | Path) -> Path:
    """The checkpoint that `load_policy` reads: a run's best policy, else its newest checkpoint; or `path` itself."""
    path = Path(path)
    if (path / "config.json").exists() and (path / "best").exists():
        return newest_checkpoint(path / "best") or newest_checkpoint(path / "checkpoints") or path
    return path


def load_policy(path: str | Path) -> AnyPolicy:
    """The best policy of a run's folder, or the policy in a checkpoint."""
    return policy_from_checkpoint(find_policy(path))
