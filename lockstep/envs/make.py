"""From an id, a function, an environment or a vector of them to one boundary."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym

from lockstep.envs.boundary import VectorBoundary
from lockstep.envs.sync import LightSyncVectorEnv, single

MODES = ("auto", "sync", "async", "vector", "envpool")


def make_vector(
    env: Any,
    *,
    num_envs: int = 1,
    mode: str = "auto",
    env_config: Mapping[str, Any] | None = None,
    seed: int | None = None,
) -> VectorBoundary:
    """One boundary over whatever ``env`` is.

    Args:
        env: an environment id (or ``EnvSpec``), a function or class that makes an environment.
        num_envs: number of rows B.
        mode: "sync" (our vectoriser, in this process; what "auto" takes for ids and functions).
        env_config: keyword arguments for making a single environment.
        seed: rows are seeded with ``seed, seed + 1, ...`` at once, where given.

    Raises:
        ValueError: unknown id (with the nearest known ones), mode or number of environments.
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is unknown; allowed: {', '.join(MODES)}.{_suggestion(mode, MODES)}")
    if not isinstance(num_envs, int) or num_envs < 1:
        raise ValueError(f"num_envs must be an integer of at least 1, got {num_envs!r}.")
    if isinstance(env, VectorBoundary):
        return env
    if isinstance(env, gym.Env):
        boundary: VectorBoundary = single(env)
    else:
        factory = single_env_factory(env, env_config)
        boundary = LightSyncVectorEnv([factory] * num_envs)
    if seed is not None:
        boundary.reset([seed + row for row in range(boundary.num_envs)])
    return boundary


def single_env_factory(env: Any, env_config: Mapping[str, Any] | None = None) -> Callable[[], gym.Env]:
    """A function that makes one environment of an id, ``EnvSpec``, class or function.

    Raises:
        ValueError: the id is unknown (with the nearest known ids), or its packages are not installed.
    """
    config = dict(env_config or {})
    if isinstance(env, str):
        check_known(env)
    if isinstance(env, str | gym.envs.registration.EnvSpec):
        return lambda: _gym_make(env, config)
    if callable(env):
        return lambda: env(**config)
    raise TypeError(
        f"env must be an environment id, a function or class that makes one, or an environment; got {env!r}."
    )


def check_known(env_id: str) -> None:
    """Raise ``ValueError`` with suggestions where gymnasium does not know ``env_id``."""
    try:
        gym.spec(env_id)
    except (gym.error.UnregisteredEnv, gym.error.DeprecatedEnv) as error:
        known = list(gym.registry)
        raise ValueError(
            f"the environment id {env_id!r} is unknown.{_suggestion(env_id, known)} Environments of another "
            "package must be registered first (import it), or be named 'package:Id-v0'."
        ) from error
    except (gym.error.Error, ImportError) as error:
        raise ValueError(f"the environment id {env_id!r} cannot be resolved: {error}") from error


def _gym_make(env: Any, config: dict[str, Any]) -> gym.Env:
    try:
        return gym.make(env, disable_env_checker=True, **config)
    except gym.error.DependencyNotInstalled as error:
        raise ValueError(f"the environment {env!r} needs a package that is not installed: {error}") from error


def _suggestion(given: str, known: Any) -> str:
    near = difflib.get_close_matches(given, list(known), n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(repr(name) for name in near)}?" if near else ""
