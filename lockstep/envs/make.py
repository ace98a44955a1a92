"""From an id, a function, an environment or a vector of them to one boundary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, VectorEnv

from lockstep.envs.adapters import VectorEnvBoundary, native_vector
from lockstep.envs.async_adapter import AsyncVectorEnvBoundary
from lockstep.envs.boundary import VectorBoundary
from lockstep.envs.envpool_adapter import EnvPoolBoundary, is_envpool, make_envpool
from lockstep.envs.names import known_id, named_environment, suggestion
from lockstep.envs.sync import LightSyncVectorEnv, single
from lockstep.envs.workers import WorkerVectorEnv
from lockstep.state.checks import check_whole
from lockstep.state.restarts import RestartLimits

MODES = ("auto", "sync", "async", "vector", "envpool")


def make_vector(
    env: Any,
    *,
    num_envs: int = 1,
    mode: str = "auto",
    env_config: Mapping[str, Any] | None = None,
    seed: int | None = None,
    step_timeout: float | None = None,
    restarts: RestartLimits | None = None,
) -> VectorBoundary:
    """One boundary over whatever ``env`` is.

    Args:
        env: an environment id (or ``EnvSpec``), ``package:Id-v0`` or ``module:Class``; a function or class that
            makes one environment; a finished environment (one row); a gymnasium vector environment or a pool
            of EnvPool (their own number of rows); or a boundary, which is given back as it is.
        num_envs: number of rows B; a finished environment or vector has its own.
        mode: for ids and functions, who steps the rows: "sync" (our vectoriser, in this process; what "auto"
            takes), "async" (one process for each row), "vector" (the native vector form of an id), "envpool".
        env_config: keyword arguments for making a single environment (native vectors and pools: for the
            whole).
        seed: where given, the first reset is done at once, with the seeds ``seed, seed + 1, ...``.
        step_timeout: seconds that a step of an environment in its own process may take; "async" only.
        restarts: how often environments in processes of their own are started again; "async" only.

    Raises:
        ValueError: unknown id (with the nearest known ones), mode or number of environments, or options that
            do not fit what ``env`` is.
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is unknown; allowed: {', '.join(MODES)}.{suggestion(mode, MODES)}")
    num_envs = check_whole("num_envs", num_envs, 1)
    if restarts is not None and mode != "async":
        raise ValueError(f"restarts applies to mode='async' only, got mode={mode!r}.")
    boundary = _finished(env, step_timeout)
    if boundary is not None:
        if mode != "auto" or env_config or num_envs not in (1, boundary.num_envs):
            raise ValueError(
                f"{type(env).__name__} is finished, with {boundary.num_envs} rows: mode={mode!r}, "
                f"num_envs={num_envs} and env_config={env_config!r} apply to ids and functions only. Leave "
                "them out."
            )
    else:
        boundary = _build(env, num_envs, mode, env_config, step_timeout, restarts)
    if seed is not None:
        boundary.reset([seed + row for row in range(boundary.num_envs)])
    return boundary


def _finished(env: Any, step_timeout: float | None) -> VectorBoundary | None:
    """The boundary over something that steps already, None for something to be made."""
    if step_timeout is not None and isinstance(env, VectorBoundary | VectorEnv | gym.Env):
        if type(env) is not AsyncVectorEnv:
            raise ValueError(f"step_timeout applies to an AsyncVectorEnv only, got {type(env).__name__}.")
    if isinstance(env, VectorBoundary):
        return env
    if is_envpool(env):
        return EnvPoolBoundary(env)
    if isinstance(env, AsyncVectorEnv):
        return AsyncVectorEnvBoundary(env, step_timeout=step_timeout)
    if isinstance(env, VectorEnv):
        return VectorEnvBoundary(env)
    return single(env) if isinstance(env, gym.Env) else None


def _build(
    env: Any,
    num_envs: int,
    mode: str,
    env_config: Mapping[str, Any] | None,
    step_timeout: float | None,
    restarts: RestartLimits | None,
) -> VectorBoundary:
    if step_timeout is not None and mode != "async":
        raise ValueError(f"step_timeout applies to mode='async' only, got mode={mode!r}.")
    if mode == "envpool":
        return make_envpool(env, num_envs, env_config or {})
    if mode == "vector":
        named = named_environment(env) if isinstance(env, str) else env
        if not isinstance(named, str | EnvSpec):
            raise TypeError(f"mode='vector' needs an environment id, got {env!r}.")
        spec = gym.spec(known_id(named)) if isinstance(named, str) else named
        return VectorEnvBoundary(native_vector(spec, num_envs, env_config or {}))
    factory = single_env_factory(env, env_config)
    if mode == "async":
        return WorkerVectorEnv([factory] * num_envs, step_timeout=step_timeout, restarts=restarts)
    return LightSyncVectorEnv([factory] * num_envs)


def single_env_factory(env: Any, env_config: Mapping[str, Any] | None = None) -> Callable[[], gym.Env]:
    """A function that makes one environment of an id, ``module:Class``, ``EnvSpec``, class or function.

    Raises:
        ValueError: the id is unknown (with the nearest known ids), or its packages are not installed.
    """
    config = dict(env_config or {})
    if isinstance(env, str):
        env = named_environment(env)
    if isinstance(env, str):
        known_id(env)
    if isinstance(env, str | EnvSpec):
        return lambda: _gym_make(env, config)
    if callable(env):
        return lambda: _checked(env(**config), env)
    several = isinstance(env, list | tuple)
    what_to_do = "; of several functions make gymnasium.vector.SyncVectorEnv(functions)" if several else ""
    raise TypeError(
        "env must be an environment id, a function or class that makes one, or an environment; got "
        f"{env!r}{what_to_do}."
    )


def _checked(made: Any, maker: Callable[..., Any]) -> gym.Env:
    """What `maker` made, where that is one environment."""
    if isinstance(made, gym.Env):
        return made
    of_vectors = ", or give the vector itself" if isinstance(made, VectorEnv) else ""
    raise TypeError(f"{maker!r} made {made!r}; it must return one gymnasium.Env at each call{of_vectors}.")


def _gym_make(env: Any, config: dict[str, Any]) -> gym.Env:
    if isinstance(env, str):
        known_id(env)  # in a process of its own its package may not be imported yet
    try:
        return gym.make(env, disable_env_checker=True, **config)
    except gym.error.DependencyNotInstalled as error:
        raise ValueError(f"the environment {env!r} needs a package that is not installed: {error}") from error
