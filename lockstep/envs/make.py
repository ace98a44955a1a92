"""Construction of vector boundaries from ids, functions, environments and vectors, and the names of environments.

The first half makes vectors; the second half finds the class or function that a name such as `CartPole-v1`,
`package:Id-v0`, `module:Class`, `path/file.py:Class` or `pettingzoo.classic.connect_four_v3` refers to. A name may come
from a configuration file of a stranger (`NameInFile`). Looking it up must then not run code that the user has not
allowed, since importing a module runs it.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, find_highest_version, parse_env_id
from gymnasium.vector import AsyncVectorEnv, VectorEnv

from lockstep.envs.atari import NAMESPACE, AtariGame
from lockstep.envs.boundary import EnvLike, VectorBoundary
from lockstep.envs.errors import did_you_mean
from lockstep.envs.gymnasium_vectors import (
    AsyncVectorEnvBoundary,
    EnvPoolBoundary,
    VectorEnvBoundary,
    is_envpool,
    make_envpool,
)
from lockstep.envs.sb3_vec_env import VecEnvBoundary, is_vec_env
from lockstep.envs.sync import LightSyncVectorEnv
from lockstep.envs.tensor import TENSOR_ENVS, TensorBoundary, TensorVecEnv, make_tensor_env, register_tensor_envs
from lockstep.envs.toys.probes import register_environments
from lockstep.envs.workers import WorkerVectorEnv
from lockstep.options.checks import check_whole, is_number
from lockstep.options.restarts import RestartLimits
from lockstep.state.names import current_name, names_script
from lockstep.state.trust import PETTINGZOO, Kind, is_in_current_folder, module_named, name_in_file

MODES = ("auto", "sync", "async", "vector", "envpool")
ENVIRONMENT_CLASS = Kind(
    "a class of gymnasium, PettingZoo, vector or tensor environments",
    (gym.Env, VectorEnv, TensorVecEnv),
    foreign_bases=(
        "pettingzoo.utils.env:AECEnv",
        "pettingzoo.utils.env:ParallelEnv",
        "stable_baselines3.common.vec_env.base_vec_env:VecEnv",
    ),
)
"""Classes that a configuration file may name as an environment."""


def name_of_env(env: object) -> str:
    """Return the id of an environment, or the name of its class or function. "offline" for None."""
    if env is None or isinstance(env, str):
        return env or "offline"
    return str(getattr(env, "__name__", type(env).__name__))


def make_vector(
    env: EnvLike,
    *,
    num_envs: int = 1,
    mode: str = "auto",
    env_config: Mapping[str, Any] | None = None,
    seed: int | None = None,
    step_timeout: float | None = None,
    restarts: RestartLimits | None = None,
) -> VectorBoundary:
    """Return the boundary over an environment or a vector of environments, which is made first if necessary.

    Args:
        env: An environment id (or `EnvSpec`), `package:Id-v0` or `module:Class`; a function or class that makes one
            environment; a class of tensor environments, which is called with `num_envs`; a finished environment (one
            row); a gymnasium vector environment, a pool of EnvPool, a `VecEnv` of Stable-Baselines3 or a `TensorVecEnv`
            (their own number of rows); or a boundary, which is returned unchanged.
        num_envs: Number of rows B. A finished environment or vector has its own.
        mode: Who steps the rows of an id or function: "sync" (our vector in this process), "async" (one process for
            each row), "vector" (the native vector form of an id) or "envpool". "auto" is "vector" for Atari ids and
            "sync" for all others.
        env_config: Keyword arguments for making a single environment; for native vectors and pools, for the whole
            vector.
        seed: Do the first reset at once, with the seeds `seed, seed + 1, ...`.
        step_timeout: Seconds that a step of an environment in its own process may take; "async" only.
        restarts: Limits of restarting environments in their own processes; "async" only.

    Raises:
        ValueError: The id (names the nearest known ones), the mode or the number of environments is unknown or not
            allowed, or an option does not apply to this kind of `env`.
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is unknown; allowed: {', '.join(MODES)}.{did_you_mean(mode, MODES)}")
    num_envs = check_whole("num_envs", num_envs, 1)
    if step_timeout is not None and not (is_number(step_timeout) and step_timeout > 0):
        raise ValueError(f"step_timeout must be a positive number of seconds or None, got {step_timeout!r}.")
    for name, value in (("step_timeout", step_timeout), ("restarts", restarts)):
        # gymnasium's own AsyncVectorEnv has a time-out as well, but no restarts.
        is_allowed = mode == "async" or (name == "step_timeout" and type(env) is AsyncVectorEnv)
        if value is not None and not is_allowed:
            raise ValueError(f"{name} applies to mode='async' only, got mode={mode!r} and {env!r}.")

    boundary = _finished_boundary(env, step_timeout)
    if boundary is None:
        boundary = _new_boundary(env, num_envs, mode, env_config, step_timeout, restarts)
    elif mode != "auto" or env_config or num_envs not in (1, boundary.num_envs):
        raise ValueError(
            f"{type(env).__name__} is finished, with {boundary.num_envs} rows: mode={mode!r}, num_envs={num_envs} and "
            f"env_config={env_config!r} apply to ids and functions only. Leave them out."
        )
    if seed is not None:
        boundary.reset([seed + row for row in range(boundary.num_envs)])
    return boundary


