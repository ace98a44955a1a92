"""State of environments, for those that can give it, so that a restored run continues bit for bit.

Known are gymnasium's classic control, its MuJoCo environments, and every environment that has

    get_env_state() -> dict of plain values and arrays        set_env_state(state) -> None

in itself (below its wrappers), or lists the attributes that it changes in `state_attributes`. The environment's
generator `np_random` is stored next to that state. Wrappers without state are allowed. A wrapper that
may have state (`FrameStackObservation`, `NormalizeReward`, a user's wrapper) makes the state unknown, which is None: a
state without the part of the wrapper would continue with other observations, and nothing would fail.
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
"""Attributes that a step or a reset changes, by class of gymnasium's classic control."""
_STATELESS_WRAPPERS = (
    wrappers.TimeLimit,  # its counter is stored by `env_state`
    wrappers.OrderEnforcing,
    wrappers.PassiveEnvChecker,
    wrappers.ClipAction,
    wrappers.RescaleAction,
    wrappers.FlattenObservation,
    wrappers.ReshapeObservation,
    wrappers.DtypeObservation,
)
_STATELESS_AGENT_WRAPPERS = (
    "OrderEnforcingWrapper",
    "AssertOutOfBoundsWrapper",
    "BaseWrapper",
    "BaseParallelWrapper",
)
"""Class names of PettingZoo's wrappers whose whole state a reset restores."""
BuiltEnv = Any
"""A gymnasium environment or a native vector of environments, wrapped or not."""


def env_state(env: BuiltEnv) -> dict[str, Any] | None:
    """Return the state of an environment with its random generator and time limits; None if it is unknown.

    All values are copies, which later steps leave unchanged.
    """
    if not has_env_state(env):
        return None
    base = env.unwrapped
    return {
        "class": type(base).__name__,
        "inner": _inner_state(base),
        "generator": deepcopy(base.np_random.bit_generator.state),
        "elapsed_steps": [elapsed_steps(limit) for limit in _time_limits(env)],
    }


def has_env_state(env: BuiltEnv) -> bool:
    """Return whether `env_state` can give the state of this environment with all its wrappers."""
    base = env.unwrapped
    is_known = hasattr(base, "get_env_state") or _is_mujoco(base) or bool(_state_attributes(base))
    # `type` and not `isinstance`: a subclass of a stateless wrapper may have a state.
    return is_known and all(type(wrapper) in _STATELESS_WRAPPERS for wrapper in _wrappers_of(env))


def set_env_state(env: BuiltEnv, state: dict[str, Any]) -> None:
    """Reset an environment that has the same wrappers, and restore a state that `env_state` returned.

    Raises:
        ValueError: The state is from another class of environment.
    """
    base = env.unwrapped
    if state["class"] != type(base).__name__:
        raise ValueError(f"the state is of a {state['class']}, the environment is a {type(base).__name__}.")

    # The reset builds what an environment creates on its first reset, and tells OrderEnforcing that steps may follow.
    env.reset()
    _set_inner_state(base, state["inner"])
    base.np_random = _generator(state["generator"])
    for limit, elapsed in zip(_time_limits(env), state["elapsed_steps"], strict=True):
        set_elapsed_steps(limit, elapsed)


def agents_env_state(env: BuiltEnv) -> dict[str, Any] | None:
    """Return the state of an environment of several agents; None if it is unknown.

    It is known for an environment that has `get_env_state` and `set_env_state`, or `state_attributes`, in itself or
    below PettingZoo's wrappers. A generator `np_random` is stored with it.
    """
    base = getattr(env, "unwrapped", env)
    layer = env
    while layer is not base:
        kind = type(layer)
        if kind.__name__ not in _STATELESS_AGENT_WRAPPERS or not kind.__module__.startswith("pettingzoo."):
            return None
        layer = layer.env
    if not (hasattr(base, "get_env_state") or _state_attributes(base)):
        return None

    rng = getattr(base, "np_random", None)
    generator = deepcopy(rng.bit_generator.state) if isinstance(rng, np.random.Generator) else None
    return {"class": type(base).__name__, "inner": _inner_state(base), "generator": generator}


def set_agents_env_state(env: BuiltEnv, state: dict[str, Any]) -> None:
    """Reset an environment of several agents, and restore a state that `agents_env_state` returned."""
    base: Any = getattr(env, "unwrapped", env)
    if state["class"] != type(base).__name__:
        raise ValueError(f"the state is of a {state['class']}, the environment is a {type(base).__name__}.")
    env.reset()
    _set_inner_state(base, state["inner"])
    if state["generator"] is not None:
        base.np_random = _generator(state["generator"])


