"""Where an observation carries a mask of the allowed actions, and what the mask allows."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Space

ACTION_MASK = "action_mask"
Maskable = spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
MASKABLE = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
"""action spaces whose choices a mask can forbid"""


def carries_mask(space: Space[Any]) -> bool:
    """Whether `space` is a Dict with an action mask: the entry `"action_mask"` beside what is observed.

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
    """Where in a tree of spaces an action mask is, as keys in brackets."""
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
    """What is observed (or its space), of a Dict that carries an action mask: the one other entry, or all others."""
    rest = {key: obs[key] for key in obs.keys() if key != ACTION_MASK}  # noqa: SIM118 - of a space too
    if len(rest) == 1:
        return next(iter(rest.values()))
    return spaces.Dict(list(rest.items())) if isinstance(obs, spaces.Dict) else rest


def mask_size(action_space: Maskable) -> int:
    """Entries of a mask for these actions: one for each choice."""
    if isinstance(action_space, spaces.Discrete):
        return int(action_space.n)
    if isinstance(action_space, spaces.MultiDiscrete):
        return int(action_space.nvec.sum())
    return int(np.prod(action_space.shape, dtype=int))


def allowed_actions(space: Maskable, rng: np.random.Generator, mask: np.ndarray) -> np.ndarray:
    """`[N, ...]`, for masks `[N, D]` with an entry for each logit, as the networks take them: of each choice the
    actions whose entry is not 0 are equally likely (the first one where all are 0); a bit whose entry is 0 is 0.
    """
    chances = np.where(mask != 0, rng.random(mask.shape), -1.0)
    if isinstance(space, spaces.Discrete):
        return (space.start + chances.argmax(1)).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return (chances >= 0.5).astype(space.dtype).reshape(-1, *space.shape)
    choices = np.split(chances, np.cumsum(space.nvec.reshape(-1))[:-1], axis=1)
    actions = np.stack([choice.argmax(1) for choice in choices], axis=1).reshape(-1, *space.shape)
    return (space.start + actions).astype(space.dtype)
