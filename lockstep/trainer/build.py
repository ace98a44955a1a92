"""`build_trainer`: builds the trainer of a configuration, with or without a run's folder."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.cluster.torchrun import RankInfo
from lockstep.learner.many.reduction import Reducer
from lockstep.options.schedules import Schedule
from lockstep.policy.policy import Policy
from lockstep.tracking import BaseLogger, MultiLogger, RunFolder, prune_checkpoints
from lockstep.tracking.config import LOGGERS, ReportingSection
from lockstep.trainer.callbacks import Callback, check_callbacks
from lockstep.trainer.offline import OfflineTrainer
from lockstep.trainer.offpolicy import OffpolicyTrainer
from lockstep.trainer.onpolicy import OnpolicyTrainer
from lockstep.trainer.ranks import RankSynchronizer, config_on_ranks, join

Trainer = OnpolicyTrainer | OffpolicyTrainer | OfflineTrainer
MAX_VECTOR_STEPS = 64
"""Default limit of the vector steps (one step in each environment) in an off-policy collect, so that an interrupt and
the end of a run never wait for long."""


@dataclass(frozen=True)
class RunLength:
    """Division of a run into updates and epochs, in environment steps (gradient steps for offline training)."""

    total_steps: int
    """Number of steps of the whole run."""
    per_update: int
    """Number of steps in one collect."""
    per_epoch: int
    """Number of steps in an epoch, a multiple of `per_update`."""

    @classmethod
    def of(cls, config: AlgorithmConfig) -> RunLength:
        """Return the length that a configuration describes.

        If the configuration does not set the length of an epoch, it is about a tenth of the run. If possible, the
        number of epochs is chosen so that all epochs are equally long.
        """
        total_steps = config.reporting.total_steps
        per_update = cls._steps_per_update(config)
        steps_per_epoch = config.reporting.steps_per_epoch
        if steps_per_epoch is not None:
            return cls(total_steps, per_update, _round_up(steps_per_epoch, per_update))

        # All epochs are equally long if their number divides the number of updates. The one nearest to 10 is taken.
        num_updates = -(-total_steps // per_update)  # rounded up: a part of a collect is a whole one
        divisors = [n for n in range(5, 21) if num_updates % n == 0]
        if divisors:
            num_epochs = min(divisors, key=lambda n: abs(n - 10))
        else:
            num_epochs = min(10, num_updates)
        updates_per_epoch = -(-num_updates // num_epochs)
        return cls(total_steps, per_update, int(updates_per_epoch * per_update))

    @staticmethod
    def _steps_per_update(config: AlgorithmConfig) -> int:
        """Return the number of steps in one collect.

        By default it is a train batch. For off-policy algorithms it is 1 / `update_per_step`, rounded down to whole
        vector steps, so that about one gradient step follows each collect.
        """
        if config.is_offline:
            return 1
        if config.collects_while_learning:  # an asynchronous algorithm with env runners in other processes
            return config.steps_per_batch

        num_envs = config.env_runners.num_envs
        if config.is_off_policy:
            # The small summand keeps a rounding error from making the quotient one step too short.
            vector_steps_until_due = int(1 / (config.replay.update_per_step * num_envs) + 1e-9)
            default_steps = min(max(1, vector_steps_until_due), MAX_VECTOR_STEPS)
        else:
            default_steps = -(-config.training.train_batch_size // num_envs)
        vector_steps = config.env_runners.rollout_fragment_length or default_steps
        return int(vector_steps * num_envs)

    @property
    def num_epochs(self) -> int:
        """Smallest number of epochs that contains `total_steps`."""
        return -(-self.total_steps // self.per_epoch)

    @property
    def last_update(self) -> int:
        """Number of steps of the run before its last collect."""
        return max(0, -(-self.total_steps // self.per_update) - 1) * self.per_update


def _round_up(number: float, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is not below `number`."""
    return int(-(-number // multiple) * multiple)


def build_trainer(
    config: AlgorithmConfig,
    *,
    folder: RunFolder | None = None,
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
    reducer: Reducer | None = None,
) -> Trainer:
    """Build the trainer that the algorithm of a configuration needs, with its policy and collectors.

    Args:
        config: configuration of the run.
        folder: folder for logs, checkpoints and the best policy. None writes nothing.
        callbacks: further callbacks, after those of the configuration.
        resume: continue the records in `folder` instead of starting new ones.
        reducer: connection to the other ranks if torchrun started several processes. By default it is made here. Only
            the first rank writes.

    Raises:
        ValueError: the configuration has options that exclude each other, or that a run cannot have.
    """
    config = config_on_ranks(config)
    if folder is None:
        # Name a policy for each kind of agent. With a folder, `prepare_run` has done it before it wrote config.json.
        config = config.with_agents()
    config = config.with_groups_of_environment()
    _check_run(config, callbacks)
    if config.framework.compile is not False:
        # The choice of compiling is written into the configuration below, and must not change the user's object. Only
        # its sections are copied: with a deep copy, a copy of a module in `rl_module_spec` would be trained, and not
        # the user's own module.
        config = config.with_sections()
    length = RunLength.of(config)
    _warn_of_zero_rates(config.training.options(), length)

    config.set_num_threads()
    reducer = join(config) if reducer is None else reducer
    written_folder = folder if reducer.rank == 0 else None  # other ranks only read
    if written_folder is not None:
        take_lock(take_over=False, folder=written_folder)

    policy = config.build_policy(reducer=reducer)
    # An error or Ctrl-C before the trainer is complete would leave worker processes and a locked folder behind.
    with ExitStack() as cleanup:
        if folder is not None:
            cleanup.callback(folder.lock.release)
        if not policy.learner_group.is_alone:  # there are learners in other processes
            cleanup.callback(policy.learner_group.shutdown)

        options = _common_options(length, config, policy, callbacks, reducer)
        if written_folder is not None:
            options["logger"] = _make_logger(config.reporting, written_folder, resume=resume)
        trainer = _make_trainer(options, length, config, policy)
        if config.framework.compile is not False:
            configured_choice = config.framework.compile
            config.framework.compile = trainer.choose_compiling(config.allows_compiling())
            if written_folder is not None and config.framework.compile is not configured_choice:
                # A run that is resumed later keeps the choice, and with it identical results.
                written_folder.write_settings(config.named_options())
        cleanup.pop_all()

    if folder is not None:
        _set_savers(trainer, folder, config.checkpointing.num_to_keep, writes=reducer.rank == 0)
    return trainer


def _common_options(
    length: RunLength,
    config: AlgorithmConfig,
    policy: Policy,
    callbacks: Sequence[Callback],
    reducer: Reducer,
) -> dict[str, Any]:
    """Return the keywords that all three trainers take."""
    stop_return = config.evaluation.stop_return
    options: dict[str, Any] = {
        "max_epoch": length.num_epochs,
        "total_steps": config.reporting.total_steps,
        "step_per_epoch": length.per_epoch,
        "test_interval": config.evaluation.evaluation_interval or 1,
        "stop_fn": None if stop_return is None else partial(_has_reached, stop_return),
        "checkpoint_interval": config.checkpointing.checkpoint_interval,
        "callbacks": [*(make() for make in config.callbacks.classes), *callbacks],
    }
    if reducer.world_size > 1:
        options["callbacks"].append(RankSynchronizer(reducer))
    has_test_env = not config.is_offline or config.environment.env is not None
    if config.evaluation.evaluation_interval > 0 and has_test_env:
        options |= _evaluation_options(config, policy)
    return options


def _make_trainer(options: Mapping[str, Any], length: RunLength, config: AlgorithmConfig, policy: Policy) -> Trainer:
    """Return the trainer for the kind of the algorithm: offline, off-policy or on-policy."""
    training = config.training
    if config.is_offline:
        buffer = config.build_offline_data()
        return OfflineTrainer(policy, batch_size=training.train_batch_size, buffer=buffer, **options)

    collect_options: dict[str, Any] = {
        "train_collector": config.build_collector(policy),
        "step_per_collect": length.per_update,
        "reward_metric": config.multi_agent.reward_metric,
    }
    if config.is_off_policy:
        return OffpolicyTrainer(
            policy,
            batch_size=training.train_batch_size,
            update_per_step=config.replay.update_per_step,
            learning_starts=config.replay.learning_starts,
            **collect_options,
            **options,
        )
    return OnpolicyTrainer(
        policy,
        batch_size=training.minibatch_size,
        repeat_per_collect=training.num_epochs,
        **collect_options,
        **options,
    )


def take_lock(take_over: bool, folder: RunFolder) -> None:
    """Lock a run's folder for this process, which trains the run from now on. See `RunLock.take`."""
    rank_info = RankInfo.of_process()
    folder.lock.take(take_over=take_over, job=rank_info.run_id, restarts=rank_info.num_restarts)


def _check_run(config: AlgorithmConfig, callbacks: Sequence[Callback]) -> None:
    """Raise `ValueError` for options that a run cannot have."""
    config.validate()
    # The range of an option also holds for the values of its schedule, which are checked at ten steps of the run.
    steps = [config.reporting.total_steps * tenths // 10 for tenths in range(1, 11)]
    for section in config.sections.values():
        section.check_schedules(steps)
    check_callbacks(callbacks)
    if not config.is_offline and config.offline_data.input_ is not None:
        raise ValueError(
            f"offline_data.input_ is set, and {config.algorithm} collects its own data; leave it out, or train "
            "config.build_policy() with lockstep.OfflineTrainer(policy, buffer=...)"
        )


def _evaluation_options(config: AlgorithmConfig, policy: Policy) -> dict[str, Any]:
    """Return the keywords with which a trainer evaluates as configured."""
    section = config.evaluation
    is_parallel = section.evaluation_parallel_to_training
    # A parallel evaluation must not share weights with training.
    evaluated_policy = copy.deepcopy(policy) if is_parallel else policy
    unit = "step" if section.evaluation_duration_unit == "timesteps" else "episode"
    return {
        "test_collector": config.build_test_collector(evaluated_policy),
        f"{unit}_per_test": section.evaluation_duration,
        "evaluation_parallel_to_training": is_parallel,
        "custom_evaluation_function": section.custom_evaluation_function,
    }


def _has_reached(threshold: float, score: float) -> bool:
    return score >= threshold


def _set_savers(trainer: Trainer, folder: RunFolder, num_to_keep: int, *, writes: bool) -> None:
    """Let a trainer write checkpoints and the best policy into the folder of a run.

    Of several ranks only one `writes`. The others take part in saving, because each holds a part of the state.
    """

    # A checkpoint carries the best policy so far (`carried_best`), so that a run that continues from it has both.
    def save_checkpoint(epoch: int, env_step: int, gradient_step: int) -> Path | None:
        if not writes:
            trainer.checkpoint_folders()  # sends this rank's part of the state to the one that writes
            return None
        folder.lock.check()
        if trainer.stop_reason == "error":
            # The state may be inconsistent or contain NaN weights: it must not replace a good checkpoint.
            return trainer.save_to_path(folder.error_checkpoint, carried=folder.carried_best())
        path = trainer.save_to_path(folder.checkpoint_path(trainer.position), carried=folder.carried_best())
        prune_checkpoints(folder.checkpoints, num_to_keep)
        return path

    def save_best(policy: Policy) -> None:
        folder.lock.check()
        policy.save_to_path(folder.best_policy)

    trainer.save_checkpoint_fn = save_checkpoint
    trainer.save_best_fn = save_best if writes else None
    if writes:
        trainer.checkpoint_directory = folder.checkpoints
        trainer.lock = folder.lock
        trainer.logger.set_guard(folder.lock.check)


def rescale_schedules(
    options: Mapping[str, Any], factor: float, *, ended_at: int | None = None
) -> dict[str, list[list[float]]]:
    """Return the schedules among options, with steps scaled to a run of another length.

    Args:
        options: options by name. Those that are not schedules are left out.
        factor: new length of the run divided by the old one.
        ended_at: take only schedules whose last point is at this step. None takes all.
    """
    schedules = {}
    for name, value in options.items():
        if not isinstance(value, list) or len(value) < 2 or not all(isinstance(point, list | tuple) for point in value):
            continue
        if ended_at is None or math.isclose(value[-1][0], ended_at):
            schedules[name] = [[step * factor, level] for step, level in value]
    return schedules


def _warn_of_zero_rates(options: Mapping[str, Any], length: RunLength) -> None:
    """Warn about a learning rate that is 0 before the last update."""
    last_update = length.last_update
    for name, value in options.items():
        if value is None or last_update == 0 or not (name == "lr" or name.endswith("_lr")):
            continue
        if Schedule(value, f"training.{name}")(last_update) == 0.0:
            warnings.warn(
                f"training.{name} is 0 at step {last_update:,} of {length.total_steps:,}, where updates are still to "
                "come: they will change nothing. Give a schedule that ends with the run, or a shorter run",
                RuntimeWarning,
                stacklevel=3,
            )


def _make_logger(section: ReportingSection, folder: RunFolder, *, resume: bool) -> BaseLogger:
    """Make the configured loggers, which write into the run's folder. W&B and MLflow use its name for the run."""
    run = folder.path
    defaults: dict[str, dict[str, Any]] = {
        "jsonl": {"path": folder.metrics_path, "resume": resume},
        "tensorboard": {"log_dir": run / "tensorboard"},
        "wandb": {"name": run.name, "dir": run, "config": folder.config},
        "mlflow": {"run_name": run.name, "config": folder.config},
    }
    loggers = []
    for name in section.loggers:
        options = {**defaults[name], **section.logger_config.get(name, {})}
        loggers.append(LOGGERS[name](**options))
    return loggers[0] if len(loggers) == 1 else MultiLogger(loggers)
