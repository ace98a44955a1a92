"""Actions as a policy learns from them, and as an environment takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Space

from lockstep.data.space_codec import describe_space, space_from


def to_space(space: Space[Any], actions: np.ndarray) -> np.ndarray:
    """Flat actions from 0, `[..., A]` (`[...]` for Discrete), in the shape, dtype and offset of an action space. No
    copy where they are the same.
    """
    if isinstance(space, spaces.Discrete):
        return actions if space.start == 0 else actions + space.start
    leading = actions.shape[:-1]
    actions = actions.reshape(leading + _shape(space)).astype(space.dtype, copy=False)
    if isinstance(space, spaces.MultiDiscrete) and space.start.any():
        actions = actions + space.start
    return actions


def from_space(space: Space[Any], actions: np.ndarray) -> np.ndarray:
    """The inverse of `to_space`."""
    if isinstance(space, spaces.Discrete):
        return np.asarray(actions) - (space.start if space.start else 0)
    if isinstance(space, spaces.MultiDiscrete) and space.start.any():
        actions = actions - space.start
    shape = _shape(space)
    return actions.reshape(*actions.shape[: actions.ndim - len(shape)], -1)


def _shape(space: Space[Any]) -> tuple[int, ...]:
    return tuple(space.shape or ())


class RescaleActions:
    """Maps actions in [-1, 1], `[..., A]` or in the space's own shape, linearly onto the bounds of a Box (beyond them
    they are limited).

    Raises:
        ValueError: another space, or a Box without finite bounds.
    """

    is_identity = False

    def __init__(self, action_space: Space[Any]) -> None:
        if not isinstance(action_space, spaces.Box) or not action_space.is_bounded():
            raise ValueError(f"RescaleActions needs a Box with finite bounds, got {action_space}")
        # Halved before the difference: bounds may be as large as the type allows.
        low, high = action_space.low.reshape(-1), action_space.high.reshape(-1)
        self._low, self._high = low, high
        self._centre, self._half = low / 2 + high / 2, high / 2 - low / 2

    def __call__(self, actions: np.ndarray) -> np.ndarray:
        """[-1, 1] -> the bounds."""
        rows = actions.reshape(-1, self._low.size)
        scaled = np.minimum(np.maximum(rows * self._half + self._centre, self._low), self._high)
        return scaled.reshape(actions.shape)

    def inverse(self, actions: np.ndarray) -> np.ndarray:
        """The bounds -> [-1, 1] (0 where both bounds are the same)."""
        rows = actions.reshape(-1, self._low.size)
        return ((rows - self._centre) / np.where(self._half > 0, self._half, 1.0)).reshape(actions.shape)


@dataclass(frozen=True)
class ActionForm:
    """What sets the actions that a policy learns from apart from those of the environment: they are flat and begin at
    0, and `rescaled` ones lie within [-1, 1] instead of the bounds of a Box.
    """

    action_space: Space[Any]
    rescaled: bool = False

    @classmethod
    def of(cls, action_space: Space[Any], rescaled: bool = False) -> ActionForm | None:
        """None where nothing sets them apart."""
        if rescaled and isinstance(action_space, spaces.Box):
            rescaled = bool((action_space.low != -1.0).any() or (action_space.high != 1.0).any())
        starts = np.asarray(getattr(action_space, "start", 0))
        flat = isinstance(action_space, spaces.Discrete) or len(_shape(action_space)) == 1
        return None if flat and not rescaled and not starts.any() else cls(action_space, rescaled)

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        """Actions `[N, ...]` as learned from -> those of the environment."""
        actions = to_space(self.action_space, actions)
        return RescaleActions(self.action_space)(actions) if self.rescaled else actions

    def from_env(self, actions: np.ndarray) -> np.ndarray:
        """The inverse."""
        return from_space(
            self.action_space, RescaleActions(self.action_space).inverse(actions) if self.rescaled else actions
        )

    def get_state(self) -> dict[str, Any]:
        """As plain data."""
        return {"space": describe_space(self.action_space), "rescaled": self.rescaled}

    @classmethod
    def from_state(cls, state: Mapping[str, Any] | None) -> ActionForm | None:
        """What `get_state` told; None for None."""
        return None if state is None else cls(space_from(state["space"]), bool(state["rescaled"]))


def told(form: ActionForm | None) -> str:
    """In words: whose actions?"""
    if form is None:
        return "the environment's actions"
    return f"actions {'rescaled to [-1, 1]' if form.rescaled else 'flat, from 0'}, for {form.action_space}"
