"""`make_vec_env` and `make_atari_env`: vector environments from the id of an environment or a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym

from lockstep_sb3.common.atari_wrappers import AtariWrapper
from lockstep_sb3.common.monitor import Monitor
from lockstep_sb3.common.vec_env import DummyVecEnv, VecEnv
from lockstep_sb3.common.vec_env.patch_gym import _patch_env
from lockstep_sb3.common.vec_env.util import is_wrapped as is_wrapped
from lockstep_sb3.common.vec_env.util import unwrap_wrapper as unwrap_wrapper


def make_vec_env(
    env_id: str | Callable[..., gym.Env],
    n_envs: int = 1,
    seed: int | None = None,
    start_index: int = 0,
    monitor_dir: str | None = None,
    wrapper_class: Callable[..., gym.Env] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    vec_env_cls: Callable[..., Any] | None = None,
    vec_env_kwargs: Mapping[str, Any] | None = None,
    monitor_kwargs: Mapping[str, Any] | None = None,
    wrapper_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Return `n_envs` environments as a vector environment.

    Each of them gets a `Monitor` only if there is a file to write or a wrapper around it: vector environments count
    returns and lengths themselves.

    Args:
        env_id: Id of an environment, or a function that makes one.
        n_envs: Number of environments.
        seed: Seed of the first environment; environment i gets `seed + i`.
        start_index: Number of the first monitor file.
        monitor_dir: Folder of the monitor files.
        wrapper_class: Wrapper of each environment.
        env_kwargs: Keyword arguments of the environments.
        vec_env_cls: Class of the vector environment. Defaults to `DummyVecEnv`.
        vec_env_kwargs: Keyword arguments of that class.
        monitor_kwargs: Keyword arguments of `Monitor`.
        wrapper_kwargs: Keyword arguments of `wrapper_class`.
    """

    def make(index: int) -> gym.Env:
        env = _patch_env(_make_env(env_id, dict(env_kwargs or {})))
        if seed is not None:
            env.action_space.seed(seed + index)
        if monitor_dir is not None or monitor_kwargs or wrapper_class is not None:
            file = None if monitor_dir is None else Path(monitor_dir) / str(index)
            env = Monitor(env, file, **(monitor_kwargs or {}))
        return env if wrapper_class is None else wrapper_class(env, **(wrapper_kwargs or {}))

    makers = [lambda index=start_index + i: make(index) for i in range(n_envs)]
    vec_env_class = vec_env_cls or DummyVecEnv
    venv = vec_env_class(makers, **(vec_env_kwargs or {}))
    if seed is not None:
        venv.seed(seed)
    return venv


def _make_env(env_id: str | Callable[..., gym.Env], env_kwargs: dict[str, Any]) -> gym.Env:
    """Return an environment made from an id or by a function. An id gets the render mode "rgb_array", if it has it."""
    if not isinstance(env_id, str):
        return env_id(**env_kwargs)
    options = {"disable_env_checker": True, **env_kwargs}
    try:
        return gym.make(env_id, **{"render_mode": "rgb_array", **options})
    except TypeError:  # an environment that takes no render mode
        return gym.make(env_id, **options)


def make_atari_env(
    env_id: str | Callable[..., gym.Env],
    n_envs: int = 1,
    seed: int | None = None,
    start_index: int = 0,
    monitor_dir: str | None = None,
    wrapper_kwargs: Mapping[str, Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    vec_env_cls: Callable[..., Any] | None = None,
    vec_env_kwargs: Mapping[str, Any] | None = None,
    monitor_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Return a vector environment of Atari games, each in an `AtariWrapper` with `wrapper_kwargs`.

    The other arguments are those of `make_vec_env`.
    """
    return make_vec_env(
        env_id,
        n_envs=n_envs,
        seed=seed,
        start_index=start_index,
        monitor_dir=monitor_dir,
        wrapper_class=AtariWrapper,
        env_kwargs=env_kwargs,
        vec_env_cls=vec_env_cls,
        vec_env_kwargs=vec_env_kwargs,
        monitor_kwargs=monitor_kwargs,
        wrapper_kwargs=wrapper_kwargs,
    )


def vector_of(env: Any) -> Any:
    """Return a vector environment made of an id or of an environment.

    A vector environment is returned unchanged, also one of an installed Stable-Baselines3.
    """
    if isinstance(env, VecEnv) or all(hasattr(env, name) for name in ("num_envs", "step_async", "step_wait")):
        return env
    return make_vec_env(env) if isinstance(env, str) else DummyVecEnv([lambda: env])
