"""Check that an environment is one of gymnasium, and conversion of environments and spaces of the old gym."""

from __future__ import annotations

from typing import Any

import gymnasium

ADVICE = "install shimmy and the old gym (pip install 'shimmy[gym-v26]'), or make it one of gymnasium"


def _patch_env(env: Any) -> gymnasium.Env:
    """Return an environment of gymnasium unchanged, and one of the old gym in shimmy's wrapper.

    Raises:
        ValueError: It is neither, or shimmy is not installed.
    """
    if isinstance(env, gymnasium.Env):
        return env
    old_gym = "gym" in {each.__module__.partition(".")[0] for each in type(env).__mro__}
    if not old_gym:
        raise ValueError(f"{env!r} is a {type(env).__name__}; it must be a gymnasium.Env: derive its class from it")
    try:
        import shimmy  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise ValueError(f"{env!r} is an environment of the old gym; {ADVICE}") from error
    takes_seed = "seed" in env.unwrapped.reset.__code__.co_varnames
    convert = shimmy.GymV26CompatibilityV0 if takes_seed else shimmy.GymV21CompatibilityV0
    converted: gymnasium.Env = convert(env=env)
    return converted


def _convert_space(space: Any) -> gymnasium.Space:
    """Return a space of gymnasium unchanged, and one of the old gym converted by shimmy.

    Raises:
        ValueError: It is neither, or shimmy is not installed.
    """
    if isinstance(space, gymnasium.Space):
        return space
    try:
        from shimmy import openai_gym_compatibility  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise ValueError(f"{space!r} is not a gymnasium.Space; {ADVICE}") from error
    converted: gymnasium.Space = openai_gym_compatibility._convert_space(space)
    return converted
