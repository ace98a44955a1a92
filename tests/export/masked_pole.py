"""CartPole whose observations carry a mask, which now and then forbids an action; it needs gymnasium alone."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv


class MaskedPole(gym.Env[Any, Any]):
    """Shows `{"seen": [4], "action_mask": [2]}`; a forbidden action raises `ValueError`."""

    def __init__(self) -> None:
        self.pole = CartPoleEnv()
        self.action_space = spaces.Discrete(2)
        seen = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.observation_space = spaces.Dict({"seen": seen, "action_mask": spaces.Box(0, 1, (2,), np.int8)})
        self.mask, self.steps = np.ones(2, np.int8), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        obs, _ = self.pole.reset(seed=int(self.np_random.integers(2**31)))
        self.steps = 0
        return self.shown(obs), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take an allowed action."""
        if not self.mask[int(action)]:
            raise ValueError(f"{action} is forbidden")
        obs, reward, terminated, _, _ = self.pole.step(int(action))
        self.steps += 1
        return self.shown(obs), float(reward) + 0.01 * int(action), terminated, self.steps == 100, {}

    def shown(self, obs: Any) -> dict[str, Any]:
        """Return the observation, with a new mask."""
        self.mask = np.ones(2, np.int8)
        if self.np_random.random() < 0.2:
            self.mask[self.np_random.integers(2)] = 0
        return {"seen": np.asarray(obs, np.float32), "action_mask": self.mask}
