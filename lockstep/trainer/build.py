"""From a configuration to a trainer, with or without a run's folder."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from lockstep.algorithms.asynchronous import collects_while_learning, steps_per_batch
from lockstep.algorithms.build import build_test_collector, set_num_threads
from lockstep.algorithms.config import AlgorithmConfig
from lockstep.algorithms.multi_agent_policy import AnyPolicy
from lockstep.state.schedules import Schedule
from lockstep.tracking import (
    BaseLogger,
    JsonlLogger,
    LazyLogger,
    MLflowLogger,
    MultiLogger,
    RunFolder,
    TensorboardLogger,
    WandbLogger,
)
from lockstep.trainer.base import BaseTrainer
from lockstep.trainer.callbacks import Callback
from lockstep.trainer.checkpoints import restore_trainer, save_trainer
from lockstep.trainer.checks import check_callbacks
from lockstep.trainer.offline import OfflineTrainer
from lockstep.trainer.offpolicy import OffpolicyTrainer
from lockstep.trainer.onpolicy import OnpolicyTrainer

__all__ = ["build_onpolicy_trainer", "build_trainer", "restore_trainer", "save_trainer"]

Trainer = OnpolicyTrainer | OffpolicyTrainer | OfflineTrainer


def build_trainer(
    config: AlgorithmConfig,
    *,
    folder: RunFolder | None = None,
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
) -> Trainer:
    """Policy, collectors and trainer of a configuration. With `folder`: loggers, checkpoints and the best policy.

    The trainer is the one that the algorithm needs.
    """
    config.validate()
    for section in config.sections.values():
        section.check_schedules([config.total_steps * tenths // 10 for tenths in range(1, 11)])
    check_callbacks(callbacks)
    if not config.is_offline and config.sections["offline_data"].input_ is not None:
        raise ValueError(
            f"offline_data.input_ is set, and {config.algorithm} collects its own data; leave it out, or train "
            "config.build_policy() with lockstep.OfflineTrainer(policy, buffer=...)"
        )
    tell_zero_rate(config)
    set_num_threads(config)
    policy = config.build_policy()
    try:
        return _trainer_of(config, policy, folder, callbacks, resume)
    except BaseException:
        if policy.learner_group.is_remote:
            policy.learner_group.shutdown()
        raise


def _trainer_of(
    config: AlgorithmConfig, policy: Any, folder: RunFolder | None, callbacks: Sequence[Callback], resume: bool
) -> Trainer:
    per_update = steps_per_update(config)
    per_epoch = epoch_length(config, per_update)
    evaluate = config.evaluation_interval > 0 and not (config.is_offline and config.env is None)
    stop_return = config.stop_return
    options: dict[str, Any] = {
        "max_epoch": num_epochs(config),
        "total_steps": config.total_steps,
        "test_collector": build_test_collector(config, policy) if evaluate else None,
        "step_per_epoch": per_epoch,
        "episode_per_test": config.evaluation_episodes if evaluate else None,
        "test_interval": config.evaluation_interval or 1,
        "stop_fn": None if stop_return is None else lambda score: score >= stop_return,
        "logger": LazyLogger() if folder is None else make_logger(config, folder, resume=resume),
        "checkpoint_interval": config.checkpoint_interval,
        "callbacks": [*(make() for make in config.sections["callbacks"].classes), *callbacks],
    }
    if not config.is_offline:
        options |= {"train_collector": config.build_collector(policy), "step_per_collect": per_update}
        options["reward_metric"] = config.reward_metric
    trainer: Trainer
    if config.is_offline:
        data = config.build_offline_data()
        trainer = OfflineTrainer(policy, batch_size=config.train_batch_size, buffer=data, **options)
    elif config.is_off_policy:
        options |= {"update_per_step": config.update_per_step, "learning_starts": config.learning_starts}
        trainer = OffpolicyTrainer(policy, batch_size=config.train_batch_size, **options)
    else:
        options["repeat_per_collect"] = config.num_epochs
        trainer = OnpolicyTrainer(policy, batch_size=config.minibatch_size, **options)
    if folder is not None:
        keep_files(trainer, folder, config.num_to_keep)
    return trainer


def build_onpolicy_trainer(config: AlgorithmConfig, **options: Any) -> OnpolicyTrainer:
    """As `build_trainer`; `ValueError` for an algorithm that learns from a replay buffer."""
    if config.is_off_policy or config.is_offline:
        what = "a replay buffer" if config.is_off_policy else "data that are there already"
        raise ValueError(f"{config.algorithm} learns from {what}; use build_trainer")
    trainer = build_trainer(config, **options)
    assert isinstance(trainer, OnpolicyTrainer)
    return trainer


def steps_per_update(config: AlgorithmConfig) -> int:
    """Environment steps in one collect: as configured, else a train batch (off-policy: one vector step; offline: 1)."""
    if config.is_offline:
        return 1
    if collects_while_learning(config):
        return steps_per_batch(config)
    num_envs = config.sections["env_runners"].num_envs
    default = 1 if config.is_off_policy else -(-config.train_batch_size // num_envs)
    return int((config.rollout_fragment_length or default) * num_envs)


def epoch_length(config: AlgorithmConfig, per_update: int) -> int:
    """Environment steps (offline: gradient steps) in an epoch, a multiple of `per_update`: as configured, or about a
    tenth of the run.

    Where it can be, the epochs divide the run, so that it ends with the update that reaches `total_steps`.
    """
    if config.steps_per_epoch is not None:
        return int(-(-config.steps_per_epoch // per_update) * per_update)
    num_updates = -(-config.total_steps // per_update)
    epochs = [n for n in range(5, 21) if num_updates % n == 0]
    best = min(epochs, key=lambda n: abs(n - 10)) if epochs else min(10, num_updates)
    return int(-(-num_updates // best) * per_update)


def num_epochs(config: AlgorithmConfig) -> int:
    """Epochs of a run: as few as have `total_steps`."""
    return -(-config.total_steps // epoch_length(config, steps_per_update(config)))


def stretch_schedules(
    config: AlgorithmConfig, factor: float, names: Sequence[str] | None = None, *, ended_at: int | None = None
) -> list[str]:
    """Multiply the steps of the training section's schedules, so that they span a run of another length; return their
    paths.

    `names`: of these options only. `ended_at`: only those whose last point is at this step.
    """
    section, changed = config.sections["training"], []
    for name in (f.name for f in fields(section)) if names is None else names:
        value = getattr(section, name)
        if not isinstance(value, list) or len(value) < 2 or not all(isinstance(part, list | tuple) for part in value):
            continue
        if ended_at is None or math.isclose(value[-1][0], ended_at):
            setattr(section, name, [[step * factor, level] for step, level in value])
            changed.append(f"training.{name}")
    return changed


def tell_zero_rate(config: AlgorithmConfig) -> None:
    """Warn where a learning rate is 0 before the last update."""
    per_update, section = steps_per_update(config), config.sections["training"]
    before_last = max(0, -(-config.total_steps // per_update) - 1) * per_update
    for name in (f.name for f in fields(section) if f.name == "lr" or f.name.endswith("_lr")):
        value = getattr(section, name)
        if value is not None and before_last > 0 and Schedule(value, f"training.{name}")(before_last) == 0.0:
            warnings.warn(
                f"training.{name} is 0 at step {before_last:,} of {config.total_steps:,}, where updates are still to "
                "come: they will change nothing. Give a schedule that ends with the run, or a shorter run",
                RuntimeWarning,
                stacklevel=3,
            )


def make_logger(config: AlgorithmConfig, folder: RunFolder, *, resume: bool = False) -> BaseLogger:
    """The loggers that the configuration names, writing into the run's folder (W&B and MLflow: under its name)."""
    run = folder.path
    makers: dict[str, Callable[..., BaseLogger]] = {
        "jsonl": partial(JsonlLogger, folder.metrics_path, resume=resume),
        "tensorboard": partial(TensorboardLogger, run / "tensorboard"),
        "wandb": partial(WandbLogger, name=run.name, dir=run, config=folder.config),
        "mlflow": partial(MLflowLogger, run_name=run.name, config=folder.config),
    }
    options = config.sections["reporting"].logger_config
    loggers = [makers[name](**options.get(name, {})) for name in config.loggers]
    return loggers[0] if len(loggers) == 1 else MultiLogger(loggers)


def keep_files(trainer: BaseTrainer, folder: RunFolder, num_to_keep: int) -> None:
    """Checkpoints after each epoch, and the best policy."""

    def save_checkpoint(epoch: int, env_step: int, gradient_step: int) -> Path:
        path = save_trainer(trainer, folder.checkpoint_path(trainer.position))
        folder.prune_checkpoints(num_to_keep)
        return path

    def save_best(policy: AnyPolicy) -> None:
        policy.save_to_path(folder.best / "policy")

    trainer.save_checkpoint_fn = save_checkpoint
    trainer.save_best_fn = save_best
