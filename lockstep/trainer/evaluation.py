"""Scores and summaries of a trainer as functions."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lockstep.rollout import CollectorLike
from lockstep.rollout.base_collector import LIMIT_THEM
from lockstep.tracking import BaseLogger
from lockstep.tracking.statistics import CollectStats, InfoStats, TimingStats

if TYPE_CHECKING:
    from lockstep.trainer.base import BaseTrainer


A_FEW = 100
"""steps in which an episode may well go on, where the environment is registered with no limit of its length"""


def mean_return(stats: CollectStats) -> float:
    """The default score. `ValueError` where no episode ended."""
    check_evaluated(stats)
    return sum(stats.returns.tolist()) / len(stats.returns)


def check_evaluated(stats: CollectStats) -> None:
    """Raises `ValueError` for an evaluation in which no episode ended, whatever its score is made of."""
    if not len(stats.returns):
        raise ValueError(
            "the evaluation has no finished episode; raise episode_per_test, or limit the episodes' length"
        )


def tell_endless(collector: CollectorLike, steps: int, newest: int) -> None:
    """Warns of episodes that may never end, where none ended in all `steps`; once, when the `newest` of them make them
    as many as the limit of an episode's length in each environment, or `A_FEW` where none is known.
    """
    enough = collector.num_envs * (getattr(collector.env, "max_episode_steps", None) or A_FEW)
    if steps - newest < enough <= steps:
        warnings.warn(
            f"no training episode ended in the first {steps} steps of {collector.num_envs} environments; if episodes "
            f"never end, {LIMIT_THEM}",
            stacklevel=3,
        )


def score_of(compute_score_fn: Callable[[CollectStats], float], stats: CollectStats) -> float:
    """The score as a plain number. `TypeError` for what is none."""
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


def with_reward_metric(reward_metric: Callable[[Any], Any] | None, stats: CollectStats) -> CollectStats:
    """The statistics with the returns that `reward_metric` makes of those of the agents, float64 [episode, agent].

    As they are without one, or where no episode ended. `TypeError` for something that is not made of numbers,
    `ValueError` unless it is one for each episode.
    """
    if reward_metric is None or not stats.agent_returns:
        return stats
    returns = np.array(stats.agent_returns, np.float64)
    shape = returns.shape
    given = reward_metric(returns)
    what = f"reward_metric was given returns of shape {shape}, [episode, agent], and returned"
    try:
        made = np.asarray(given)
    except (TypeError, ValueError):
        made = np.empty((), object)
    if made.dtype.kind not in "fiub":
        raise TypeError(f"{what} {given!r}; it must return numbers, one for each episode: shape ({shape[0]},)")
    if made.shape != shape[:1]:
        raise ValueError(f"{what} shape {made.shape}; it must return one number for each episode: ({shape[0]},)")
    return replace(stats, returns=made.astype(np.float64))


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
    """Steps, episodes and seconds since the collector was reset."""
    if collector is None:
        return 0, 0, 0.0
    return collector.collect_step, collector.collect_episode, collector.collect_time


def run_info(trainer: BaseTrainer, with_history: bool = True) -> InfoStats:
    """The run so far: counters, best score, seconds by what they went into."""
    seconds = trainer.seconds
    train = seconds["collect"] + seconds["update"]
    best = None if trainer.best_stats is None else trainer.best_stats.returns_stat
    timing = TimingStats(
        seconds["total"],
        train,
        seconds["collect"],
        seconds["update"],
        seconds["test"],
        trainer.position / train if train else 0.0,
        seconds["env"],
        seconds["act"],
    )
    return InfoStats(
        trainer.gradient_step,
        trainer.best_score,
        None if best is None else best.mean,
        None if best is None else best.std,
        trainer.best_epoch,
        trainer.env_step,
        trainer.env_episode,
        trainer.test_env_step,
        trainer.test_episode,
        timing,
        trainer.stop_reason,
        history=tuple(trainer.history) if with_history else (),
    )
