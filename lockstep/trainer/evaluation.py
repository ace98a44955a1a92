"""Scores and summaries of a trainer as functions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lockstep.algorithms.multi_agent_policy import AnyPolicy
from lockstep.rollout import CollectorLike
from lockstep.rollout.checks import LIMIT_THEM
from lockstep.tracking.statistics import CollectStats, InfoStats, TimingStats

if TYPE_CHECKING:
    from lockstep.trainer.base import BaseTrainer


A_FEW = 100
"""steps in which an episode may well go on, where the environment is registered with no limit of its length"""


def mean_return(stats: CollectStats) -> float:
    """The default score. `ValueError` where no episode ended."""
    check_evaluated(stats)
    return sum(stats.returns) / len(stats.returns)


def check_evaluated(stats: CollectStats) -> None:
    """Raises `ValueError` for an evaluation in which no episode ended, whatever its score is made of."""
    if not stats.returns:
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
    return replace(stats, returns=tuple(made.astype(np.float64).tolist()))


def test_episode(policy: AnyPolicy, collector: CollectorLike, n_episode: int) -> CollectStats:
    """Evaluates a policy on `n_episode` whole episodes. `ValueError` for a collector of another policy."""
    if collector.policy is not policy:
        raise ValueError("the collector acts with another policy than the one to test; make it with the same one")
    return collector.collect(n_episode=n_episode)


def gather_info(trainer: BaseTrainer, *, best_score: float | None = None) -> InfoStats:
    """The run so far, as `trainer.info()`; a given best score takes the tracked one's place."""
    info = trainer.info()
    return info if best_score is None else replace(info, best_score=best_score)


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
        trainer.test_step,
        trainer.test_episode,
        timing,
        trainer.stop_reason,
        history=tuple(trainer.history) if with_history else (),
    )
