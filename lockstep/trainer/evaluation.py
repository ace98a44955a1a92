"""Scores and summaries of a trainer as functions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lockstep.algorithms.policy import Policy
from lockstep.rollout.collector import Collector
from lockstep.tracking.statistics import CollectStats, InfoStats

if TYPE_CHECKING:
    from lockstep.trainer.base import BaseTrainer


def mean_return(stats: CollectStats) -> float:
    """The default score. `ValueError` for an evaluation in which no episode ended."""
    if stats.returns_stat is None or stats.returns_stat.mean is None:
        raise ValueError(
            "the evaluation has no finished episode; raise episode_per_test, or limit the episodes' length"
        )
    return stats.returns_stat.mean


def test_episode(policy: Policy, collector: Collector, n_episode: int) -> CollectStats:
    """Evaluates a policy on `n_episode` whole episodes."""
    del policy
    return collector.collect(n_episode=n_episode)


def gather_info(trainer: BaseTrainer, *, best_score: float | None = None) -> InfoStats:
    """The run so far, as `trainer.info()`; a given best score takes the tracked one's place."""
    info = trainer.info()
    return info if best_score is None else replace(info, best_score=best_score)
