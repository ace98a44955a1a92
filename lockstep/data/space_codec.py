"""Spaces as plain data (dicts, numbers, arrays), so that the state of an episode can be written to a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_KINDS = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Text", "Dict", "Tuple")


def describe_space(space: Any) -> dict[str, Any] | None:
    """A dict for Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict and Tuple spaces; None for None.

    Raises `ValueError` for another kind of space.
    """
    if space is None:
        return None
    kind = next((base.__name__ for base in type(space).__mro__ if base.__name__ in _KINDS), "")
    if kind == "Box":
        return {"type": kind, "low": space.low.copy(), "high": space.high.copy(), "dtype": str(space.dtype)}
    if kind == "Discrete":
        return {"type": kind, "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    if kind == "MultiDiscrete":
        start = np.array(space.start)
        return {"type": kind, "nvec": np.array(space.nvec), "start": start, "dtype": str(space.dtype)}
    if kind == "MultiBinary":
        return {"type": kind, "shape": [int(size) for size in space.shape]}
    if kind == "Text":
        characters = "".join(sorted(space.character_set))
        return {"type": kind, "min": space.min_length, "max": space.max_length, "characters": characters}
    if kind == "Dict":
        return {"type": kind, "spaces": {key: describe_space(part) for key, part in space.spaces.items()}}
    if kind == "Tuple":
        return {"type": kind, "spaces": [describe_space(part) for part in space.spaces]}
    raise ValueError(
        f"the space {space} cannot be written; allowed are Box, Discrete, MultiDiscrete, MultiBinary, Text, "
        "Dict and Tuple"
    )


def space_from(described: Mapping[str, Any] | None) -> Any:
    """The space that `describe_space` described."""
    if described is None:
        return None
    from gymnasium import spaces

    kind = described["type"]
    if kind == "Box":
        return spaces.Box(described["low"], described["high"], dtype=np.dtype(described["dtype"]).type)
    if kind == "Discrete":
        return spaces.Discrete(described["n"], start=described["start"], dtype=np.dtype(described["dtype"]).type)
    if kind == "MultiDiscrete":
        dtype = np.dtype(described["dtype"]).type
        return spaces.MultiDiscrete(described["nvec"], dtype=dtype, start=described["start"])
    if kind == "MultiBinary":
        shape = described["shape"]
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
    if kind == "Text":
        return spaces.Text(described["max"], min_length=described["min"], charset=described["characters"])
    if kind == "Dict":
        return spaces.Dict([(key, space_from(part)) for key, part in described["spaces"].items()])  # in this order
    if kind == "Tuple":
        return spaces.Tuple([space_from(part) for part in described["spaces"]])
    raise ValueError(f"unknown kind of space {kind!r}")
