"""Spaces as plain JSON values, and back: `describe_space` and `space_from`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Space

from lockstep.state.sizes import bytes_of, check_claim


def describe_space(space: Space[Any] | None) -> dict[str, Any] | None:
    """Return a space as plain JSON values, from which `space_from` makes an equal one; None for None.

    Checkpoints and exported policies hold these values: keys can be added, but none may change its name.

    Raises:
        ValueError: the space is not a Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict or Tuple.
    """
    if space is None:
        return None
    if isinstance(space, spaces.Box):
        return {
            "type": "Box",
            "shape": list(space.shape),
            "dtype": str(space.dtype),
            "low": _plain_bounds(space.low),
            "high": _plain_bounds(space.high),
        }
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiDiscrete):
        return {
            "type": "MultiDiscrete",
            "nvec": space.nvec.tolist(),
            "start": space.start.tolist(),
            "dtype": str(space.dtype),
        }
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


def space_from(description: Mapping[str, Any] | None) -> Any:
    """Return the space that `describe_space` described; None for None.

    Raises:
        ValueError: the description has an unknown type.
        ClaimedSizeError: the bounds of a Box do not fit into memory.
    """
    if description is None:
        return None

    kind = description.get("type")
    if kind == "Box":
        return _box_from(description)
    if kind == "Discrete":
        dtype = np.dtype(description["dtype"])
        return spaces.Discrete(description["n"], start=description["start"], dtype=dtype.type)
    if kind == "MultiDiscrete":
        nvec = np.array(description["nvec"])
        start = np.array(description["start"])
        return spaces.MultiDiscrete(nvec, dtype=np.dtype(description["dtype"]).type, start=start)
    if kind == "MultiBinary":
        shape = tuple(description["n"])
        # gymnasium keeps an int and a tuple of one int apart: equality compares what was given.
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
    if kind == "Text":
        return spaces.Text(description["max"], min_length=description["min"], charset=description["characters"])
    if kind == "Dict":
        # From a list of pairs: gymnasium would sort the keys of a dict, and flat inputs follow their order.
        return spaces.Dict([(key, space_from(part)) for key, part in description["spaces"].items()])
    if kind == "Tuple":
        return spaces.Tuple([space_from(part) for part in description["spaces"]])
    raise ValueError(f"unknown kind of space {kind!r}")


def _box_from(description: Mapping[str, Any]) -> spaces.Box:
    dtype = np.dtype(description["dtype"])
    shape = tuple(description["shape"])

    # One short line of JSON can claim a Box of any size, so its memory is checked before it is allocated:
    # two bounds, and for each of them whether its entries are finite.
    what = f"a Box of shape {list(shape)}"
    check_claim(what, 2 * bytes_of(what, shape, dtype) + 2 * bytes_of(what, shape, np.dtype(bool)))

    low = np.full(shape, description["low"], dtype)
    high = np.full(shape, description["high"], dtype)
    return spaces.Box(low, high, shape, dtype.type)


def _plain_bounds(bounds: np.ndarray) -> Any:
    """Return bounds as nested lists, or as one number if all are equal: the bounds of an image are a million lines."""
    if bounds.size > 1 and (bounds == bounds.flat[0]).all():
        return bounds.flat[0].item()
    return bounds.tolist()
