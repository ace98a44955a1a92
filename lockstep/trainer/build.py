"""`build_trainer`: from a configuration to a trainer, with or without a run's folder."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.cluster.torchrun import Place
from lockstep.learner.many.reduction import Reducer
from lockstep.options.schedules import Schedule
from lockstep.policy.policy import Policy
from lockstep.tracking import BaseLogger, MultiLogger, RunFolder, prune_checkpoints
from lockstep.tracking.config import LOGGERS, ReportingSection
from lockstep.trainer.callbacks import Callback, check_callbacks
from lockstep.trainer.offline import OfflineTrainer
from lockstep.trainer.offpolicy import OffpolicyTrainer
from lockstep.trainer.onpolicy import OnpolicyTrainer
from lockstep.trainer.ranks import InStep, config_on_ranks, join

Trainer = OnpolicyTrainer | OffpolicyTrainer | OfflineTrainer
MOST_VECTOR_STEPS = 64
"""In one off-policy collect by default, so that an interrupt and the end of a run never wait for long."""


@dataclass(frozen=True)
class RunLength:
    """How a run is divided into updates and epochs, in environment steps (offline: gradient steps)."""

    total_steps: int
    per_update: int
    """steps in one collect"""
    per_epoch: int
    """steps in an epoch, a multiple of `per_update`"""

    @classmethod
    def of(cls, config: AlgorithmConfig) -> RunLength:
        """Return the length that a configuration asks for.

        `per_update`: as configured, else a train batch (off-policy: the vector steps that make one gradient step due,
        64 at most; offline: 1). `per_epoch`: as configured, else about a tenth of the run; where it can be, the epochs
        divide the run, so that it ends with the update that reaches `total_steps`.
        """
        total, num_envs = config.reporting.total_steps, config.env_runners.num_envs
        if config.is_offline:
            per_update = 1
        elif config.collects_while_learning:
            per_update = config.steps_per_batch
        else:
            if config.is_off_policy:
                due = int(1 / (config.replay.update_per_step * num_envs) + 1e-9)
                default = min(max(1, due), MOST_VECTOR_STEPS)
            else:
                default = -(-config.training.train_batch_size // num_envs)
            per_update = int((config.env_runners.rollout_fragment_length or default) * num_envs)
        if config.reporting.steps_per_epoch is not None:
            return cls(total, per_update, int(-(-config.reporting.steps_per_epoch // per_update) * per_update))
        num_updates = -(-total // per_update)
        divisors = [n for n in range(5, 21) if num_updates % n == 0]
        num_epochs = min(divisors, key=lambda n: abs(n - 10)) if divisors else min(10, num_updates)
        return cls(total, per_update, int(-(-num_updates // num_epochs) * per_update))

    @property
    def num_epochs(self) -> int:
        """Epochs of a run: as few as have `total_steps`."""
        return -(-self.total_steps // self.per_epoch)

    @property
    def last_update(self) -> int:
        """Steps before the last update begins to collect."""
        return max(0, -(-self.total_steps // self.per_update) - 1) * self.per_update


def build_trainer(
    config: AlgorithmConfig,
    *,
    folder: RunFolder | None = None,
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
    reducer: Reducer | None = None,
) -> Trainer:
    """Build the trainer that the algorithm of a configuration needs, with its policy and collectors.

    With `folder`: loggers, checkpoints and the best policy are written there; `resume` continues its records. Where
    torchrun started this process it is one of several ranks, which `reducer` joins (None: they meet here); the first
    of them writes.
    """
    config = config_on_ranks(config)
    config = config.with_agents() if folder is None else config  # else `prepare_run` did
    _check_run(config, callbacks)
    if config.framework.compile is not False:
        # The choice below is written into the configuration, and the user's own must not change. Its objects are kept:
        # a module in `rl_module_spec` is trained itself, not a copy.
        config = config.with_sections()
    length = RunLength.of(config)
    _warn_of_zero_rates(config.training.options(), length)
    config.set_num_threads()
    reducer = join(config) if reducer is None else reducer
    if folder is not None and reducer.rank == 0:
        take_lock(False, folder)
    policy, training, evaluation = config.build_policy(reducer=reducer), config.training, config.evaluation
    evaluate = evaluation.evaluation_interval > 0 and not (config.is_offline and config.environment.env is None)
    try:
        options: dict[str, Any] = {
            "max_epoch": length.num_epochs,
            "total_steps": config.reporting.total_steps,
            "step_per_epoch": length.per_epoch,
            "test_interval": evaluation.evaluation_interval or 1,
            "stop_fn": None if evaluation.stop_return is None else partial(_has_reached, evaluation.stop_return),
            "checkpoint_interval": config.checkpointing.checkpoint_interval,
            "callbacks": [*(make() for make in config.callbacks.classes), *callbacks],
        }
        if reducer.world_size > 1:
            options["callbacks"].append(InStep(reducer))
        if evaluate:
            options |= _evaluation_options(config, policy)
        if folder is not None and reducer.rank == 0:
            options["logger"] = _make_logger(config.reporting, folder, resume=resume)
        if config.is_offline:
            options["buffer"] = config.build_offline_data()
            trainer: Trainer = OfflineTrainer(policy, batch_size=training.train_batch_size, **options)
        else:
            options |= {"train_collector": config.build_collector(policy), "step_per_collect": length.per_update}
            options["reward_metric"] = config.multi_agent.reward_metric
            if config.is_off_policy:
                replay = config.replay
                options |= {"update_per_step": replay.update_per_step, "learning_starts": replay.learning_starts}
                trainer = OffpolicyTrainer(policy, batch_size=training.train_batch_size, **options)
            else:
                options["repeat_per_collect"] = training.num_epochs
                trainer = OnpolicyTrainer(policy, batch_size=training.minibatch_size, **options)
        if config.framework.compile is not False:
            asked = config.framework.compile
            config.framework.compile = trainer.choose_compiling(config.allows_compiling())
            if folder is not None and reducer.rank == 0 and config.framework.compile is not asked:
                folder.write_settings(config.named_options())  # a run that is resumed later keeps the choice
    except BaseException:
        if not policy.learner_group.is_alone:
            policy.learner_group.shutdown()
        if folder is not None:
            folder.lock.release()
        raise
    if folder is not None:
        _keep_files(trainer, folder, config.checkpointing.num_to_keep, writes=reducer.rank == 0)
    return trainer


def take_lock(take_over: bool, folder: RunFolder) -> None:
    """Take the lock of a run's folder for this process, which trains the run from now on. See `RunLock.take`."""
    place = Place.of_process()
    folder.lock.take(take_over=take_over, job=place.run_id, restarts=place.num_restarts)