def _finished_boundary(env: EnvLike, step_timeout: float | None) -> VectorBoundary | None:
    """Return the boundary over a finished environment or vector; None for an id or function."""
    if isinstance(env, VectorBoundary):
        return env
    if isinstance(env, TensorVecEnv):
        return TensorBoundary(env)
    if is_envpool(env):
        return EnvPoolBoundary(env)
    if isinstance(env, AsyncVectorEnv):
        return AsyncVectorEnvBoundary(env, step_timeout=step_timeout)
    if isinstance(env, VectorEnv):
        return VectorEnvBoundary(env)
    if is_vec_env(env):
        return VecEnvBoundary(env)
    if isinstance(env, gym.Env):
        return LightSyncVectorEnv([lambda: env], owns_envs=False)
    return None


def _new_boundary(
    env: EnvLike,
    num_envs: int,
    mode: str,
    env_config: Mapping[str, Any] | None,
    step_timeout: float | None,
    restarts: RestartLimits | None,
) -> VectorBoundary:
    """Make environments from an id or function, and return the boundary over them. Parameters: `make_vector`."""
    named = named_environment(env) if isinstance(env, str) else env
    made_by = tensor_class(named)
    if made_by is not None and mode in ("auto", "vector"):
        options = env_config or {}
        # Environments of an id take the options of `make_tensor_env`, and no others.
        made = make_tensor_env(named, num_envs, **options) if isinstance(named, str) else made_by(num_envs, **options)
        return TensorBoundary(made)
    if isinstance(named, str | EnvSpec):
        native = _native_vector(named, num_envs, mode, env_config or {})
        if native is not None:
            return native
    elif mode in ("vector", "envpool"):
        raise TypeError(f"mode={mode!r} needs an environment id, got {env!r}.")
    factory = single_env_factory(env, env_config)
    if mode == "async":
        return WorkerVectorEnv([factory] * num_envs, step_timeout=step_timeout, restarts=restarts)
    return LightSyncVectorEnv([factory] * num_envs)


def tensor_class(env: object) -> Callable[..., TensorVecEnv] | None:
    """Return the class of the tensor environments that an id, a name or a class refers to; None for all others."""
    named = named_environment(env) if isinstance(env, str) else env
    if isinstance(named, str):
        return TENSOR_ENVS.get(named)
    is_class = isinstance(named, type) and issubclass(named, TensorVecEnv)
    return cast(Callable[..., TensorVecEnv], named) if is_class else None


