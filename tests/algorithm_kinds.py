"""The algorithms by what they learn from and which actions they take, read from lockstep's own list of them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from gymnasium import spaces

from lockstep import ALGORITHMS, get_config

NAMES = tuple(config.algorithm for config in ALGORITHMS)
OFFLINE = tuple(config.algorithm for config in ALGORITHMS if config.is_offline)
OFF_POLICY = tuple(config.algorithm for config in ALGORITHMS if config.is_off_policy)
ON_POLICY = tuple(name for name in NAMES if name not in (*OFFLINE, *OFF_POLICY))
SPACES: dict[str, spaces.Space[Any]] = {"discrete": spaces.Discrete(3), "box": spaces.Box(-1.0, 1.0, (2,), np.float32)}


@cache
def takes(algorithm: str, actions: str) -> bool:
    """Can a learner be built for actions of this kind, `discrete` or `box`?"""
    config = get_config(algorithm).rl_module(model_config={"hiddens": (1,)})
    try:
        config.build_learner(spaces=(spaces.Box(-1.0, 1.0, (3,), np.float32), SPACES[actions]))
    except ValueError:
        return False
    return True


def taking(*actions: str) -> tuple[str, ...]:
    """The algorithms that take exactly these kinds of actions."""
    return tuple(name for name in NAMES if [kind for kind in SPACES if takes(name, kind)] == list(actions))
