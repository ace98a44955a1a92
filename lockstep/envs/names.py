"""From the name of an environment to what it stands for: the one place for the command line and for Python."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import find_highest_version, parse_env_id

from lockstep.envs.probes import register_environments

PACKAGES = {"ALE": ("ale_py", "ale-py")}
"""namespace of ids -> the module that registers them when it is imported, and what pip calls it"""


def named_environment(name: str) -> Any:
    """Return what `name` stands for: the class or function of `module:Class`, else the id itself.

    An id is as `gymnasium.make` takes it (`CartPole-v1`, `package:Id-v0`); the package before a colon is imported.

    Raises:
        ValueError: the module is not installed, or has nothing of that name (with the nearest names).
    """
    module_name, colon, rest = name.partition(":")
    if not colon:
        return name
    module = _imported(module_name, name)
    made: Any = getattr(module, rest, None)
    if callable(made) or isinstance(made, gym.Env):
        return made
    if _registered(rest) is not None:
        return name
    near = suggestion(rest, [*(key for key, part in vars(module).items() if callable(part)), *gym.registry])
    raise ValueError(
        f"{name!r} is unknown: the module {module_name!r} has no class or function {rest!r}, and there is no "
        f"environment id {rest!r} once it is imported.{near}"
    )


def known_id(env_id: str) -> str:
    """Return the full id in gymnasium's registry; the package that registers it is imported, as far as the name tells.

    Raises:
        ValueError: gymnasium does not know the id all the same (with the nearest known ones).
    """
    module_name, colon, rest = env_id.partition(":")
    if colon:
        _imported(module_name, env_id)
        env_id = rest
    namespace, slash, _ = env_id.partition("/")
    what_to_do = "Environments of another package must be registered first (import it), or be named 'package:Id-v0'."
    if slash and _registered(env_id) is None:
        what_to_do = _register(namespace) or what_to_do
    full = _registered(env_id)
    if full is None:
        raise ValueError(f"the environment id {env_id!r} is unknown.{suggestion(env_id, gym.registry)} {what_to_do}")
    return full


def _registered(env_id: str) -> str | None:
    """The id as it is registered, None where it is not; one without a version means the highest that there is."""
    if env_id in gym.registry:
        return env_id
    try:
        namespace, name, version = parse_env_id(env_id)
    except gym.error.Error:
        return None
    highest = None if version is not None else find_highest_version(namespace, name)
    return None if highest is None else f"{env_id}-v{highest}"


def _register(namespace: str) -> str:
    """Import the package of a namespace; says what to install where that is known and missing, else nothing."""
    if namespace == "lockstep":
        register_environments()
        return ""
    module_name, to_install = PACKAGES.get(namespace, (namespace, ""))
    if not module_name:
        return ""
    try:
        gym.register_envs(importlib.import_module(module_name))
    except ModuleNotFoundError as error:
        if error.name not in (module_name, module_name.partition(".")[0]):
            raise
        return f"Install the package of {namespace}/ environments: pip install {to_install}" if to_install else ""
    return ""


def _imported(module_name: str, name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.partition(".")[0] and error.name != module_name:
            raise
        raise ValueError(
            f"{name!r}: there is no module {module_name!r}; is it in this directory, or the package that has it "
            "installed (pip install ...)?"
        ) from None


def suggestion(given: str, known: Iterable[str]) -> str:
    """` Did you mean ...?` with the nearest of the known names, or nothing."""
    near = difflib.get_close_matches(given, list(known), n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(repr(name) for name in near)}?" if near else ""
