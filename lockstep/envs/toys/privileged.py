"""`PrivilegedProbe` and `HistoryProbe`: environments with an entry that the policy must not see."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Observation = dict[str, npt.NDArray[np.float32]]


class _HiddenLoad(gym.Env[Observation, npt.NDArray[np.float32]], ABC):
    """Base of environments with observations `{"proprio": [2 numbers], "load": [load]}`, float32, from -1 to 1.

    The load is drawn for each episode, and the action is one number from -1 to 1. Subclasses define `length`,
    `_begin`, `_proprio` and `step`.
    """

    metadata = {"render_modes": []}
    length: ClassVar[int]
    """Steps of an episode."""

    def __init__(self) -> None:
        self.observation_space: spaces.Space = spaces.Dict(
            {"proprio": spaces.Box(-1.0, 1.0, (2,), np.float32), "load": spaces.Box(-1.0, 1.0, (1,), np.float32)}
        )
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.t = 0
        self.load = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode with a new load."""
        super().reset(seed=seed)
        self.t = 0
        self.load = float(self.np_random.uniform(-1.0, 1.0))
        self._begin()
        return self._observe(), {}

    @abstractmethod
    def _begin(self) -> None:
        """Draw what an episode begins with, besides the load."""

    @abstractmethod
    def _proprio(self) -> tuple[float, float]:
        """Return the two numbers of the entry "proprio"."""

    def _observe(self) -> Observation:
        return {"proprio": np.array(self._proprio(), np.float32), "load": np.array([self.load], np.float32)}


class PrivilegedProbe(_HiddenLoad):
    """Probe whose hidden entry decides the returns.

    Observations are `{"proprio": [time, target], "load": [load]}`. A reward is `load - 0.1 (action - target)^2`. The
    load stays the same in an episode, which terminates after ten steps. So nearly all variance of the returns comes
    from the load, and the best action, the target, does not depend on it.

    A critic that sees the load explains the returns. One that does not can only give their mean for each time.
    """

    state_attributes: ClassVar[tuple[str, ...]] = ("t", "target", "load")
    """Names of the attributes that are the environment's state; see `lockstep.envs.env_state`."""
    length = 10

    def __init__(self) -> None:
        super().__init__()
        self.target = 0.0

    def _begin(self) -> None:
        self.target = float(self.np_random.uniform(-1.0, 1.0))

    def step(self, action: npt.NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take a step of the episode."""
        reward = self.load - 0.1 * float(action[0] - self.target) ** 2
        self.t += 1
        self.target = float(self.np_random.uniform(-1.0, 1.0))
        return self._observe(), reward, self.t == self.length, False, {}

    def _proprio(self) -> tuple[float, float]:
        return self.t / self.length, self.target


class HistoryProbe(_HiddenLoad):
    """Probe in which a policy must infer from a history what its teacher sees.

    Observations are `{"proprio": [cosine, sine], "load": [load]}`. A wheel begins at a random angle and turns by `load`
    radians in each step. A reward is `1 - (action - load)^2`. The load stays the same in an episode, which terminates
    after twenty steps.

    A teacher that sees the load takes it as the action: return 20. A single angle is independent of the load, so that
    a policy without memory can do no better than the action 0: return 13.33 in the mean. Two angles in succession
    determine the load, so that a policy with memory misses it in the first step alone: return 19.67 in the mean.
    """

    state_attributes: ClassVar[tuple[str, ...]] = ("t", "angle", "load")
    """Names of the attributes that are the environment's state; see `lockstep.envs.env_state`."""
    length = 20

    def __init__(self) -> None:
        super().__init__()
        self.angle = 0.0

    def _begin(self) -> None:
        self.angle = float(self.np_random.uniform(-math.pi, math.pi))

    def step(self, action: npt.NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take a step of the episode."""
        reward = 1.0 - float(action[0] - self.load) ** 2
        self.t += 1
        self.angle += self.load
        return self._observe(), reward, self.t == self.length, False, {}

    def _proprio(self) -> tuple[float, float]:
        return math.cos(self.angle), math.sin(self.angle)
