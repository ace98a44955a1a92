"""The state of a trainer as plain values: counters, statistics, best score, collectors, callbacks, logger."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from lockstep.algorithms.plain_values import to_plain
from lockstep.replay import MultiAgentReplayBuffer, ReplayBuffer
from lockstep.rollout.group_collector import GroupCollector
from lockstep.state.schedules import ConfiguredValueWarning
from lockstep.tracking import LazyLogger
from lockstep.tracking.statistics import (
    CollectStats,
    CollectTotals,
    EpochStats,
    InfoStats,
    SequenceSummaryStats,
    TimingStats,
    TrainingStats,
)

if TYPE_CHECKING:
    from lockstep.trainer.base import BaseTrainer

COLLECTORS = ("train_collector", "test_collector")
OPTIONS = (
    "batch_size",
    "step_per_epoch",
    "step_per_collect",
    "episode_per_collect",
    "repeat_per_collect",
    "update_per_step",
    "learning_starts",
)
COUNTERS = (
    "env_step",
    "gradient_step",
    "env_episode",
    "test_env_step",
    "test_episode",
    "last_test_at",
    "best_score",
    "best_epoch",
    "tested_in_train",
)
FORMER_COUNTERS = {"test_step": "test_env_step"}
"""names in checkpoints of earlier versions, and what they are called now"""


def trainer_state(trainer: BaseTrainer) -> dict[str, Any]:
    """Everything but the policy, which is saved beside it.

    An epoch that was interrupted counts as not begun: its steps are carried into it again, with its statistics.
    """
    counters = {name: getattr(trainer, name) for name in COUNTERS}
    counters["epoch"] = trainer.epoch - trainer.in_epoch
    counters["carried_steps"] = trainer.epoch_steps if trainer.in_epoch else trainer.carried_steps
    return {
        "options": _options(trainer),
        "counters": counters,
        "saved_at": [trainer.epoch, trainer.env_step, trainer.gradient_step],
        "seconds": dict(trainer.seconds),
        "best": None if trainer.best_stats is None else _from_collect(trainer.best_stats),
        "last_test": None if trainer.last_test is None else _from_collect(trainer.last_test),
        "collected": _from_collect(trainer.collected.stats()),
        "updates": trainer.updates.get_state(),
        "history": [_from_epoch(stats) for stats in trainer.history],
        "epoch_end_due": trainer.epoch_end_due,
        "under_way": trainer.in_epoch or trainer.under_way,
        "stop_reason": trainer.stop_reason,
        **collector_states(trainer),
        "callbacks": [[type(c).__name__, dict(c.get_state())] for c in trainer.callbacks],
        "logger": trainer.logger.get_state(),
        "logger_class": type(trainer.logger).__name__,
    }


def set_trainer_state(trainer: BaseTrainer, state: Mapping[str, Any]) -> None:
    """Puts the trainer where `trainer_state` was taken; its collectors have `set_collectors`. Callbacks are matched by
    their class, in order.
    """
    for name, value in state["counters"].items():
        setattr(trainer, FORMER_COUNTERS.get(name, name), value)
    trainer.seconds = dict(state["seconds"])
    trainer.best_stats = None if state["best"] is None else _to_collect(state["best"])
    trainer.last_test = None if state["last_test"] is None else _to_collect(state["last_test"])
    trainer.collected = CollectTotals()
    trainer.collected.add(_to_collect(state["collected"]))
    trainer.updates.set_state(state["updates"])
    trainer.history = [_to_epoch(stats) for stats in state["history"]]
    trainer.epoch_end_due = bool(state["epoch_end_due"])
    trainer.under_way = bool(state.get("under_way"))  # checkpoints of earlier versions have none
    saved: dict[str, list[Any]] = {}
    for name, callback_state in state["callbacks"]:
        saved.setdefault(name, []).append(callback_state)
    for callback in trainer.callbacks:
        waiting = saved.get(type(callback).__name__)
        if waiting:
            callback.set_state(waiting.pop(0))
    kept_by, logger = state["logger_class"], trainer.logger
    if kept_by == type(logger).__name__:
        logger.set_state(state["logger"])
    elif not isinstance(logger, LazyLogger):
        warnings.warn(
            f"the records of this run were kept by a {kept_by}; the {type(logger).__name__} of this one begins a new "
            "record",
            RuntimeWarning,
            stacklevel=4,
        )


def collector_states(trainer: BaseTrainer) -> dict[str, Any]:
    """The states of both collectors by name, None for one that is not there."""
    found = {name: getattr(trainer, name) for name in COLLECTORS}
    return {name: None if collector is None else collector.get_state() for name, collector in found.items()}


def states_to_put_back(trainer: BaseTrainer) -> dict[str, Any]:
    """As `collector_states`; None, too, for one that holds data, which no state has and a restored run drops."""
    found: dict[str, Any] = dict.fromkeys(COLLECTORS)
    for name in COLLECTORS:
        with suppress(ValueError):
            found[name] = None if getattr(trainer, name) is None else getattr(trainer, name).get_state()
    return found


def set_collectors(trainer: BaseTrainer, state: Mapping[str, Any]) -> None:
    """Both collectors go on from `collector_states`, or none of them does: `ValueError`, putting back what was before,
    where one cannot.
    """
    check_collectors(trainer, state)
    before = states_to_put_back(trainer)
    try:
        _set_collectors(trainer, state)
    except BaseException:
        _set_collectors(trainer, before)
        raise


def _set_collectors(trainer: BaseTrainer, state: Mapping[str, Any]) -> None:
    for name in COLLECTORS:
        collector = getattr(trainer, name)
        if collector is not None and state[name] is not None:
            collector.set_state(state[name])


def check_collectors(trainer: BaseTrainer, state: Mapping[str, Any]) -> None:
    """Raises `ValueError` where a collector could not go on from what is saved of it."""
    for name in COLLECTORS:
        collector, saved = getattr(trainer, name), state[name]
        if collector is None or saved is None:
            continue
        here, there = isinstance(collector, GroupCollector), "group" in saved
        if here != there:
            where = ("in this process", "in env runners")
            raise ValueError(
                f"the {name} of the checkpoint has its environments {where[there]}, this one {where[here]}; resume "
                "with the same env_runners.num_env_runners"
            )
        if "lengths" in saved and len(saved["lengths"]) != collector.num_envs:
            raise ValueError(
                f"the {name} of the checkpoint has {len(saved['lengths'])} environments, this one has "
                f"{collector.num_envs}; resume with as many"
            )


def _options(trainer: BaseTrainer) -> dict[str, Any]:
    """What a run that goes on bit by bit has in common with the one before; functions are left out."""
    found = {name: getattr(trainer, name) for name in OPTIONS if hasattr(trainer, name)}
    of_policy = trainer.policy.config.sections
    own_of_modules = "algorithm_config_overrides_per_module"
    given = [(part.name, of_policy[name]) for name in ("training", "framework") for part in fields(of_policy[name])]
    for name, section in [*given, (own_of_modules, of_policy["rl_module"])]:
        with suppress(ValueError):  # it holds a function that has no name
            found[f"policy.{name}"] = to_plain(name, getattr(section, name))
    buffer = getattr(trainer, "buffer", None)
    buffers = buffer.buffers if isinstance(buffer, MultiAgentReplayBuffer) else {"": buffer}
    for module_id, own in buffers.items():
        if isinstance(own, ReplayBuffer):
            options = {**own.options.keywords(), **(own.priority_options() or {})}
            found |= {f"buffer.{module_id}.{name}".replace("..", "."): value for name, value in options.items()}
    return {name: value for name, value in found.items() if not callable(value)}


def tell_options(trainer: BaseTrainer, saved: Mapping[str, Any]) -> None:
    """Warns where options of the trainer, its policy or its buffer are not those of the run that goes on."""
    own = _options(trainer)
    others = [f"{name}={own[name]!r} (was {saved[name]!r})" for name in own if saved.get(name, own[name]) != own[name]]
    if others:
        warnings.warn(
            f"the run goes on with other options than it had: {', '.join(others)}; from here it is not bit by bit the "
            "run that would never have stopped",
            ConfiguredValueWarning,
            stacklevel=4,
        )


def _from_collect(stats: CollectStats) -> dict[str, Any]:
    by_agent = np.array(stats.agent_returns, np.float64).reshape(-1, max(1, len(stats.agents)))
    return {**stats.get_state(), "agents": list(stats.agents), "agent_returns": by_agent}


def _to_collect(state: Mapping[str, Any]) -> CollectStats:
    by_agent = tuple(map(tuple, state["agent_returns"].tolist()))
    return CollectStats(**{**state, "agents": tuple(state["agents"]), "agent_returns": by_agent})


def _from_training(stats: TrainingStats) -> dict[str, Any]:
    metrics = {name: asdict(stat) for name, stat in stats.metrics.items()}
    own = {part.name: getattr(stats, part.name) for part in fields(stats)}
    return {**own, "metrics": metrics, "stage_seconds": dict(stats.stage_seconds)}


def _to_training(state: Mapping[str, Any]) -> TrainingStats:
    metrics = {name: SequenceSummaryStats(**stat) for name, stat in state["metrics"].items()}
    return TrainingStats(**{**state, "metrics": metrics})


def _from_epoch(stats: EpochStats) -> dict[str, Any]:
    return {
        "epoch": stats.epoch,
        "train": None if stats.train_collect_stat is None else _from_collect(stats.train_collect_stat),
        "test": None if stats.test_collect_stat is None else _from_collect(stats.test_collect_stat),
        "training": None if stats.training_stat is None else _from_training(stats.training_stat),
        "info": stats.info_stat.to_dict(),
    }


def _to_epoch(state: Mapping[str, Any]) -> EpochStats:
    info = dict(state["info"])
    return EpochStats(
        state["epoch"],
        None if state["train"] is None else _to_collect(state["train"]),
        None if state["test"] is None else _to_collect(state["test"]),
        None if state["training"] is None else _to_training(state["training"]),
        InfoStats(**{**info, "timing": TimingStats(**info["timing"])}),
    )
