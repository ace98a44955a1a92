"""Hindsight experience replay: transitions are drawn with goals that were achieved later in their episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.options.checks import check_choice, is_number
from lockstep.replay.ring import Ring

STRATEGIES = ("future", "final", "episode")
"""Ways to choose the step whose achieved goal becomes the desired one."""
KEYS = ("observation", "achieved_goal", "desired_goal")
"""Keys of a goal-conditioned observation."""

GoalFunction = Callable[[Any, Any, Any], Any]
"""Function `f(achieved_goal [M, ...], desired_goal [M, ...], info) -> [M]`, as gymnasium-robotics' `compute_reward`."""


class Hindsight:
    """Hindsight experience replay (Andrychowicz et al. 2017, arXiv:1707.01495, section 3.3).

    Observations are dicts with `achieved_goal` and `desired_goal`. When rows are drawn, a share `k / (k + 1)` of them
    (`k = future_k`) is relabelled: its desired goal becomes the goal achieved after another step of the same episode.
    Stored rows never change.

    Args:
        compute_reward: returns the rewards [M] of achieved goals [M, ...] for desired goals [M, ...]. Its third
            argument, `info`, is an empty dict.
        future_k: relabelled transitions for each one that keeps its goal; 0 relabels nothing.
        strategy: the step whose achieved goal is taken: "future" (a random step from the row on), "final" (the last
            step of the episode) or "episode" (a random step of the episode).
        compute_terminated: returns for the same arguments whether the episode terminated, bool [M]. Without it the
            stored flags are used.

    Raises:
        TypeError: `compute_reward` is not a function.
        ValueError: an option that is not allowed.
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
        self.compute_reward = compute_reward
        self.compute_terminated = compute_terminated
        self.strategy = strategy
        self.future_k = float(future_k)
        self.share = self.future_k / (1.0 + self.future_k)
        """Share of the drawn rows that are relabelled."""

    def choose(self, ring: Ring, rows: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Choose which drawn rows are relabelled, and with the achieved goal of which step.

        Returns:
            The positions in `rows` of the relabelled ones, [M], and for each of them the row whose achieved goal it
            gets, [M].
        """
        # Both numbers are drawn for every row, relabelled or not. How many are used depends on the outcome, and the
        # random stream must not.
        chances = rng.random((2, len(rows)))
        relabelled = np.flatnonzero(chances[0] < self.share)
        chosen = rows[relabelled]
        first, last = ring.episode_bounds(chosen)
        if self.strategy == "final":
            return relabelled, last

        # The step of the row itself is among these: what it achieves is in its next observation.
        begin = first if self.strategy == "episode" else chosen
        num_steps = (last - begin) % ring.num_rows // ring.num_buffers + 1
        ahead = (chances[1, relabelled] * num_steps).astype(np.int64)
        return relabelled, (begin + ahead * ring.num_buffers) % ring.num_rows

    def judge(self, achieved: np.ndarray, goals: np.ndarray, terminateds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rewards float64 [M, n] and terminated flags [M, n] of windows of n steps for new goals.

        Args:
            achieved: goals achieved after each step, [M, n, ...].
            goals: new desired goal of each window, [M, ...].
            terminateds: stored flags, [M, n].
        """
        num_windows, num_steps = terminateds.shape
        num_goals = num_windows * num_steps
        flat = achieved.reshape(num_goals, *achieved.shape[2:])
        desired = np.repeat(goals, num_steps, axis=0)

        rewards = np.asarray(self.compute_reward(flat, desired, {}), np.float64)
        if rewards.shape != (num_goals,):
            raise ValueError(
                f"compute_reward gave an array of shape {rewards.shape} for {num_goals} goals; "
                "it must give one reward for each row"
            )
        if self.compute_terminated is not None:
            terminateds = np.asarray(self.compute_terminated(flat, desired, {}), np.bool_)
            # A function may return one flag for all goals; the copy is writable, which a broadcast is not.
            terminateds = np.broadcast_to(terminateds, (num_goals,)).reshape(num_windows, num_steps).copy()
        return rewards.reshape(num_windows, num_steps), terminateds

    # -- the same on a device, for a `TensorReplay`: no shape depends on values ---

    def choose_on_device(self, chances: Tensor, before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        """Choose which drawn rows are relabelled, and with the achieved goal of which step; see `choose`.

        Args:
            chances: uniform random numbers in [0, 1), float64 [2, N].
            before: number of stored steps of its episode before each row, [N].
            after: number of stored steps of its episode after each row, [N].

        Returns:
            Whether a row is relabelled, bool [N], and how many steps after the row the goal is achieved, int64 [N].
        """
        is_relabelled = chances[0] < self.share
        if self.strategy == "final":
            return is_relabelled, after.long()
        if self.strategy == "episode":
            return is_relabelled, (chances[1] * (before + after + 1)).long() - before
        return is_relabelled, (chances[1] * (after + 1)).long()

    def judge_on_device(self, achieved: Tensor, goals: Tensor, terminateds: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rewards float32 [N] and terminated flags [N] of steps for new goals, which the functions return
        as tensors.

        Args:
            achieved: goals achieved after each step, [N, ...].
            goals: new desired goals, [N, ...].
            terminateds: stored flags, [N].
        """
        rewards = self.compute_reward(achieved, goals, {})
        if not isinstance(rewards, Tensor) or rewards.shape != terminateds.shape:
            found = f"of shape {tuple(rewards.shape)}" if hasattr(rewards, "shape") else f"{rewards!r}"
            raise ValueError(
                f"compute_reward gave a {type(rewards).__name__} {found} for {len(terminateds)} goals; it must give a "
                "tensor with one reward for each row where environments are on a device"
            )
        if self.compute_terminated is not None:
            terminateds = self.compute_terminated(achieved, goals, {}).to(torch.bool).expand(len(terminateds))
        return rewards.to(torch.float32), terminateds
