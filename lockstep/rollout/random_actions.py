"""Actions drawn at random from an action space, for a whole vector of environments at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces


def random_actions(space: spaces.Space[Any], rng: np.random.Generator, number: int) -> np.ndarray:
    """`[number, ...]`, drawn as `space.sample()` draws: each action equally likely, a bounded box evenly filled."""
    if isinstance(space, spaces.Discrete):
        return rng.integers(space.start, space.start + space.n, number, space.dtype)
    if isinstance(space, spaces.Box) and space.dtype.kind == "f" and space.is_bounded():
        return rng.uniform(space.low, space.high, (number, *space.shape)).astype(space.dtype)
    space.seed(int(rng.integers(2**31)))
    return np.stack([space.sample() for _ in range(number)])
