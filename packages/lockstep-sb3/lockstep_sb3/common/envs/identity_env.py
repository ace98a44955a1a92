"""`IdentityEnv`: the right action is the observation."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class IdentityEnv(gym.Env):
    """Environment that rewards the action that equals the observation with 1.

    Args:
        dim: Number of actions. Defaults to 1.
        space: Space of observations and actions, instead of `dim`.
        ep_length: Number of steps of an episode, which is then truncated.
    """

    def __init__(self, dim: int | None = None, space: spaces.Space | None = None, ep_length: int = 100) -> None:
        if dim is not None and space is not None:
            raise ValueError(f"IdentityEnv takes dim={dim} or space={space}, not both")
        self.action_space = spaces.Discrete(dim or 1) if space is None else space
        self.observation_space = self.action_space
        self.ep_length = ep_length
        self.current_step = 0
        self.num_resets = 0
        self.state: Any = self.action_space.sample()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        if seed is not None:
            self.action_space.seed(seed)
        self.current_step = 0
        self.num_resets += 1
        self.state = self.action_space.sample()
        return self.state, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Reward the action, and draw the next observation."""
        reward = self._get_reward(action)
        self.current_step += 1
        self.state = self.action_space.sample()
        return self.state, reward, False, self.current_step >= self.ep_length, {}

    def _get_reward(self, action: Any) -> float:
        """Return 1 for the right action, else 0."""
        return float(np.all(self.state == action))


class IdentityEnvBox(IdentityEnv):
    """`IdentityEnv` with a number between `low` and `high`, which the action must equal up to `eps`."""

    def __init__(self, low: float = -1.0, high: float = 1.0, eps: float = 0.05, ep_length: int = 100) -> None:
        super().__init__(space=spaces.Box(low, high, (1,), np.float32), ep_length=ep_length)
        self.eps = eps

    def _get_reward(self, action: Any) -> float:
        return float(np.all(np.abs(self.state - action) <= self.eps))


class IdentityEnvMultiDiscrete(IdentityEnv):
    """`IdentityEnv` with two numbers below `dim`."""

    def __init__(self, dim: int = 1, ep_length: int = 100) -> None:
        super().__init__(space=spaces.MultiDiscrete([dim, dim]), ep_length=ep_length)


class IdentityEnvMultiBinary(IdentityEnv):
    """`IdentityEnv` with `dim` bits."""

    def __init__(self, dim: int = 1, ep_length: int = 100) -> None:
        super().__init__(space=spaces.MultiBinary(dim), ep_length=ep_length)


class FakeImageEnv(gym.Env):
    """Environment with random images, which rewards nothing. Episodes have 10 steps.

    Args:
        action_dim: Number of actions.
        screen_height: Height of an image.
        screen_width: Width of an image.
        n_channels: Number of channels.
        discrete: Whether actions are discrete. Otherwise they are five numbers between -1 and 1.
        channel_first: Whether the channels are the first dimension.
    """

    def __init__(
        self,
        action_dim: int = 6,
        screen_height: int = 84,
        screen_width: int = 84,
        n_channels: int = 1,
        discrete: bool = True,
        channel_first: bool = False,
    ) -> None:
        size = (screen_height, screen_width)
        shape = (n_channels, *size) if channel_first else (*size, n_channels)
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.action_space = spaces.Discrete(action_dim) if discrete else spaces.Box(-1.0, 1.0, (5,), np.float32)
        self.ep_length = 10
        self.current_step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.current_step = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return the next random image."""
        self.current_step += 1
        return self.observation_space.sample(), 0.0, False, self.current_step >= self.ep_length, {}