def _native_vector(env: str | EnvSpec, num_envs: int, mode: str, options: Mapping[str, Any]) -> VectorBoundary | None:
    """Return a native vector or a pool of an id; None if its single environments are to be made instead.

    Only Atari games use a native vector by default, because it is faster and gives the same frames.
    """
    env_id = env if isinstance(env, str) else env.id
    is_atari = f"{NAMESPACE}/" in env_id
    if mode == "envpool" and not is_atari:
        return make_envpool(env_id, num_envs, options)
    if mode in ("sync", "async") or (mode == "auto" and not is_atari):
        return None

    spec = _spec(env)
    game = AtariGame.of(spec, options)
    if game is not None and game.render_mode is not None:
        return None  # native vectors of Atari do not render
    if mode == "envpool":
        return make_envpool(env_id, num_envs, options) if game is None else game.pool(num_envs)
    if game is not None:
        return game.vector(num_envs)
    if mode == "auto":
        return None
    if spec.vector_entry_point is None:
        raise ValueError(
            f"{spec.id!r} has no native vector form (vector_entry_point); use mode='sync' or mode='async'."
        )
    made = gym.make_vec(spec, num_envs=num_envs, vectorization_mode="vector_entry_point", **options)
    return VectorEnvBoundary(made)


def single_env_factory(env: EnvLike, env_config: Mapping[str, Any] | None = None) -> Callable[[], gym.Env]:
    """Return a function that makes one environment of an id, `module:Class`, `EnvSpec`, class or function.

    Raises:
        ValueError: The id is unknown (names the nearest known ids), or its packages are not installed.
    """
    config = dict(env_config or {})
    if isinstance(env, str):
        env = named_environment(env)
    if isinstance(env, str):
        known_id(env)
    if isinstance(env, str | EnvSpec):
        return lambda: _gym_make(env, config)
    if callable(env):
        return lambda: check_single_env(env(**config), env)
    is_list = isinstance(env, list | tuple)
    advice = "; of several functions make gymnasium.vector.SyncVectorEnv(functions)" if is_list else ""
    raise TypeError(
        f"env must be an environment id, a function or class that makes one, or an environment; got {env!r}{advice}."
    )


class TimeLimitedMaker:
    """Function that makes an environment whose episodes are truncated after `limit` steps.

    A class, because a local function could not be pickled for env runners in other processes.

    Args:
        env: Id, class or function of one environment.
        limit: Maximum number of steps of an episode.
    """

    def __init__(self, env: EnvLike, limit: int) -> None:
        self._env = env
        self._limit = limit
        self.__name__ = name_of_env(env)

    def __call__(self, **env_config: Any) -> gym.Env:
        """Return a new environment."""
        env = single_env_factory(self._env, env_config)()
        return gym.wrappers.TimeLimit(env, self._limit)


def check_single_env(made: object, maker: Callable[..., Any]) -> gym.Env:
    """Return the object that `maker` returned, if it is one environment; else raise `TypeError`."""
    if isinstance(made, gym.Env):
        return made
    advice = ", or give the vector itself" if isinstance(made, VectorEnv) else ""
    raise TypeError(f"{maker!r} made {made!r}; it must return one gymnasium.Env at each call{advice}.")


def _gym_make(env: str | EnvSpec, config: dict[str, Any]) -> gym.Env:
    """Make one environment of an id. `ValueError` if a package that it needs is not installed."""
    spec = _spec(env)  # imports the package of the id, which a new process has not done yet
    try:
        game = AtariGame.of(spec, config)
        if game is not None:
            return game.single()
        return gym.make(env, disable_env_checker=True, **config)
    except gym.error.DependencyNotInstalled as error:
        raise ValueError(f"the environment {env!r} needs a package that is not installed: {error}") from error


def _spec(env: str | EnvSpec) -> EnvSpec:
    """Return the spec of an id."""
    return gym.spec(known_id(env)) if isinstance(env, str) else env


# -- names ---


@dataclass(frozen=True)
class EnvPackage:
    """Python package that registers the ids of a namespace with gymnasium."""

    module: str
    """Module to import."""
    install: str
    """Arguments for `pip install`. Empty: unknown."""
    function: str = ""
    """Function of the module that registers the ids. Empty: importing the module registers them."""


PACKAGES = {
    "ALE": EnvPackage("ale_py", "ale-py opencv-python-headless"),
    "MinAtar": EnvPackage("minatar.gym", "--no-deps MinAtar==1.0.15", "register_envs"),
}
"""Packages by namespace. MinAtar is installed without dependencies, as its last release asks for plotting packages that
its games do not use."""
PETTINGZOO_FUNCTIONS = ("parallel_env", "env")
"""Functions of a PettingZoo module that make its environment. The first one that exists is used."""


