"""Functions that read the action masks of environments from their method `action_masks`."""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep_sb3.common.vec_env import VecEnv

EXPECTED_METHOD_NAME = "action_masks"
"""Name of the method of an environment that returns the mask of its present actions."""


def is_vector(env: Any) -> bool:
    """Return whether an object is a vector environment: a `VecEnv`, or one of an installed Stable-Baselines3."""
    return isinstance(env, VecEnv) or (hasattr(env, "num_envs") and hasattr(env, "env_method"))


def get_action_masks(env: Any) -> np.ndarray:
    """Return the present action masks of an environment `[entries]`, or of a vector environment `[B, entries]`.

    A mask has an entry for each choice, which is True if the choice is allowed: `n` entries for `Discrete`, the sum of
    `nvec` for `MultiDiscrete`, and two for each number of `MultiBinary` (0, then 1).
    """
    if is_vector(env):
        return np.stack(env.env_method(EXPECTED_METHOD_NAME))
    find_attribute = getattr(env, "get_wrapper_attr", env.__getattribute__)
    masks: np.ndarray = np.asarray(find_attribute(EXPECTED_METHOD_NAME)())
    return masks


def is_masking_supported(env: Any) -> bool:
    """Return whether an environment, or each environment of a vector, has the method `action_masks`."""
    if is_vector(env):
        return all(env.env_method("has_wrapper_attr", EXPECTED_METHOD_NAME))
    return hasattr(env, EXPECTED_METHOD_NAME) or (
        hasattr(env, "has_wrapper_attr") and bool(env.has_wrapper_attr(EXPECTED_METHOD_NAME))
    )
