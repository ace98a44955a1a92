"""Spaces as plain values for JSON: `describe_space` and `space_from`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Space

from lockstep.state.sizes import bytes_of, check_claim


def describe_space(space: Space[Any] | None) -> dict[str, Any] | None:
    """Return a space as plain values; `space_from` gives back an equal one. None for None.

    Raises:
        ValueError: a space other than Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict and Tuple.
    """
    if space is None:
        return None
    if isinstance(space, spaces.Box):
        low, high = _plain_bounds(space.low), _plain_bounds(space.high)
        return {"type": "Box", "shape": list(space.shape), "dtype": str(space.dtype), "low": low, "high": high}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = space.nvec.tolist(), space.start.tolist()
        return {"type": "MultiDiscrete", "nvec": nvec, "start": start, "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": list(space.shape)}
    if isinstance(space, spaces.Text):
        characters = "".join(sorted(space.character_set))
        return {"type": "Text", "min": space.min_length, "max": space.max_length, "characters": characters}
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": {key: describe_space(part) for key, part in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [describe_space(part) for part in space.spaces]}
    raise ValueError(
        f"the space {space} cannot be written; allowed are Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict and "
        "Tuple"
    )


def space_from(described: Mapping[str, Any] | None) -> Any:
    """Return the space that `describe_space` described.

    Raises:
        ValueError: an unknown type.
        ClaimedSizeError: bounds that do not fit into memory.
    """
    if described is None:
        return None
    kind = described.get("type")
    if kind == "Box":
        dtype = np.dtype(described["dtype"])
        shape = tuple(described["shape"])
        what = f"a Box of shape {list(shape)}"
        # Two bounds, and whether each is finite.
        check_claim(what, 2 * bytes_of(what, shape, dtype) + 2 * bytes_of(what, shape, np.dtype(bool)))
        low, high = (np.full(shape, described[name], dtype) for name in ("low", "high"))
        return spaces.Box(low, high, shape, dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(described["n"], start=described["start"], dtype=np.dtype(described["dtype"]).type)
    if kind == "MultiDiscrete":
        nvec, start = np.array(described["nvec"]), np.array(described["start"])
        return spaces.MultiDiscrete(nvec, dtype=np.dtype(described["dtype"]).type, start=start)
    if kind == "MultiBinary":
        shape = tuple(described["n"])
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
    if kind == "Text":
        return spaces.Text(described["max"], min_length=described["min"], charset=described["characters"])
    if kind == "Dict":
        return spaces.Dict([(key, space_from(part)) for key, part in described["spaces"].items()])  # in this order
    if kind == "Tuple":
        return spaces.Tuple([space_from(part) for part in described["spaces"]])
    raise ValueError(f"unknown kind of space {kind!r}")


def _plain_bounds(bounds: np.ndarray) -> Any:
    """Return one number where all bounds are equal (the file of an image stays small), else nested lists."""
    if bounds.size > 1 and (bounds == bounds.flat[0]).all():
        return bounds.flat[0].item()
    return bounds.tolist()