def is_module_name(name: str) -> bool:
    """Return whether a name has the form of a module in a package, such as `pettingzoo.classic.connect_four_v3`."""
    return "." in name and all(map(str.isidentifier, name.split(".")))


def named_environment(name: str) -> Any:
    """Return the class or function that a name refers to, or the name itself if it is an id.

    - `module:Class` and `path/file.py:Class` refer to that class or function.
    - A PettingZoo module (`pettingzoo.classic.connect_four_v3`) refers to its function `parallel_env` or `env`.
    - Ids have the form that `gymnasium.make` accepts (`CartPole-v1`, `package:Id-v0`). The package before a colon is
      imported, because it registers the id.

    Raises:
        UntrustedError: The name comes from a file, and loading its object needs the user's permission.
        ValueError: The module is not installed, or has no such class or function. Names the nearest names.
    """
    file_name = name_in_file(name)
    if file_name is not None and names_script(file_name):
        return file_name.names.find(file_name.option, file_name, ENVIRONMENT_CLASS)

    module_name, colon, member_name = current_name(name).partition(":")
    if is_module_name(name):
        # A file may name PettingZoo's own modules. Importing any other module would run a stranger's code.
        own_modules = tuple(f"{package}." for package in PETTINGZOO)
        if file_name is not None and not name.startswith(own_modules):
            raise file_name.names.refusal(file_name.option, name, "a module that is not one of PettingZoo's own")
        module = _environment_module(name, name)
        for function in PETTINGZOO_FUNCTIONS:
            if callable(getattr(module, function, None)):
                return getattr(module, function)
        raise ValueError(
            f"the module {name!r} has no function {' or '.join(PETTINGZOO_FUNCTIONS)}, as a PettingZoo module has; "
            "name a class or function of it, 'module:Class'"
        )
    if not colon:
        return name

    # `module:Class`, unless the module only registers the id after the colon.
    member: Any = getattr(_environment_module(module_name, name), member_name, None)
    if callable(member):
        if file_name is not None and not ENVIRONMENT_CLASS.fits(member):
            raise file_name.names.refusal(file_name.option, name, f"which is not {ENVIRONMENT_CLASS.words}")
        return member
    known_id(name)
    return name


def known_id(env_id: str) -> str:
    """Return the full id in gymnasium's registry, with its version. Imports the package that the name points to.

    Raises:
        UntrustedError: The id comes from a file, and its package is in the current folder.
        ValueError: gymnasium does not know the id after the import. Names the nearest known ids.
    """
    module_name, colon, name = env_id.rpartition(":")
    known = list(gym.registry)
    advice = "Environments of another package must be registered first (import it), or be named 'package:Id-v0'."
    if colon:
        known += [key for key, part in vars(_environment_module(module_name, env_id)).items() if callable(part)]
        advice = f"The module {module_name!r} has no class or function {name!r}, and does not register such an id."
    namespace, slash, _ = name.partition("/")
    if slash and _registered(name) is None:
        advice = _register(namespace, env_id) or advice
    full = _registered(name)
    if full is None:
        raise ValueError(f"the environment id {env_id!r} is unknown.{did_you_mean(name, known)} {advice}")
    return full


def with_version(env_id: str) -> str:
    """Return an id with the highest version that gymnasium has for it.

    An id that has a version, or that gymnasium does not know, is returned unchanged.
    """
    module_name, colon, name = env_id.rpartition(":")
    try:
        has_version = parse_env_id(name)[2] is not None
        return env_id if has_version else f"{module_name}{colon}{known_id(env_id)}"
    except (ValueError, gym.error.Error):
        return env_id


def _registered(env_id: str) -> str | None:
    """Return the full id as registered; None if it is not. An id without a version refers to the highest version."""
    if env_id in gym.registry:
        return env_id
    try:
        namespace, name, version = parse_env_id(env_id)
    except gym.error.Error:
        return None
    highest = None if version is not None else find_highest_version(namespace, name)
    return None if highest is None else f"{env_id}-v{highest}"


