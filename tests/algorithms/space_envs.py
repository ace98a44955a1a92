"""A tiny real environment over any spaces, which is strict about the actions it is given."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)


class SpaceEnv(gym.Env):
    """Random observations; episodes of five steps end terminated and truncated by turns.

    The reward is the number of the step. Raises `ValueError` for an action outside of the space, or one that the
    last observation's action mask forbids.
    """

    def __init__(self, observation_space=BOX, action_space=None):
        self.observation_space = observation_space
        self.action_space = spaces.Discrete(3) if action_space is None else action_space
        self.episodes, self.t, self.mask = 0, 0, None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.episodes, self.t = self.episodes + 1, 0
        return self._observe(), {}

    def step(self, action):
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        if self.mask is not None and not self.mask[action]:
            raise ValueError(f"{action!r} is forbidden by {self.mask}")
        self.t += 1
        done = self.t == 5
        ends = done and self.episodes % 2 == 0, done and self.episodes % 2 == 1
        return self._observe(), float(self.t), *ends, {}

    def _observe(self):
        observation = self.observation_space.sample()
        if isinstance(observation, dict) and "action_mask" in observation:
            self.mask = np.ones(self.action_space.n, np.int8)
            self.mask[self.np_random.integers(self.action_space.n)] = 0  # one action is forbidden, another each time
            observation["action_mask"] = self.mask.copy()
        return observation