def _generator(state: dict[str, Any]) -> np.random.Generator:
    """Return a new random generator in this state."""
    bit_generator = getattr(np.random, state["bit_generator"])(0)
    bit_generator.state = state
    return np.random.Generator(bit_generator)


def elapsed_steps(limit: wrappers.TimeLimit) -> int:
    """Return the number of steps that a time limit has counted in this episode."""
    return int(limit._elapsed_steps or 0)  # None before the first reset


def set_elapsed_steps(limit: wrappers.TimeLimit, steps: int) -> None:
    """Set the number of steps that a time limit has counted in this episode."""
    limit._elapsed_steps = steps  # type: ignore[assignment]


def _wrappers_of(env: BuiltEnv) -> Iterator[Any]:
    """Yield the wrappers of an environment, the outermost first."""
    while env is not env.unwrapped:
        yield env
        env = env.env


def _time_limits(env: BuiltEnv) -> list[wrappers.TimeLimit]:
    return [wrapper for wrapper in _wrappers_of(env) if type(wrapper) is wrappers.TimeLimit]


def _inner_state(base: BuiltEnv) -> dict[str, Any]:
    """Return the state of an environment without wrappers, except for its random generator."""
    if hasattr(base, "get_env_state"):
        state: dict[str, Any] = base.get_env_state()
        return state
    if _is_mujoco(base):
        return _mujoco_state(base)
    return {name: deepcopy(getattr(base, name)) for name in _state_attributes(base)}


def _set_inner_state(base: BuiltEnv, state: dict[str, Any]) -> None:
    """Restore a state that `_inner_state` returned."""
    if hasattr(base, "set_env_state"):
        base.set_env_state(deepcopy(state))
    elif _is_mujoco(base):
        _set_mujoco_state(base, state)
    else:
        for name, value in state.items():
            setattr(base, name, deepcopy(value))


def _state_attributes(base: BuiltEnv) -> tuple[str, ...]:
    """Return the names of all attributes that are state, without the random generator; empty if they are unknown."""
    kind = type(base)
    if kind.__module__.startswith("gymnasium.envs.classic_control."):
        return _CLASSIC.get(kind.__name__, ())
    return getattr(base, "state_attributes", ())


def _is_mujoco(base: BuiltEnv) -> bool:
    return type(base).__module__.startswith("gymnasium.envs.mujoco.") and hasattr(base, "data")


def _mujoco_state(base: BuiltEnv) -> dict[str, Any]:
    """Return the state that the next step depends on (`mj_getState`), and derived arrays that may be read before it."""
    import mujoco  # type: ignore[import-untyped]

    size = mujoco.mj_stateSize(base.model, mujoco.mjtState.mjSTATE_INTEGRATION)
    integration = np.empty(size)
    mujoco.mj_getState(base.model, base.data, integration, mujoco.mjtState.mjSTATE_INTEGRATION)
    derived = {name: array.copy() for name, array in _derived_arrays(base)}
    return {"integration": integration, "derived": derived}


def _set_mujoco_state(base: BuiltEnv, state: dict[str, Any]) -> None:
    """Restore a state that `_mujoco_state` returned."""
    import mujoco

    # `mj_forward` computes the arrays of contacts and constraints, which vary in size and are not stored. It also
    # changes part of the integration state (the warm start of the solver), so that state is set once more, and the
    # derived arrays as they were: an observation may read some of them from before the last integration.
    mujoco.mj_setState(base.model, base.data, state["integration"], mujoco.mjtState.mjSTATE_INTEGRATION)
    mujoco.mj_forward(base.model, base.data)
    mujoco.mj_setState(base.model, base.data, state["integration"], mujoco.mjtState.mjSTATE_INTEGRATION)
    for name, array in _derived_arrays(base):
        array[...] = state["derived"][name]


def _derived_arrays(base: BuiltEnv) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the writable float arrays of fixed size in the `MjData` of an environment, with their names.

    Each step allocates the arrays of contacts, constraints and islands again, in another size. Which ones these are
    depends on the version of MuJoCo. In a new `MjData` they are empty.
    """
    import mujoco

    new_data = mujoco.MjData(base.model)
    for name in dir(new_data):
        new = None if name.startswith("_") else getattr(new_data, name, None)
        if isinstance(new, np.ndarray) and new.size and new.dtype.kind == "f":
            value: np.ndarray = getattr(base.data, name)
            if value.flags.writeable:
                yield name, value