def _register(namespace: str, env_id: str) -> str:
    """Import the package that registers the ids of a namespace.

    Returns:
        Advice what to install, if the package is known and missing. Otherwise an empty string.
    """
    if namespace == "lockstep":
        register_environments()
        return ""
    if namespace == "tensor":
        register_tensor_envs()
        return ""
    # By default, the package of a namespace has the name of the namespace.
    package = PACKAGES.get(namespace, EnvPackage(namespace, ""))
    if not package.module:
        return ""
    try:
        module = module_named(package.module, env_id)
    except ModuleNotFoundError as error:
        if not f"{package.module}.".startswith(f"{error.name}."):
            raise  # the package is there, and one of its own imports is missing
        advice = f"Install the package of {namespace}/ environments: pip install {package.install}"
        return advice if package.install else ""
    if package.function:
        getattr(module, package.function)()
    gym.register_envs(module)
    return ""


def _environment_module(module_name: str, name: str) -> Any:
    """Import the module of an environment's name. `ValueError` if it is missing, with what to install."""
    if _is_path(module_name):
        return _module_in_file(module_name, name)
    try:
        return module_named(module_name, name)
    except ModuleNotFoundError as error:
        package, _, subpackage = module_name.partition(".")
        file_name = name_in_file(name)
        if file_name is not None and is_in_current_folder(str(error.name)):
            raise file_name.names.refusal(
                file_name.option, name, f"whose module {error.name!r} is in the current folder"
            ) from None
        if f"{module_name}.".startswith(f"{error.name}."):
            question = _member_question(module_name, name) + _module_question(module_name, name)
            raise ValueError(
                f"{name!r}: there is no module {module_name!r}.{question} Is it in this "
                f"directory, or the package that has it installed (pip install {_INSTALL.get(package, '...')})? "
                f"{NAME_FORMS}"
            ) from None
        if package == "pettingzoo":
            # Each family of PettingZoo's games is an extra, with dependencies of its own.
            extra = subpackage.partition(".")[0]
            raise ValueError(
                f"{name!r} needs the module {error.name!r}, which is not installed: pip install 'pettingzoo[{extra}]'"
            ) from error
        raise


_INSTALL = {
    **{package.module.partition(".")[0]: package.install for package in PACKAGES.values()},
    **dict.fromkeys(("pettingzoo", "mpe2"), "'pettingzoo>=1.25' 'mpe2>=1.0'"),
}
"""Arguments for `pip install`, by the first part of a module's name."""


NAME_FORMS = "A class or function of your own is named 'module:Class' or 'path/file.py:Class'."


def _is_path(module_name: str) -> bool:
    """Return whether the part before the colon is the path of a file rather than the name of a module."""
    return module_name.endswith(".py") or "/" in module_name or os.sep in module_name


def _module_in_file(file: str, name: str) -> Any:
    """Import a file by its path, as a module of its folder.

    The folder is added to `sys.path`, so that the processes that this one starts can import the module, too.
    """
    file_name = name_in_file(name)
    if file_name is not None:
        raise file_name.names.refusal(file_name.option, name, "a file of code by its path")
    path = Path(file).expanduser().resolve()
    if not path.is_file() or path.suffix != ".py" or not path.stem.isidentifier():
        raise ValueError(f"{name!r}: there is no Python file {file!r}. {NAME_FORMS}")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = importlib.import_module(path.stem)
    if module.__file__ is None or Path(module.__file__).resolve() != path:
        raise ValueError(
            f"{name!r}: another module is called {path.stem!r} ({module.__file__}); give the file another name"
        )
    return module


def _member_question(module_name: str, env_name: str) -> str:
    """Return " Did you mean 'module:Class'?" if the last part of a module's name is a member of the module before it.

    Empty otherwise.
    """
    parent, _, member = module_name.rpartition(".")
    try:
        is_member = bool(parent) and callable(getattr(module_named(parent, env_name), member, None))
    except ImportError:
        return ""
    return f" Did you mean '{parent}:{member}'?" if is_member else ""


def _module_question(module_name: str, env_name: str) -> str:
    """Return " Did you mean ...?" with the modules of the same package that have similar names; empty without one."""
    parent, _, name = module_name.rpartition(".")
    try:
        folders = module_named(parent, env_name).__path__ if parent else []
    except (ImportError, AttributeError):
        return ""
    return did_you_mean(name, [module.name for module in pkgutil.iter_modules(folders)])
