"""The algorithms by what they learn from and which actions they take, read from lockstep's own list of them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from lockstep import ALGORITHMS

NAMES = tuple(config.algorithm for config in ALGORITHMS)
OFFLINE = tuple(config.algorithm for config in ALGORITHMS if config.is_offline)
OFF_POLICY = tuple(config.algorithm for config in ALGORITHMS if config.is_off_policy)
ON_POLICY = tuple(name for name in NAMES if name not in (*OFFLINE, *OFF_POLICY))
COVER = Path(__file__).with_name("product") / "cover.json"
SPACES: dict[str, spaces.Space[Any]] = {"discrete": spaces.Discrete(3), "box": spaces.Box(-1.0, 1.0, (2,), np.float32)}


@cache
def takes(algorithm: str, actions: str) -> bool:
    """Does the algorithm act in spaces of this kind, `discrete` or `box`? It does in those of the product's cells."""
    return any(cell[0] == algorithm and cell[2].lower() == actions for cell in json.loads(COVER.read_text()))


def taking(*actions: str) -> tuple[str, ...]:
    """The algorithms that take exactly these kinds of actions."""
    return tuple(name for name in NAMES if [kind for kind in SPACES if takes(name, kind)] == list(actions))
