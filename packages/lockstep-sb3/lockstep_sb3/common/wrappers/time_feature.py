"""`TimeFeatureWrapper`, which adds the remaining time to observations."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class TimeFeatureWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that appends the remaining time of an episode to the observation, from 1 at its start to 0 at its limit.

    With a limit of time, the return depends on the remaining time (Pardo et al. 2018,
    https://arxiv.org/abs/1712.00378).

    Args:
        env: Environment with a `Box` of one dimension, or a `Dict` that has one at `"observation"`.
        max_steps: Limit of an episode, if the environment was registered without one.
        test_mode: Always append 1.

    Raises:
        ValueError: the observations have another space.
    """

    def __init__(self, env: gym.Env[Any, Any], max_steps: int = 1000, test_mode: bool = False) -> None:
        super().__init__(env)
        space = env.observation_space
        self._is_dict = isinstance(space, spaces.Dict)
        box: Any = space
        if isinstance(space, spaces.Dict):
            box = space.spaces.get("observation")
        if not isinstance(box, spaces.Box) or len(box.shape) != 1:
            raise ValueError(
                f"TimeFeatureWrapper: observations of {space} are not allowed; give a Box of one dimension, or a Dict "
                "that has one at 'observation'"
            )
        longer = spaces.Box(np.append(box.low, 0).astype(box.dtype), np.append(box.high, 1).astype(box.dtype))
        self._dtype = box.dtype
        self.observation_space = longer
        if isinstance(space, spaces.Dict):
            self.observation_space = spaces.Dict({**space.spaces, "observation": longer})
        registered_limit = None if env.spec is None else env.spec.max_episode_steps
        self._max_steps = registered_limit or max_steps
        self._test_mode = test_mode
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, and return its first observation and info."""
        self._step = 0
        obs, info = self.env.reset(seed=seed, options=options)
        return self._with_time(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take an action, and return the observation, the reward, two flags for the end, and the info."""
        self._step += 1
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._with_time(obs), reward, terminated, truncated, info

    def _with_time(self, obs: Any) -> Any:
        """Return an observation with the remaining time."""
        time_left = 1.0 if self._test_mode else 1.0 - self._step / self._max_steps
        if self._is_dict:
            return {**obs, "observation": np.append(obs["observation"], time_left).astype(self._dtype)}
        return np.append(obs, time_left).astype(self._dtype)
