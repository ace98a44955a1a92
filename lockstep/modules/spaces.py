"""What the modules need to know about gymnasium spaces: trees of leaves, images, and a form that JSON can
hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Space

from lockstep.data.action_masks import ACTION_MASK, carries_mask, without_mask
from lockstep.modules.action_dist import ActionDist


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """`function` on every leaf of a tree of dicts and tuples (what observations of Dict and Tuple spaces
    are).
    """
    if isinstance(tree, Mapping):
        return {key: map_leaves(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map_leaves(function, value) for value in tree)
    return function(tree)


def is_image(space: Space[Any]) -> bool:
    """Whether a Box is treated as an image.

    Three dimensions of which the two spatial ones are at least 8 (see :func:`channels_last`), or two such
    dimensions of bytes (one grey channel).
    """
    if not isinstance(space, spaces.Box):
        return False
    if len(space.shape) == 2:
        return space.dtype == np.uint8 and min(space.shape) >= 8
    return len(space.shape) == 3 and min(image_size(space)) >= 8


def channels_last(space: Space[Any]) -> bool:
    """Whether the last dimension of a three-dimensional image is its channels: the smaller of first and last
    is taken for the channels, the last when they are equal.
    """
    shape = cast(tuple[int, ...], space.shape)
    return shape[-1] <= shape[0]


def image_size(space: Space[Any]) -> tuple[int, int]:
    """(height, width) of an image space with two or three dimensions."""
    shape = cast(tuple[int, ...], space.shape)
    if len(shape) == 2:
        return shape[0], shape[1]
    return (shape[0], shape[1]) if channels_last(space) else (shape[1], shape[2])


def split_action_mask(space: Space[Any], action_dist: ActionDist) -> tuple[Space[Any], bool]:
    """The space of what the network sees, and whether observations carry an action mask (`carries_mask`).

    Raises:
        ValueError: the action space has no discrete choices, the mask's size is not that of the logits, or
            `carries_mask` raises.
    """
    if not carries_mask(space):
        return space, False
    mask = cast(spaces.Dict, space)[ACTION_MASK]
    if not action_dist.is_discrete:
        raise ValueError(
            f"observation space {space} carries an action mask, but actions of {action_dist.action_space} "
            "cannot be masked; only Discrete, MultiDiscrete and MultiBinary can"
        )
    if mask.shape != (action_dist.input_size,):
        raise ValueError(
            f"the action mask {mask} must have shape ({action_dist.input_size},), one entry for each logit "
            f"of {action_dist.action_space}"
        )
    return without_mask(space), True


def space_to_dict(space: Space[Any]) -> dict[str, Any]:
    """A space as plain JSON values; :func:`space_from_dict` gives back an equal one.

    Raises:
        ValueError: a space other than Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple.
    """
    if isinstance(space, spaces.Box):
        return {
            "type": "Box",
            "shape": list(space.shape),
            "dtype": str(space.dtype),
            "low": _bounds_to_list(space.low),
            "high": _bounds_to_list(space.high),
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
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": {key: space_to_dict(part) for key, part in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_dict(part) for part in space.spaces]}
    raise ValueError(
        f"space {space} cannot be written to a file; Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple can"
    )


def space_from_dict(data: Mapping[str, Any]) -> Space[Any]:
    """The space that :func:`space_to_dict` wrote. `ValueError` for an unknown type."""
    kind = data.get("type")
    if kind == "Box":
        dtype, shape = np.dtype(data["dtype"]), tuple(data["shape"])
        low, high = (np.broadcast_to(np.array(data[name], dtype=dtype), shape) for name in ("low", "high"))
        return spaces.Box(low.copy(), high.copy(), shape=shape, dtype=dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(data["n"], start=data["start"], dtype=np.dtype(data["dtype"]).type)
    if kind == "MultiDiscrete":
        start, dtype = np.array(data["start"]), np.dtype(data["dtype"])
        return spaces.MultiDiscrete(np.array(data["nvec"]), dtype=dtype.type, start=start)
    if kind == "MultiBinary":
        shape = tuple(data["n"])
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
    if kind == "Dict":
        return spaces.Dict([(key, space_from_dict(part)) for key, part in data["spaces"].items()])
    if kind == "Tuple":
        return spaces.Tuple([space_from_dict(part) for part in data["spaces"]])
    raise ValueError(f"unknown type of space {kind!r}")


def _bounds_to_list(bounds: np.ndarray) -> Any:
    """One number where all bounds are equal (an image's file stays small), else nested lists."""
    if bounds.size > 1 and (bounds == bounds.flat[0]).all():
        return bounds.flat[0].item()
    return bounds.tolist()
