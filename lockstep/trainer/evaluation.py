"""Evaluation as functions: play episodes, score them, apply `reward_metric`, sum up a loop of your own."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.rollout import CollectorLike
from lockstep.rollout.base_collector import LIMIT_THEM
from lockstep.tracking import BaseLogger
from lockstep.tracking.statistics import CollectStats, InfoStats, TimingStats

FEW_STEPS = 100
"""steps in which an episode may well go on, where the environment is registered with no limit of its length"""


def mean_return(stats: CollectStats) -> float:
    """Return the default score."""
    return sum(stats.returns.tolist()) / len(stats.returns)


def score_of(compute_score_fn: Callable[[CollectStats], float], stats: CollectStats) -> float:
    """Return the score as a plain number. `ValueError` where no episode ended, `TypeError` for no number."""
    if not len(stats.returns):
        raise ValueError(
            "the evaluation has no finished episode; raise episode_per_test, or limit the episodes' length"
        )
    score: Any = compute_score_fn(stats)
    try:
        number = float(score)
    except (TypeError, ValueError):
        raise TypeError(f"compute_score_fn returned {score!r}; it must return a number") from None
    if math.isnan(number):
        warnings.warn(
            f"compute_score_fn returned {score!r} for {len(stats.returns)} episodes; such a score is never the "
            "best one, return a number that can be compared",
            stacklevel=2,
        )
    return number


def warn_endless(collector: CollectorLike, num_steps: int, num_new: int) -> None:
    """Warn of episodes that may never end, where none ended in `num_steps` steps.

    Warns once: when the newest `num_new` steps reach the limit of an episode's length in each environment, or
    `FEW_STEPS` where none is known.
    """
    enough = collector.num_envs * (getattr(collector.env, "max_episode_steps", None) or FEW_STEPS)
    if num_steps - num_new < enough <= num_steps:
        warnings.warn(
            f"no training episode ended in the first {num_steps} steps of {collector.num_envs} environments; if "
            f"episodes never end, {LIMIT_THEM}",
            stacklevel=3,
        )


def with_reward_metric(reward_metric: Callable[[Any], Any] | None, stats: CollectStats) -> CollectStats:
    """Return the statistics with the returns that `reward_metric` makes of those of the agents, float64
    [episode, agent]; unchanged without a metric, or where no episode ended.

    Raises `TypeError` unless it returns numbers, `ValueError` unless it returns one for each episode.
    """
    if reward_metric is None or not stats.agent_returns:
        return stats
    returns = np.array(stats.agent_returns, np.float64)
    num_episodes = len(returns)
    result = reward_metric(returns)
    words = f"reward_metric was given returns of shape {returns.shape}, [episode, agent], and returned"
    try:
        values = np.asarray(result)
    except (TypeError, ValueError):
        values = np.empty((), object)
    if values.dtype.kind not in "fiub":
        raise TypeError(f"{words} {result!r}; it must return numbers, one for each episode: shape ({num_episodes},)")
    if values.shape != (num_episodes,):
        raise ValueError(f"{words} shape {values.shape}; it must return one number for each episode: ({num_episodes},)")
    return replace(stats, returns=values.astype(np.float64))


def test_episode(
    collector: CollectorLike,
    test_fn: Callable[[int, Any], None] | None,
    epoch: int,
    n_episode: int,
    logger: BaseLogger | None = None,
    global_step: int | None = None,
    reward_metric: Callable[[Any], Any] | None = None,
) -> CollectStats:
    """Call `test_fn(epoch, global_step)`, play `n_episode` new episodes and return their statistics.

    `logger`: gets them in its scope `test/`, where `global_step` is given. `reward_metric`: as in `BaseTrainer`.
    """
    if test_fn is not None:
        test_fn(epoch, global_step)
    stats = with_reward_metric(reward_metric, collector.collect(n_episode=n_episode))
    if logger is not None and global_step is not None:
        logger.log_test_data(stats.to_dict(), global_step)
    return stats


def gather_info(
    start_time: float,
    policy_update_time: float,
    gradient_step: int,
    best_score: float,
    best_reward: float,
    best_reward_std: float,
    train_collector: CollectorLike | None = None,
    test_collector: CollectorLike | None = None,
) -> InfoStats:
    """Return the statistics of a loop of your own, from its counts and those of its collectors (of a trainer:
    `trainer.info()`).

    `start_time`: `time.time()` when it began. `policy_update_time`: seconds that its updates took.
    """
    train_step, train_episode, collect_time = _counts_of(train_collector)
    test_step, test_episodes, test_time = _counts_of(test_collector)
    train_time = collect_time + policy_update_time
    timing = TimingStats(
        max(0.0, time.time() - start_time),
        train_time,
        collect_time,
        policy_update_time,
        test_time,
        (train_step or gradient_step) / train_time if train_time > 0 else 0.0,
    )
    best = best_score, best_reward, best_reward_std
    return InfoStats(gradient_step, *best, None, train_step, train_episode, test_step, test_episodes, timing)


def _counts_of(collector: Any) -> tuple[int, int, float]:
    """Return steps, episodes and seconds since the collector was reset."""
    if collector is None:
        return 0, 0, 0.0
    return collector.collect_step, collector.collect_episode, collector.collect_time
