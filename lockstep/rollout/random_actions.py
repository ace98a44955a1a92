"""Actions drawn at random from an action space, for a whole vector of environments at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

Maskable = spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
MASKABLE = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
"""action spaces whose choices a mask can forbid"""


def random_actions(space: spaces.Space[Any], rng: np.random.Generator, number: int) -> np.ndarray:
    """`[number, ...]`, drawn as `space.sample()` draws: each action equally likely, a bounded box evenly filled."""
    if isinstance(space, spaces.Discrete):
        return rng.integers(space.start, space.start + space.n, number, space.dtype)
    if isinstance(space, spaces.Box) and space.dtype.kind == "f" and space.is_bounded():
        return rng.uniform(space.low, space.high, (number, *space.shape)).astype(space.dtype)
    space.seed(int(rng.integers(2**31)))
    return np.stack([space.sample() for _ in range(number)])


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
