"""What the networks need to know about spaces: leaves of observations, images and action masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Space

from lockstep.data.actions import ACTION_MASK, carries_mask, without_mask
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
