"""`StackedObservations`: the last observations of each environment, as one array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from lockstep.modules import is_image
from lockstep_sb3.common.torch_layers import channels_last

ORDERS = (None, "first", "last")
"""Allowed orders of the channels; None finds it out."""


class StackedObservations:
    """Stack of the last `n_stack` observations of each environment: images along their channels, vectors end to end.

    Observations before the start of an episode are zeros.

    Args:
        num_envs: Number of environments.
        n_stack: Number of observations in a stack.
        observation_space: Space of an observation, a Box or a Dict of them.
        channels_order: "first" or "last", the dimension along which a Box is stacked; None finds it out. For a Dict, it
            may be a dict with one for each key.

    Raises:
        TypeError: The space is neither a Box nor a Dict of them.
    """

    def __init__(
        self,
        num_envs: int,
        n_stack: int,
        observation_space: spaces.Space,
        channels_order: str | Mapping[str, str | None] | None = None,
    ) -> None:
        self.n_stack = n_stack
        self.observation_space = observation_space
        self.parts: dict[str, StackedObservations] = {}
        """Stacks of a Dict by key; empty for a Box."""
        self.stacked_observation_space: spaces.Space
        """Space of a stack."""

        if isinstance(observation_space, spaces.Dict):
            for key, space in observation_space.spaces.items():
                order = channels_order.get(key) if isinstance(channels_order, Mapping) else channels_order
                self.parts[key] = StackedObservations(num_envs, n_stack, space, order)
            stacked = {key: part.stacked_observation_space for key, part in self.parts.items()}
            self.stacked_observation_space = spaces.Dict(stacked)
            return

        if not isinstance(observation_space, spaces.Box):
            raise TypeError(f"observations of a Box or of a Dict can be stacked, not of {observation_space}")
        if isinstance(channels_order, Mapping) or channels_order not in ORDERS:
            raise TypeError(f"channels_order of a Box is one of {ORDERS}, not {channels_order!r}")
        self.channels_first = channels_order == "first"
        if channels_order is None:
            self.channels_first = is_image(observation_space) and not channels_last(observation_space.shape)
        # Dimension of the batch along which observations are stacked.
        self._axis = 1 if self.channels_first else len(observation_space.shape)
        low, high = (
            np.concatenate([bound] * n_stack, self._axis - 1)
            for bound in (observation_space.low, observation_space.high)
        )
        self.stacked_observation_space = spaces.Box(low, high, dtype=observation_space.dtype)
        self.stacked_obs = np.zeros((num_envs, *low.shape), observation_space.dtype)

    def _append(self, frames: np.ndarray, newest: np.ndarray) -> np.ndarray:
        """Return the stack without its oldest observation, and with a new one."""
        _, newer_frames = np.split(frames, [newest.shape[self._axis]], self._axis)
        return np.concatenate([newer_frames, newest], self._axis)

    def reset(self, observation: Any) -> Any:
        """Begin new episodes with these observations, and return their stacks."""
        if self.parts:
            return {key: part.reset(observation[key]) for key, part in self.parts.items()}
        self.stacked_obs = self._append(np.zeros_like(self.stacked_obs), observation)
        return self.stacked_obs

    def update(self, observations: Any, dones: np.ndarray, infos: list[dict[str, Any]]) -> tuple[Any, list[Any]]:
        """Return the stacks with new observations, and the infos, whose last observations are stacked too."""
        for row in np.flatnonzero(dones).tolist():
            infos[row]["terminal_observation"] = self._last_stack(row, infos[row]["terminal_observation"])
        return self._pushed(observations, dones), infos

    def _last_stack(self, row: int, last_obs: Any) -> Any:
        """Return the stack that ends with the last observation of an environment's episode."""
        if self.parts:
            return {key: part._last_stack(row, last_obs[key]) for key, part in self.parts.items()}
        return self._append(self.stacked_obs[row : row + 1], last_obs[None])[0]

    def _pushed(self, observations: Any, dones: np.ndarray) -> Any:
        """Add new observations, and return the stacks."""
        if self.parts:
            return {key: part._pushed(observations[key], dones) for key, part in self.parts.items()}
        continues = ~dones.reshape(-1, *[1] * (observations.ndim - 1))
        self.stacked_obs = self._append(self.stacked_obs * continues, observations)
        return self.stacked_obs
