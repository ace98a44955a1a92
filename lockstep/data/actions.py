"""Actions as a policy learns from them, as an environment takes them, and as a mask allows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Space

from lockstep.data.codec import describe_space, space_from


def to_space(space: Space[Any], actions: np.ndarray) -> np.ndarray:
    """Bring flat actions from 0, `[..., A]` (`[...]` for Discrete), to the shape, dtype and offset of a space.

    No copy where they are the same.
    """
    if isinstance(space, spaces.Discrete):
        return actions if space.start == 0 else actions + space.start
    leading = actions.shape[:-1]
    actions = actions.reshape(leading + _shape(space)).astype(space.dtype, copy=False)
    if isinstance(space, spaces.MultiDiscrete) and space.start.any():
        actions = actions + space.start
    return actions


def from_space(space: Space[Any], actions: np.ndarray) -> np.ndarray:
    """Return the inverse of `to_space`."""
    if isinstance(space, spaces.Discrete):
        return np.asarray(actions) - (space.start if space.start else 0)
    if isinstance(space, spaces.MultiDiscrete) and space.start.any():
        actions = actions - space.start
    shape = _shape(space)
    return actions.reshape(*actions.shape[: actions.ndim - len(shape)], -1)


def _shape(space: Space[Any]) -> tuple[int, ...]:
    return tuple(space.shape or ())


class RescaleActions:
    """Map actions in [-1, 1], `[..., A]` or in the space's own shape, linearly onto the bounds of a Box (beyond them
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
        """Map [-1, 1] to the bounds."""
        rows = actions.reshape(-1, self._low.size)
        scaled = np.minimum(np.maximum(rows * self._half + self._centre, self._low), self._high)
        return scaled.reshape(actions.shape)

    def inverse(self, actions: np.ndarray) -> np.ndarray:
        """Map the bounds to [-1, 1] (0 where both bounds are the same)."""
        rows = actions.reshape(-1, self._low.size)
        return ((rows - self._centre) / np.where(self._half > 0, self._half, 1.0)).reshape(actions.shape)


@dataclass(frozen=True)
class ActionForm:
    """The form of the actions that a policy learns from, which sets them apart from those of the environment.

    They are flat and begin at 0, and `rescaled` ones lie within [-1, 1] instead of the bounds of a Box.
    """

    action_space: Space[Any]
    rescaled: bool = False

    @classmethod
    def of(cls, action_space: Space[Any], rescaled: bool = False) -> ActionForm | None:
        """Return the form of these actions, None where nothing sets them apart."""
        if rescaled and isinstance(action_space, spaces.Box):
            rescaled = bool((action_space.low != -1.0).any() or (action_space.high != 1.0).any())
        starts = np.asarray(getattr(action_space, "start", 0))
        flat = isinstance(action_space, spaces.Discrete) or len(_shape(action_space)) == 1
        return None if flat and not rescaled and not starts.any() else cls(action_space, rescaled)

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        """Bring actions `[N, ...]` as learned from to those of the environment."""
        actions = to_space(self.action_space, actions)
        return RescaleActions(self.action_space)(actions) if self.rescaled else actions

    def from_env(self, actions: np.ndarray) -> np.ndarray:
        """Bring actions of the environment to those that are learned from."""
        return from_space(
            self.action_space, RescaleActions(self.action_space).inverse(actions) if self.rescaled else actions
        )

    def get_state(self) -> dict[str, Any]:
        """Return the form as plain data."""
        return {"space": describe_space(self.action_space), "rescaled": self.rescaled}

    @classmethod
    def from_state(cls, state: Mapping[str, Any] | None) -> ActionForm | None:
        """Return the form that `get_state` described; None for None."""
        return None if state is None else cls(space_from(state["space"]), bool(state["rescaled"]))


def in_words(form: ActionForm | None) -> str:
    """Return in words whose actions these are: the environment's, or those that are learned from."""
    if form is None:
        return "the environment's actions"
    return f"actions {'rescaled to [-1, 1]' if form.rescaled else 'flat, from 0'}, for {form.action_space}"


ACTION_MASK = "action_mask"
Maskable = spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
MASKABLE = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
"""action spaces whose choices a mask can forbid"""


def carries_mask(space: Space[Any]) -> bool:
    """Return whether `space` is a Dict with an action mask: the entry `"action_mask"` beside what is observed.

    Raises:
        ValueError: the mask has nothing beside it, or lies deeper in the space, where it would not be seen.
    """
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return False
    if isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces:
        if len(space.spaces) == 1:
            raise ValueError(f"observation space {space} has nothing but an action mask; put observations beside it")
        return True
    where = _mask_below(space)
    if where is not None:
        raise ValueError(
            f"observation space {space} has an action mask at {where}, where it is not looked for; move it to the top: "
            'spaces.Dict({"observations": ..., "action_mask": ...})'
        )
    return False


def _mask_below(space: Space[Any]) -> str | None:
    """Return where in a tree of spaces an action mask is, as keys in brackets."""
    parts: Any = ()
    if isinstance(space, spaces.Dict):
        parts = space.spaces.items()
    elif isinstance(space, spaces.Tuple):
        parts = enumerate(space.spaces)
    for key, part in parts:
        below = "" if key == ACTION_MASK else _mask_below(part)
        if below is not None:
            return f"[{key!r}]{below}"
    return None


def without_mask(obs: Any) -> Any:
    """Return an observation (or its space) without its action mask: the one other entry, or all others."""
    rest = {key: obs[key] for key in obs.keys() if key != ACTION_MASK}  # noqa: SIM118 - of a space too
    if len(rest) == 1:
        return next(iter(rest.values()))
    return spaces.Dict(list(rest.items())) if isinstance(obs, spaces.Dict) else rest


def mask_size(action_space: Maskable) -> int:
    """Return the number of entries of a mask for these actions: one for each choice."""
    if isinstance(action_space, spaces.Discrete):
        return int(action_space.n)
    if isinstance(action_space, spaces.MultiDiscrete):
        return int(action_space.nvec.sum())
    return int(np.prod(action_space.shape, dtype=int))


def allowed_actions(space: Maskable, rng: np.random.Generator, mask: np.ndarray) -> np.ndarray:
    """Draw actions `[N, ...]` for masks `[N, D]` with an entry for each logit, as the networks take them.

    Of each choice the actions whose entry is not 0 are equally likely (the first one where all are 0); a bit whose
    entry is 0 is 0.
    """
    chances = np.where(mask != 0, rng.random(mask.shape), -1.0)
    if isinstance(space, spaces.Discrete):
        return (space.start + chances.argmax(1)).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return (chances >= 0.5).astype(space.dtype).reshape(-1, *space.shape)
    choices = np.split(chances, np.cumsum(space.nvec.reshape(-1))[:-1], axis=1)
    actions = np.stack([choice.argmax(1) for choice in choices], axis=1).reshape(-1, *space.shape)
    return (space.start + actions).astype(space.dtype)