def _check_run(config: AlgorithmConfig, callbacks: Sequence[Callback]) -> None:
    """Raise `ValueError` for options that a run cannot have."""
    config.validate()
    for section in config.sections.values():
        section.check_schedules([config.reporting.total_steps * tenths // 10 for tenths in range(1, 11)])
    check_callbacks(callbacks)
    if not config.is_offline and config.offline_data.input_ is not None:
        raise ValueError(
            f"offline_data.input_ is set, and {config.algorithm} collects its own data; leave it out, or train "
            "config.build_policy() with lockstep.OfflineTrainer(policy, buffer=...)"
        )


def _evaluation_options(config: AlgorithmConfig, policy: Policy) -> dict[str, Any]:
    """Return what a trainer needs to evaluate as configured. Beside training a copy of the policy is evaluated."""
    section = config.evaluation
    beside_training = section.evaluation_parallel_to_training
    unit = "step" if section.evaluation_duration_unit == "timesteps" else "episode"
    return {
        "test_collector": config.build_test_collector(copy.deepcopy(policy) if beside_training else policy),
        f"{unit}_per_test": section.evaluation_duration,
        "evaluation_parallel_to_training": beside_training,
        "custom_evaluation_function": section.custom_evaluation_function,
    }


def _has_reached(wanted: float, score: float) -> bool:
    return score >= wanted


def _keep_files(trainer: Trainer, folder: RunFolder, num_to_keep: int, *, writes: bool) -> None:
    """Have checkpoints and the best policy written into the folder of a run.

    Of several ranks one `writes`; the others tell it their part of the state.
    """

    def save_checkpoint(epoch: int, env_step: int, gradient_step: int) -> Path | None:
        if not writes:
            trainer.checkpoint_folders()
            return None
        folder.lock.check()
        if trainer.stop_reason == "error":
            # It may be torn, or hold weights that are no numbers: it must not push out a healthy one.
            return trainer.save_to_path(folder.error_checkpoint, carried=folder.carried_best())
        path = trainer.save_to_path(folder.checkpoint_path(trainer.position), carried=folder.carried_best())
        prune_checkpoints(folder.checkpoints, num_to_keep)
        return path

    def save_best(policy: Policy) -> None:
        folder.lock.check()
        policy.save_to_path(folder.best_policy)

    if writes:
        trainer.checkpoint_directory = folder.checkpoints
        trainer.lock = folder.lock
        trainer.logger.set_guard(folder.lock.check)
    trainer.save_checkpoint_fn, trainer.save_best_fn = save_checkpoint, save_best if writes else None


def stretched_schedules(
    options: Mapping[str, Any], factor: float, *, ended_at: int | None = None
) -> dict[str, list[list[float]]]:
    """Return those options that are schedules, their steps multiplied so that they span a run of another length.

    `ended_at`: only those whose last point is at this step.
    """
    found = {}
    for name, value in options.items():
        if not isinstance(value, list) or len(value) < 2 or not all(isinstance(part, list | tuple) for part in value):
            continue
        if ended_at is None or math.isclose(value[-1][0], ended_at):
            found[name] = [[step * factor, level] for step, level in value]
    return found


def _warn_of_zero_rates(options: Mapping[str, Any], length: RunLength) -> None:
    """Warn where a learning rate is 0 before the last update."""
    before_last = length.last_update
    for name, value in options.items():
        if value is None or before_last == 0 or not (name == "lr" or name.endswith("_lr")):
            continue
        if Schedule(value, f"training.{name}")(before_last) == 0.0:
            warnings.warn(
                f"training.{name} is 0 at step {before_last:,} of {length.total_steps:,}, where updates are still to "
                "come: they will change nothing. Give a schedule that ends with the run, or a shorter run",
                RuntimeWarning,
                stacklevel=3,
            )


def _make_logger(section: ReportingSection, folder: RunFolder, *, resume: bool) -> BaseLogger:
    """Make the loggers that are configured, writing into the run's folder (W&B and MLflow: under its name)."""
    run = folder.path
    places: dict[str, dict[str, Any]] = {
        "jsonl": {"path": folder.metrics_path, "resume": resume},
        "tensorboard": {"log_dir": run / "tensorboard"},
        "wandb": {"name": run.name, "dir": run, "config": folder.config},
        "mlflow": {"run_name": run.name, "config": folder.config},
    }
    loggers = [LOGGERS[name](**{**places[name], **section.logger_config.get(name, {})}) for name in section.loggers]
    return loggers[0] if len(loggers) == 1 else MultiLogger(loggers)
