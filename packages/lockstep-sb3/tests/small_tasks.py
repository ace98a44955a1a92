"""Tiny environments for the tests of `lockstep_sb3`."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Copy(gym.Env):
    """Environment that rewards the action in its observation with 1. Episodes have 10 steps."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(0.0, 1.0, (1,)), spaces.Discrete(2)

    def _draw(self) -> np.ndarray:
        self.wanted = int(self.np_random.integers(2))
        return np.array([self.wanted], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._draw(), {}

    def step(self, action):
        reward, self.steps = float(action == self.wanted), self.steps + 1
        return self._draw(), reward, False, self.steps == 10, {"wanted": self.wanted}


class Aim(gym.Env):
    """Environment whose reward is minus the distance of the action from 1. Episodes have 10 steps."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(-1.0, 1.0, (2,)), spaces.Box(-2.0, 2.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.ones(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.ones(2, np.float32), -abs(float(action[0]) - 1.0), False, self.steps == 10, {}


class Count(gym.Env):
    """Environment that counts its steps. The reward is their number, the observation that number times `factor`."""

    def __init__(self, factor: float = 1.0, length: int = 3, terminates: bool = True) -> None:
        self.factor, self.length, self.terminates = factor, length, terminates
        self.observation_space, self.action_space = spaces.Box(-100.0, 100.0, (1,)), spaces.Discrete(2)

    def set_factor(self, factor: float) -> None:
        self.factor = factor

    def _obs(self) -> np.ndarray:
        return np.array([self.steps * self.factor], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._obs(), {"seed": seed}

    def step(self, action):
        self.steps += 1
        is_over = self.steps == self.length
        return self._obs(), float(self.steps), is_over and self.terminates, is_over and not self.terminates, {}


class Picture(gym.Env):
    """Environment with an image of 12 x 16 pixels and 3 channels (last), all of value 255. Action 1 is rewarded."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(0, 255, (12, 16, 3), np.uint8), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.full((12, 16, 3), 255, np.uint8), {}

    def step(self, action):
        self.steps += 1
        return np.full((12, 16, 3), 255, np.uint8), float(action), self.steps == 5, False, {}
