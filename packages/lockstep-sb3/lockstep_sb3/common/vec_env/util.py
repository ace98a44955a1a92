"""Helpers for wrappers, and for the parts of observation spaces."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lockstep_sb3.common.vec_env.base_vec_env import VecEnvWrapper


def unwrap_wrapper(env: Any, wrapper_class: type[Any]) -> Any:
    """Return the outermost wrapper of this class around an environment; None without one."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, wrapper_class):
            return env
        env = env.env
    return None


def is_wrapped(env: Any, wrapper_class: type[Any]) -> bool:
    """Return whether an environment has a wrapper of this class."""
    return unwrap_wrapper(env, wrapper_class) is not None


def unwrap_vec_wrapper(env: Any, vec_wrapper_class: type[Any]) -> Any:
    """Return the outermost wrapper of this class around a vector environment; None without one."""
    while isinstance(env, VecEnvWrapper):
        if isinstance(env, vec_wrapper_class):
            return env
        env = env.venv
    return None


def is_vecenv_wrapped(env: Any, vec_wrapper_class: type[Any]) -> bool:
    """Return whether a vector environment has a wrapper of this class."""
    return unwrap_vec_wrapper(env, vec_wrapper_class) is not None


def dict_to_obs(obs_space: gym.Space, obs_dict: dict[Any, np.ndarray]) -> Any:
    """Return the observation of a space from its parts by key (see `obs_space_info`)."""
    if isinstance(obs_space, spaces.Dict):
        return obs_dict
    if isinstance(obs_space, spaces.Tuple):
        return tuple(obs_dict[index] for index in range(len(obs_space.spaces)))
    return obs_dict[None]


def obs_space_info(obs_space: gym.Space) -> tuple[list[Any], dict[Any, tuple[int, ...]], dict[Any, Any]]:
    """Return keys, shapes and dtypes of the parts of a space.

    The keys of a Dict are its own, those of a Tuple are 0, 1 and so on, and any other space has the key None.
    """
    parts: dict[Any, Any] = {None: obs_space}
    if isinstance(obs_space, spaces.Dict):
        parts = dict(obs_space.spaces)
    elif isinstance(obs_space, spaces.Tuple):
        parts = dict(enumerate(obs_space.spaces))
    shapes = {key: space.shape for key, space in parts.items()}
    dtypes = {key: space.dtype for key, space in parts.items()}
    return list(parts), shapes, dtypes
