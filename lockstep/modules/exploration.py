"""Exploration that is not drawn from the policy's own distribution: numbers added to what it would do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lockstep.state.schedules import Schedule, ScheduleLike

Noise = npt.NDArray[np.float32]
LARGE = np.float32(1e8)
"""Outweighs every difference of action values, but not what forbids an action (-1e9)"""


class Exploration(Protocol):
    """Draws what an algorithm adds to its policy's actions while collecting."""

    def draw_noise(self, rng: np.random.Generator, leading_shape: Sequence[int], step: int) -> Noise:
        """Draw random numbers `[*leading_shape, noise_size]` for acting many times, at environment step `step`."""
        ...


class GaussianNoise:
    """Draws normal numbers with deviation `scale`, to be added to actions in [-1, 1].

    `scale`: a number, or a schedule over sampled environment steps.
    """

    def __init__(self, scale: ScheduleLike, num_actions: int) -> None:
        self.scale = Schedule(scale, "exploration_noise")
        self.num_actions = num_actions

    def draw_noise(self, rng: np.random.Generator, leading_shape: Sequence[int], step: int) -> Noise:
        """Draw `[*leading_shape, num_actions]`, with the deviation of `step`; `ValueError` where that is below 0."""
        scale = self.scale(step)
        if not scale >= 0.0:
            raise ValueError(f"exploration_noise={scale!r} at step {step} is not allowed; it must be at least 0")
        noise = rng.standard_normal((*leading_shape, self.num_actions), np.float32)
        noise *= np.float32(scale)
        return noise


class EpsilonGreedy:
    """Takes any action with probability `epsilon`, each equally likely; else the best one.

    It draws random numbers that are added to the action values before the largest is taken: zeros for the best action,
    large ones for any. `epsilon`: a number, or a schedule over sampled environment steps.
    """

    def __init__(self, epsilon: ScheduleLike, num_actions: int) -> None:
        self.epsilon = Schedule(epsilon, "epsilon")
        self.num_actions = num_actions

    def draw_noise(self, rng: np.random.Generator, leading_shape: Sequence[int], step: int) -> Noise:
        """Draw `[*leading_shape, num_actions]`, with the epsilon of `step`; `ValueError` where that is none."""
        epsilon = self.epsilon(step)
        if not 0.0 <= epsilon <= 1.0:
            raise ValueError(f"epsilon={epsilon!r} at step {step} is not allowed; it must be between 0 and 1")
        noise = rng.random((*leading_shape, self.num_actions), np.float32)
        noise *= LARGE * (rng.random((*leading_shape, 1)) < epsilon)
        return noise
