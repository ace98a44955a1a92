"""Environments that the command line must cope with. Their classes are named on the command line: `cli_envs:Name`."""

import time
from typing import Any

import gymnasium as gym
import numpy as np


class Counter(gym.Env):
    """Episodes of 10 steps, reward 1."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space: gym.Space = gym.spaces.Discrete(2)
    seconds = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        self.t += 1
        return np.full(3, self.t / 100, np.float32), 1.0, self.t >= 10, False, {}


class Slow(Counter):
    seconds = 0.01


class WrongShape(Counter):
    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return (obs[:2], *rest)


class NanReward(Counter):
    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return (obs, float("nan"), *rest)


class Outside(Counter):
    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return (obs + 5, *rest)


class NotMade(Counter):
    def __init__(self) -> None:
        raise RuntimeError("no licence")


class TupleActions(Counter):
    action_space = gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.Discrete(3)))


class LateError(Counter):
    total = 0

    def step(self, action: Any) -> Any:
        LateError.total += 1
        if LateError.total > 600:
            raise ZeroDivisionError("the dynamo broke")
        return super().step(action)


class LateNan(Counter):
    total = 0

    def step(self, action: Any) -> Any:
        LateNan.total += 1
        obs, *rest = super().step(action)
        return (obs * (np.nan if LateNan.total > 600 else 1), *rest)
