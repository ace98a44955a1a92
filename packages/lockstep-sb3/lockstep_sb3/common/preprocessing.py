"""Sizes and kinds of spaces, and the form in which networks receive observations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional

LARGEST_PIXEL = 255


def is_image_space_channels_first(observation_space: spaces.Box) -> bool:
    """Return whether the channels are the first of an image's dimensions: that one is the smallest."""
    return int(np.argmin(observation_space.shape)) == 0


def is_image_space(
    observation_space: spaces.Space[Any], check_channels: bool = False, normalized_image: bool = False
) -> bool:
    """Return whether a space is an image: a Box of three dimensions with bytes from 0 to 255.

    Args:
        observation_space: The space.
        check_channels: Also require that there are 1, 3 or 4 channels.
        normalized_image: Accept other types and bounds.
    """
    if not isinstance(observation_space, spaces.Box) or len(observation_space.shape) != 3:
        return False
    has_bytes = observation_space.dtype == np.uint8
    has_byte_range = bool((observation_space.low == 0).all() and (observation_space.high == LARGEST_PIXEL).all())
    if not normalized_image and not (has_bytes and has_byte_range):
        return False
    channel_axis = 0 if is_image_space_channels_first(observation_space) else -1
    return not check_channels or observation_space.shape[channel_axis] in (1, 3, 4)


def maybe_transpose(observation: np.ndarray, observation_space: spaces.Space[Any]) -> np.ndarray:
    """Return images with the channels where the space has them, and other observations unchanged.

    Args:
        observation: One observation `[...]`, or a batch `[N, ...]`.
        observation_space: Space of one observation.

    Raises:
        ValueError: The image has another size than the space.
    """
    if not is_image_space(observation_space):
        return observation
    observation = np.asarray(observation)
    shape = observation_space.shape or ()
    if observation.shape[-3:] == shape:
        return observation
    for source, target in ((-1, -3), (-3, -1)):
        moved = np.moveaxis(observation, source, target)
        if moved.shape[-3:] == shape:
            return moved
    raise ValueError(f"an image {observation.shape} does not fit the space {observation_space}; give {shape}")


def preprocess_obs(obs: Any, observation_space: spaces.Space[Any], normalize_images: bool = True) -> Any:
    """Return tensors of a batch `[N, ...]` in the form that a features extractor gets.

    Bytes of images are divided by 255, choices are one-hot, everything else becomes floats.

    Args:
        obs: Tensor, or a dict of tensors.
        observation_space: Space of one observation.
        normalize_images: Divide images by 255.

    Raises:
        ValueError: The space is of another kind.
    """
    if isinstance(observation_space, spaces.Dict):
        return {
            name: preprocess_obs(obs[name], space, normalize_images) for name, space in observation_space.spaces.items()
        }
    if isinstance(observation_space, spaces.Box):
        is_divided = normalize_images and is_image_space(observation_space)
        return obs.float() / LARGEST_PIXEL if is_divided else obs.float()
    if isinstance(observation_space, spaces.Discrete):
        choices = (obs - int(observation_space.start)).long()
        return functional.one_hot(choices, int(observation_space.n)).float().flatten(1)
    if isinstance(observation_space, spaces.MultiDiscrete):
        parts = obs.long().flatten(1).unbind(-1)
        sizes = observation_space.nvec.flatten()
        return torch.cat([functional.one_hot(part, int(size)).float() for part, size in zip(parts, sizes)], dim=-1)
    if isinstance(observation_space, spaces.MultiBinary):
        return obs.float()
    raise ValueError(f"observations of {observation_space} have no form for networks")


def get_obs_shape(observation_space: spaces.Space[Any]) -> Any:
    """Return the shape of an observation; for a Dict the shapes by name.

    Raises:
        ValueError: The space is of another kind.
    """
    if isinstance(observation_space, spaces.Dict):
        return {name: get_obs_shape(space) for name, space in observation_space.spaces.items()}
    if isinstance(observation_space, spaces.Discrete):
        return (1,)
    if isinstance(observation_space, spaces.MultiDiscrete):
        return (len(observation_space.nvec),)
    if isinstance(observation_space, spaces.Box | spaces.MultiBinary):
        return observation_space.shape
    raise ValueError(f"{observation_space} is not supported; use a Box, Discrete, MultiDiscrete or Dict")


def get_flattened_obs_dim(observation_space: spaces.Space[Any]) -> int:
    """Return the number of entries of a flattened observation, in which choices are one-hot."""
    if isinstance(observation_space, spaces.MultiDiscrete):
        return int(sum(observation_space.nvec.flatten()))
    return int(spaces.utils.flatdim(observation_space))


def get_action_dim(action_space: spaces.Space[Any]) -> int:
    """Return the number of entries of an action; 1 for a choice.

    Raises:
        ValueError: The space is of another kind, or a MultiBinary with several dimensions.
    """
    if isinstance(action_space, spaces.Box):
        return int(np.prod(action_space.shape))
    if isinstance(action_space, spaces.Discrete):
        return 1
    if isinstance(action_space, spaces.MultiDiscrete):
        return len(action_space.nvec)
    if isinstance(action_space, spaces.MultiBinary) and isinstance(action_space.n, int | np.integer):
        return int(action_space.n)
    raise ValueError(f"{action_space} is not supported; use a Box, Discrete, MultiDiscrete or MultiBinary")


def check_for_nested_spaces(obs_space: spaces.Space[Any]) -> None:
    """Raise `ValueError` if a Dict or Tuple contains another Dict or Tuple."""
    if not isinstance(obs_space, spaces.Dict | spaces.Tuple):
        return
    parts = obs_space.spaces.values() if isinstance(obs_space, spaces.Dict) else obs_space.spaces
    if any(isinstance(part, spaces.Dict | spaces.Tuple) for part in parts):
        raise ValueError(f"{obs_space} has spaces inside of spaces; flatten it with a wrapper")


def is_vectorized_observation(observation: Any, observation_space: spaces.Space[Any]) -> bool:
    """Return whether this is a batch `[N, ...]` of observations of the space, rather than one.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(observation_space, spaces.Dict):
        parts = observation_space.spaces.items()
        return any(is_vectorized_observation(observation[name], space) for name, space in parts)
    shape = observation_space.shape or ()
    found = maybe_transpose(np.asarray(observation), observation_space).shape
    if found != shape and found[1:] != shape:
        raise ValueError(
            f"an observation of shape {found} does not fit the space {observation_space}; give {shape}, or "
            f"{('n', *shape)} for n environments"
        )
    return found != shape


def as_batch(observation: Any, observation_space: spaces.Space[Any]) -> Any:
    """Return one observation or a batch as arrays `[N, ...]`. Images have the form of the space."""
    if isinstance(observation_space, spaces.Dict):
        return {name: as_batch(observation[name], space) for name, space in observation_space.spaces.items()}
    array = maybe_transpose(np.asarray(observation), observation_space)
    return array.reshape(-1, *(observation_space.shape or ()))


def obs_as_tensor(obs: Any, device: torch.device | str) -> Any:
    """Return arrays, or a dict of arrays, as tensors on a device."""
    if isinstance(obs, Mapping):
        return {name: obs_as_tensor(part, device) for name, part in obs.items()}
    tensor: Tensor = torch.as_tensor(np.asarray(obs), device=device)
    return tensor
