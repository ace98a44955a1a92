"""The state of environments, as far as it can be had, so that a run continues bit for bit.

Known are gymnasium's classic control, its MuJoCo environments, and every environment that has

    get_env_state() -> dict of plain values and arrays        set_env_state(state) -> None

in itself (below its wrappers), or names what it remembers in `state_attributes`; beside that state the environment's
`np_random` is kept here. Wrappers that only transform are passed; one that may remember something
(`FrameStackObservation`, `NormalizeReward`, a wrapper of the user's) makes the state unknown, which is None.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import wrappers

_CLASSIC = {
    "CartPoleEnv": ("state", "steps_beyond_terminated"),
    "AcrobotEnv": ("state",),
    "PendulumEnv": ("state", "last_u"),
    "MountainCarEnv": ("state",),
    "Continuous_MountainCarEnv": ("state",),
    "CartPoleVectorEnv": ("state", "steps", "prev_done", "low", "high"),
}
_PASSED = (
    wrappers.TimeLimit,
    wrappers.OrderEnforcing,
    wrappers.PassiveEnvChecker,
    wrappers.ClipAction,
    wrappers.RescaleAction,
    wrappers.FlattenObservation,
    wrappers.ReshapeObservation,
    wrappers.DtypeObservation,
)
_CHECKING = ("OrderEnforcingWrapper", "AssertOutOfBoundsWrapper", "BaseWrapper", "BaseParallelWrapper")
"""wrappers of PettingZoo that remember nothing which a reset does not bring back"""
BuiltEnv = Any
"""A gymnasium environment, or a native vector of them, wrapped or not."""


def env_state(env: BuiltEnv) -> dict[str, Any] | None:
    """Return the state of an environment with its random generator and time limits, or None.

    Nothing in it changes when the environment goes on.
    """
    if not tells_state(env):
        return None
    base = env.unwrapped
    return {
        "class": type(base).__name__,
        "inner": _inner_state(base),
        "generator": deepcopy(base.np_random.bit_generator.state),
        "elapsed_steps": [elapsed_steps(limit) for limit in _time_limits(env)],
    }


def tells_state(env: BuiltEnv) -> bool:
    """Return whether `env_state` can give the state of this environment with all its wrappers."""
    base = env.unwrapped
    known = hasattr(base, "get_env_state") or _is_mujoco(base) or bool(_attributes(base))
    return known and all(type(wrapper) in _PASSED for wrapper in _wrappers_of(env))


def set_env_state(env: BuiltEnv, state: dict[str, Any]) -> None:
    """Reset an environment (with the same wrappers) and put it into what `env_state` gave.

    Raises:
        ValueError: the state is of another class of environment.
    """
    base = env.unwrapped
    if state["class"] != type(base).__name__:
        raise ValueError(f"the state is of a {state['class']}, the environment is a {type(base).__name__}.")
    env.reset()
    _set_inner_state(base, state["inner"])
    base.np_random = _generator(state["generator"])
    for limit, elapsed in zip(_time_limits(env), state["elapsed_steps"], strict=True):
        set_elapsed_steps(limit, elapsed)


def agents_env_state(env: BuiltEnv) -> dict[str, Any] | None:
    """Return the state of an environment of several agents, or None.

    Known is one that has `get_env_state` and `set_env_state`, or `state_attributes`, in itself or below PettingZoo's
    wrappers; a generator `np_random` is kept beside.
    """
    base, at = getattr(env, "unwrapped", env), env
    while at is not base:
        if type(at).__name__ not in _CHECKING or not type(at).__module__.startswith("pettingzoo."):
            return None
        at = at.env
    if not (hasattr(base, "get_env_state") or _attributes(base)):
        return None
    rng = getattr(base, "np_random", None)
    generator = deepcopy(rng.bit_generator.state) if isinstance(rng, np.random.Generator) else None
    return {"class": type(base).__name__, "inner": _inner_state(base), "generator": generator}


def set_agents_env_state(env: BuiltEnv, state: dict[str, Any]) -> None:
    """Reset an environment of several agents and put it into what `agents_env_state` gave."""
    base: Any = getattr(env, "unwrapped", env)
    if state["class"] != type(base).__name__:
        raise ValueError(f"the state is of a {state['class']}, the environment is a {type(base).__name__}.")
    env.reset()
    _set_inner_state(base, state["inner"])
    if state["generator"] is not None:
        base.np_random = _generator(state["generator"])


def _generator(state: dict[str, Any]) -> np.random.Generator:
    bit_generator = getattr(np.random, state["bit_generator"])(0)
    bit_generator.state = state
    return np.random.Generator(bit_generator)


def elapsed_steps(limit: wrappers.TimeLimit) -> int:
    """Return how many steps of the episode a time limit has counted."""
    return int(limit._elapsed_steps or 0)


def set_elapsed_steps(limit: wrappers.TimeLimit, steps: int) -> None:
    """Set how many steps of the episode a time limit has counted."""
    limit._elapsed_steps = steps  # type: ignore[assignment]


def _wrappers_of(env: BuiltEnv) -> Iterator[Any]:
    while env is not env.unwrapped:
        yield env
        env = env.env


def _time_limits(env: BuiltEnv) -> list[wrappers.TimeLimit]:
    return [wrapper for wrapper in _wrappers_of(env) if type(wrapper) is wrappers.TimeLimit]


def _inner_state(base: BuiltEnv) -> dict[str, Any]:
    if hasattr(base, "get_env_state"):
        state: dict[str, Any] = base.get_env_state()
        return state
    if _is_mujoco(base):
        return _mujoco_state(base)
    return {name: deepcopy(getattr(base, name)) for name in _attributes(base)}


def _set_inner_state(base: BuiltEnv, state: dict[str, Any]) -> None:
    if hasattr(base, "set_env_state"):
        base.set_env_state(deepcopy(state))
    elif _is_mujoco(base):
        _set_mujoco_state(base, state)
    else:
        for name, value in state.items():
            setattr(base, name, deepcopy(value))


def _attributes(base: BuiltEnv) -> tuple[str, ...]:
    """Return the names of all that an environment remembers besides its generator; none where that is unknown."""
    kind = type(base)
    if kind.__module__.startswith("gymnasium.envs.classic_control."):
        return _CLASSIC.get(kind.__name__, ())
    return getattr(base, "state_attributes", ())


def _is_mujoco(base: BuiltEnv) -> bool:
    return type(base).__module__.startswith("gymnasium.envs.mujoco.") and hasattr(base, "data")


def _mujoco_state(base: BuiltEnv) -> dict[str, Any]:
    """Return what the next step depends on (`mj_getState`), and derived arrays that may be read before it."""
    import mujoco  # type: ignore[import-untyped]

    size = mujoco.mj_stateSize(base.model, mujoco.mjtState.mjSTATE_INTEGRATION)
    integration = np.empty(size)
    mujoco.mj_getState(base.model, base.data, integration, mujoco.mjtState.mjSTATE_INTEGRATION)
    derived = {name: array.copy() for name, array in _derived_arrays(base.data)}
    return {"integration": integration, "derived": derived}


def _set_mujoco_state(base: BuiltEnv, state: dict[str, Any]) -> None:
    import mujoco

    mujoco.mj_setState(base.model, base.data, state["integration"], mujoco.mjtState.mjSTATE_INTEGRATION)
    mujoco.mj_forward(base.model, base.data)
    mujoco.mj_setState(base.model, base.data, state["integration"], mujoco.mjtState.mjSTATE_INTEGRATION)
    for name, array in _derived_arrays(base.data):
        array[...] = state["derived"][name]


def _derived_arrays(data: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield arrays of fixed size in an `MjData`; each step makes those of contacts and constraints anew."""
    for name in dir(data):
        if name.startswith(("_", "efc_", "contact", "iefc_", "island", "dof_island")):
            continue
        value = getattr(data, name, None)
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.flags.writeable:
            yield name, value
