"""Hindsight experience replay: transitions are drawn with goals that were reached later in their episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lockstep.options.checks import check_choice, is_number
from lockstep.replay.ring import Ring

STRATEGIES = ("future", "final")
KEYS = ("observation", "achieved_goal", "desired_goal")

GoalFunction = Callable[[Any, Any, Any], Any]
"""`f(achieved_goal [M, ...], desired_goal [M, ...], info) -> [M]`, as gymnasium-robotics' `compute_reward`."""


class Hindsight:
    """Hindsight experience replay (Andrychowicz et al. 2017, arXiv:1707.01495, section 3.3).

    Observations are dicts with `achieved_goal` and `desired_goal`. When rows are drawn, a share `k / (k + 1)` of them
    (`k = future_k`) gets as its goal what was achieved after a step of the same episode: a step from the row on
    ("future"), or the last one ("final"). Rewards are computed anew for that goal; what is stored never changes. `info`
    is given as an empty dict.

    `compute_terminated` (same arguments, bool [M]) says anew whether the episode terminated; without it the stored
    flags stay.
    """

    def __init__(
        self,
        compute_reward: GoalFunction,
        *,
        future_k: float = 4.0,
        strategy: str = "future",
        compute_terminated: GoalFunction | None = None,
    ) -> None:
        if not callable(compute_reward):
            raise TypeError(
                f"compute_reward must be a function (achieved_goal, desired_goal, info), got {compute_reward!r}"
            )
        check_choice("strategy", strategy, STRATEGIES)
        if not (is_number(future_k) and future_k >= 0.0):
            raise ValueError(f"future_k={future_k!r} is not allowed; it must be at least 0 (0 relabels nothing)")
        self.compute_reward, self.compute_terminated = compute_reward, compute_terminated
        self.strategy = strategy
        self.future_k = float(future_k)
        self.share = self.future_k / (1.0 + self.future_k)

    def choose(self, ring: Ring, rows: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return which of the rows are relabelled (positions [M]), and the rows whose achieved goals they get [M]."""
        chances = rng.random((2, len(rows)))
        relabelled = np.flatnonzero(chances[0] < self.share)
        chosen = rows[relabelled]
        _, last = ring.episode_bounds(chosen)
        if self.strategy == "final":
            return relabelled, last
        steps = (last - chosen) % ring.num_rows // ring.num_buffers + 1
        ahead = (chances[1, relabelled] * steps).astype(np.int64)
        return relabelled, (chosen + ahead * ring.num_buffers) % ring.num_rows

    def judge(self, achieved: np.ndarray, goals: np.ndarray, terminateds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return rewards float64 [M, n] and terminated flags [M, n] of windows of n steps.

        Args:
            achieved: [M, n, ...], achieved after each step.
            goals: [M, ...], the new goal of each window.
            terminateds: [M, n], as stored.
        """
        number, steps = terminateds.shape
        flat = achieved.reshape(number * steps, *achieved.shape[2:])
        wanted = np.repeat(goals, steps, axis=0)
        rewards = np.asarray(self.compute_reward(flat, wanted, {}), np.float64)
        if rewards.shape != (number * steps,):
            raise ValueError(
                f"compute_reward gave an array of shape {rewards.shape} for {number * steps} goals; "
                "it must give one reward for each row"
            )
        if self.compute_terminated is not None:
            terminateds = np.asarray(self.compute_terminated(flat, wanted, {}), np.bool_)
            terminateds = np.broadcast_to(terminateds, (number * steps,)).reshape(number, steps).copy()
        return rewards.reshape(number, steps), terminateds
