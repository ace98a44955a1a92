"""CartPole and Pendulum without velocities in the observation: easy with a memory, impossible without one.

The names are from RLlib's examples. The ids are `lockstep/StatelessCartPole-v0` and `lockstep/StatelessPendulum-v0`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv


class _Stateless(gym.ObservationWrapper[Any, Any, Any]):
    """Wrapper that keeps some numbers of the observation. `shown`: their indices."""

    def __init__(self, env: gym.Env[Any, Any], shown: Sequence[int]) -> None:
        super().__init__(env)
        bounds: Any = env.observation_space
        self.shown = np.array(shown)
        self.observation_space = gym.spaces.Box(bounds.low[self.shown], bounds.high[self.shown], dtype=bounds.dtype)

    def observation(self, observation: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the numbers that are kept."""
        return observation[self.shown]


class StatelessCartPole(_Stateless):
    """CartPole-v1 that observes only the position of the cart and the angle of the pole."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(CartPoleEnv(render_mode=render_mode), (0, 2))


class StatelessPendulum(_Stateless):
    """Pendulum-v1 that observes only the cosine and the sine of the angle."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(PendulumEnv(render_mode=render_mode), (0, 1))
