"""Define the work of both sides of ``workers_speed.py``: environments whose step has a known cost.

Gymnasium and NumPy alone, so that it runs in every peer's environment.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np


@dataclass(frozen=True)
class StepCost:
    """What one step of an environment costs."""

    kind: str
    """`computes` (keeps a core busy), `waits` (sleeps, as for a simulator elsewhere), or `CartPole`"""
    seconds: float
    steps: dict[int, int]
    """number of environments -> vector steps in one timed call, about a quarter of a second"""


COSTS = {
    "computes-20us": StepCost("computes", 20e-6, {8: 1000, 64: 150}),
    "computes-2ms": StepCost("computes", 2e-3, {8: 30, 64: 4}),
    "waits-2ms": StepCost("waits", 2e-3, {8: 100, 64: 60}),
    "CartPole-v1": StepCost("CartPole", 0.0, {8: 1000, 64: 150}),
}
EPISODE_STEPS = 200


class CostedEnv(gym.Env):
    """Gives eight numbers, and takes the given time for each step.

    One that computes uses that much time of its processor, however many others want the core.
    """

    observation_space = gym.spaces.Box(-1.0, 1.0, (8,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def __init__(self, kind: str, seconds: float) -> None:
        self._computes = kind == "computes"
        self._seconds = seconds
        self._nanoseconds = int(1e9 * seconds)
        self._steps = 0
        self._obs = np.zeros(8, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self._steps = 0
        return self._obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step and the time that it costs."""
        if self._computes:
            end = time.thread_time_ns() + self._nanoseconds
            while time.thread_time_ns() < end:
                pass
        else:
            time.sleep(self._seconds)
        self._steps += 1
        return self._obs, 1.0, False, self._steps >= EPISODE_STEPS, {}


def maker(cost: StepCost) -> Callable[[], gym.Env]:
    """Return a function that makes one environment."""
    if cost.kind == "CartPole":
        return lambda: gym.make("CartPole-v1", disable_env_checker=True)
    return lambda: CostedEnv(cost.kind, cost.seconds)


def actions_of(cost: StepCost, num_envs: int) -> np.ndarray:
    """Return the actions of all vector steps of a call, ``[steps, num_envs]``."""
    choices = 2 if cost.kind == "CartPole" else 4
    return np.random.default_rng(0).integers(choices, size=(cost.steps[num_envs], num_envs))


def processor_time() -> float:
    """Return the processor's seconds of this process and of the processes that it has started, so far."""
    total = time.process_time()
    for process in multiprocessing.active_children():
        with open(f"/proc/{process.pid}/schedstat", encoding="ascii") as file:
            total += int(file.read().split()[0]) / 1e9
    return total
