"""Environments that reward the action equal to the observation, and forbid some of the other actions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class InvalidActionEnv(gym.Env[Any, Any], ABC):
    """Base class of these environments. The reward is 1 for the action in the observation, else 0.

    Args:
        space: Space of the actions, and of the observations.
        sizes: Number of choices in each part of an action.
        ep_length: Number of steps of an episode.
        n_invalid_actions: Number of mask entries that are False.

    Raises:
        ValueError: a part of the action would have no allowed choice left.
    """

    def __init__(self, space: spaces.Space[Any], sizes: Sequence[int], ep_length: int, n_invalid_actions: int) -> None:
        most = sum(sizes) - len(sizes)
        if n_invalid_actions > most:
            raise ValueError(f"n_invalid_actions={n_invalid_actions} is not allowed; at most {most} may be forbidden")
        self.action_space = space
        self.observation_space = space
        self.ep_length = ep_length
        self.n_invalid_actions = n_invalid_actions
        self._num_entries = sum(sizes)
        self._offsets = np.cumsum([0, *sizes[:-1]])
        """First mask entry of each part of an action."""
        self.state: Any = None
        self.invalid_actions: list[int] = []
        """Mask entries that are False."""

    @abstractmethod
    def choices_of(self, action: Any) -> np.ndarray:
        """Return the choice in each part of an action, counted from 0."""

    def _draw(self) -> Any:
        """Draw the next observation and the actions that are forbidden, and return the observation."""
        self.state = self.action_space.sample()
        right = self._offsets + self.choices_of(self.state)
        others = np.setdiff1d(np.arange(self._num_entries), right)
        self.invalid_actions = self.np_random.choice(others, self.n_invalid_actions, replace=False).tolist()
        return self.state

    def action_masks(self) -> list[bool]:
        """Return whether each choice is allowed."""
        return [entry not in self.invalid_actions for entry in range(self._num_entries)]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, and return its first observation and info."""
        super().reset(seed=seed)
        if seed is not None:
            self.action_space.seed(seed)
        self.current_step = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take an action, and return the observation, the reward, two flags for the end, and the info."""
        reward = float(np.all(action == self.state))
        self.current_step += 1
        return self._draw(), reward, False, self.current_step >= self.ep_length, {}


class InvalidActionEnvDiscrete(InvalidActionEnv):
    """Environment with `dim` actions."""

    def __init__(self, dim: int | None = None, ep_length: int = 100, n_invalid_actions: int = 0) -> None:
        dim = 1 if dim is None else dim
        super().__init__(spaces.Discrete(dim), [dim], ep_length, n_invalid_actions)

    def choices_of(self, action: Any) -> np.ndarray:
        return np.array([action])


class InvalidActionEnvMultiDiscrete(InvalidActionEnv):
    """Environment whose actions have parts with `dims` choices."""

    def __init__(self, dims: Sequence[int] | None = None, ep_length: int = 100, n_invalid_actions: int = 0) -> None:
        dims = [1, 1] if dims is None else list(dims)
        super().__init__(spaces.MultiDiscrete(dims), dims, ep_length, n_invalid_actions)

    def choices_of(self, action: Any) -> np.ndarray:
        return np.asarray(action)


class InvalidActionEnvMultiBinary(InvalidActionEnv):
    """Environment whose actions are `dims` numbers that are 0 or 1. A mask has two entries for each number."""

    def __init__(self, dims: int | None = None, ep_length: int = 100, n_invalid_actions: int = 0) -> None:
        dims = 1 if dims is None else dims
        super().__init__(spaces.MultiBinary(dims), [2] * dims, ep_length, n_invalid_actions)

    def choices_of(self, action: Any) -> np.ndarray:
        return np.asarray(action, int)
