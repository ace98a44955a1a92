"""`DummyVecEnv`: steps its environments one after the other in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym

from lockstep.envs import LightSyncVectorEnv
from lockstep_sb3.common.vec_env.base_vec_env import VecEnvIndices
from lockstep_sb3.common.vec_env.boundary_vec_env import BoundaryVecEnv
from lockstep_sb3.common.vec_env.patch_gym import _patch_env
from lockstep_sb3.common.vec_env.util import is_wrapped


class DummyVecEnv(BoundaryVecEnv):
    """Vector environment that steps its environments one after the other in this process.

    Args:
        env_fns: One function for each environment that makes it.
    """

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env]]) -> None:
        envs = [_patch_env(make()) for make in env_fns]
        boundary = LightSyncVectorEnv([partial(_as_is, env) for env in envs], owns_envs=False)
        self.envs = boundary.envs
        super().__init__(boundary)

    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> list[Any]:
        return [self.envs[row].get_wrapper_attr(method_name)(*args, **kwargs) for row in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        return [is_wrapped(self.envs[row], wrapper_class) for row in self._get_indices(indices)]


def _as_is(env: gym.Env) -> gym.Env:
    """Return an environment that has been made already."""
    return env
