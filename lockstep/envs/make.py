"""From an id, a function, an environment or a vector of them to one boundary."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, find_highest_version, parse_env_id
from gymnasium.vector import AsyncVectorEnv, VectorEnv

from lockstep.envs.atari import NAMESPACE, AtariGame
from lockstep.envs.boundary import VectorBoundary
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
from lockstep.state.names import names_script, present_name
from lockstep.state.trust import PETTINGZOO, Kind, NameInFile, is_in_current_folder, module_named

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
"""the classes that a file may name as an environment"""
AnyEnv = Any
"""An id, a spec, a function or class that makes one environment, an environment, or a vector of them."""


def name_of_env(env: object) -> str:
    """Return the environment's id, or the name of what makes it; "offline" without one."""
    if env is None or isinstance(env, str):
        return env or "offline"
    return str(getattr(env, "__name__", type(env).__name__))


def make_vector(
    env: AnyEnv,
    *,
    num_envs: int = 1,
    mode: str = "auto",
    env_config: Mapping[str, Any] | None = None,
    seed: int | None = None,
    step_timeout: float | None = None,
    restarts: RestartLimits | None = None,
) -> VectorBoundary:
    """Make one boundary over whatever `env` is.

    Args:
        env: an environment id (or `EnvSpec`), `package:Id-v0` or `module:Class`; a function or class that makes one
            environment; a finished environment (one row); a gymnasium vector environment, a pool of EnvPool, a
            `VecEnv` of Stable-Baselines3 or a `TensorVecEnv` (their own number of rows); or a boundary, which is
            returned as it is.
        num_envs: number of rows B; a finished environment or vector has its own.
        mode: for ids and functions, who steps the rows: "sync" (our vectoriser, in this process; what "auto" takes, but
            for Atari's ids), "async" (one process for each row), "vector" (the native vector form of an id), "envpool".
        env_config: keyword arguments for making a single environment (native vectors and pools: for the whole).
        seed: do the first reset at once, with the seeds `seed, seed + 1, ...`.
        step_timeout: seconds that a step of an environment in its own process may take; "async" only.
        restarts: how often environments in processes of their own are started again; "async" only.

    Raises:
        ValueError: unknown id (with the nearest known ones), mode or number of environments, or options that do not fit
            what `env` is.
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is unknown; allowed: {', '.join(MODES)}.{did_you_mean(mode, MODES)}")
    num_envs = check_whole("num_envs", num_envs, 1)
    if step_timeout is not None and not (is_number(step_timeout) and step_timeout > 0):
        raise ValueError(f"step_timeout must be a positive number of seconds or None, got {step_timeout!r}.")
    for name, value in (("step_timeout", step_timeout), ("restarts", restarts)):
        if value is not None and mode != "async" and not (name == "step_timeout" and type(env) is AsyncVectorEnv):
            raise ValueError(f"{name} applies to mode='async' only, got mode={mode!r} and {env!r}.")
    boundary = _finished(env, step_timeout)
    if boundary is None:
        boundary = _build(env, num_envs, mode, env_config, step_timeout, restarts)
    elif mode != "auto" or env_config or num_envs not in (1, boundary.num_envs):
        raise ValueError(
            f"{type(env).__name__} is finished, with {boundary.num_envs} rows: mode={mode!r}, num_envs={num_envs} and "
            f"env_config={env_config!r} apply to ids and functions only. Leave them out."
        )
    if seed is not None:
        boundary.reset([seed + row for row in range(boundary.num_envs)])
    return boundary


def _finished(env: AnyEnv, step_timeout: float | None) -> VectorBoundary | None:
    """Return the boundary over something that steps already, None for something to be made."""
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
    return LightSyncVectorEnv([lambda: env], owns_envs=False) if isinstance(env, gym.Env) else None


def _build(
    env: AnyEnv,
    num_envs: int,
    mode: str,
    env_config: Mapping[str, Any] | None,
    step_timeout: float | None,
    restarts: RestartLimits | None,
) -> VectorBoundary:
    named = named_environment(env) if isinstance(env, str) else env
    if isinstance(named, str) and mode in ("auto", "vector") and named in TENSOR_ENVS:
        return TensorBoundary(make_tensor_env(named, num_envs, **(env_config or {})))
    if isinstance(named, str | EnvSpec):
        native = _native(named, num_envs, mode, env_config or {})
        if native is not None:
            return native
    elif mode in ("vector", "envpool"):
        raise TypeError(f"mode={mode!r} needs an environment id, got {env!r}.")
    factory = single_env_factory(env, env_config)
    if mode == "async":
        return WorkerVectorEnv([factory] * num_envs, step_timeout=step_timeout, restarts=restarts)
    return LightSyncVectorEnv([factory] * num_envs)


def _native(env: str | EnvSpec, num_envs: int, mode: str, options: Mapping[str, Any]) -> VectorBoundary | None:
    """Return the vector that steps the rows of an id by itself; None where single environments are to be made."""
    env_id = env if isinstance(env, str) else env.id
    is_atari = f"{NAMESPACE}/" in env_id
    if mode == "envpool" and not is_atari:
        return make_envpool(env_id, num_envs, options)
    if mode in ("sync", "async") or (mode == "auto" and not is_atari):
        return None
    spec = _spec(env)
    game = AtariGame.of(spec, options)
    if game is not None and game.render_mode is not None:
        return None
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


def single_env_factory(env: AnyEnv, env_config: Mapping[str, Any] | None = None) -> Callable[[], gym.Env]:
    """Return a function that makes one environment of an id, `module:Class`, `EnvSpec`, class or function.

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
        return lambda: one_env(env(**config), env)
    several = isinstance(env, list | tuple)
    advice = "; of several functions make gymnasium.vector.SyncVectorEnv(functions)" if several else ""
    raise TypeError(
        f"env must be an environment id, a function or class that makes one, or an environment; got {env!r}{advice}."
    )


class TimeLimitedMaker:
    """A function that makes an environment whose episodes are truncated after `limit` steps. It can be pickled."""

    def __init__(self, env: AnyEnv, limit: int) -> None:
        self._env = env
        self._limit = limit
        self.__name__ = name_of_env(env)

    def __call__(self, **env_config: Any) -> gym.Env:
        """Return an environment."""
        return gym.wrappers.TimeLimit(single_env_factory(self._env, env_config)(), self._limit)


def one_env(made: object, maker: Callable[..., Any]) -> gym.Env:
    """Return what `maker` made, where that is one environment."""
    if isinstance(made, gym.Env):
        return made
    of_vectors = ", or give the vector itself" if isinstance(made, VectorEnv) else ""
    raise TypeError(f"{maker!r} made {made!r}; it must return one gymnasium.Env at each call{of_vectors}.")


def _gym_make(env: str | EnvSpec, config: dict[str, Any]) -> gym.Env:
    spec = _spec(env)  # in a process of its own its package may not be imported yet
    try:
        game = AtariGame.of(spec, config)
        if game is not None:
            return game.single()
        return gym.make(env, disable_env_checker=True, **config)
    except gym.error.DependencyNotInstalled as error:
        raise ValueError(f"the environment {env!r} needs a package that is not installed: {error}") from error


def _spec(env: str | EnvSpec) -> EnvSpec:
    return gym.spec(known_id(env)) if isinstance(env, str) else env


# -- names ---


@dataclass(frozen=True)
class Package:
    """A package that registers the ids of a namespace."""

    module: str
    install: str
    """what `pip install` takes"""
    function: str = ""
    """the function of the module that registers them; empty: importing it does"""


PACKAGES = {
    "ALE": Package("ale_py", "ale-py opencv-python-headless"),
    "MinAtar": Package("minatar.gym", "--no-deps MinAtar==1.0.15", "register_envs"),
}
"""by namespace; MinAtar's last release asks for plotting packages that its games do not use"""
FUNCTIONS = ("parallel_env", "env")
"""what makes the environment of a PettingZoo module; the first one that there is"""


def is_module_name(name: str) -> bool:
    """Return whether a name can only be that of a module in a package, as `pettingzoo.classic.connect_four_v3`."""
    return "." in name and all(map(str.isidentifier, name.split(".")))


def named_environment(name: str) -> Any:
    """Return what `name` stands for: the class or function of `module:Class`, that of a PettingZoo module, or the id.

    An id is as `gymnasium.make` takes it (`CartPole-v1`, `package:Id-v0`); the package before a colon is imported. A
    PettingZoo module (`pettingzoo.classic.connect_four_v3`) has a function `parallel_env` or `env`.

    Raises:
        UntrustedError: a file gives the name, and what it stands for needs the user's word.
        ValueError: the module is not installed, or has nothing of that name (with the nearest names).
    """
    if isinstance(name, NameInFile) and names_script(name):
        return name.names.find(name.option, name, ENVIRONMENT_CLASS)
    module_name, colon, rest = present_name(name).partition(":")
    if is_module_name(name):
        if isinstance(name, NameInFile) and not name.startswith(tuple(f"{package}." for package in PETTINGZOO)):
            raise name.names.refusal(name.option, name, "a module that is not one of PettingZoo's own")
        module = _environment_module(name, name)
        for function in FUNCTIONS:
            if callable(getattr(module, function, None)):
                return getattr(module, function)
        raise ValueError(
            f"the module {name!r} has no function {' or '.join(FUNCTIONS)}, as a PettingZoo module has; name a "
            "class or function of it, 'module:Class'"
        )
    if not colon:
        return name
    made: Any = getattr(_environment_module(module_name, name), rest, None)
    if callable(made):
        if isinstance(name, NameInFile) and not ENVIRONMENT_CLASS.fits(made):
            raise name.names.refusal(name.option, name, f"which is not {ENVIRONMENT_CLASS.words}")
        return made
    known_id(name)
    return name


def known_id(env_id: str) -> str:
    """Return the full id in gymnasium's registry; the package that registers it is imported, as far as the name tells.

    Raises:
        UntrustedError: a file gives the id, whose package is in the current folder.
        ValueError: gymnasium does not know the id all the same (with the nearest known ones).
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
    """Return an id with the version that gymnasium takes for it now, its highest; the same where it has one.

    So does an id that gymnasium does not know.
    """
    module_name, colon, name = env_id.rpartition(":")
    try:
        has_version = parse_env_id(name)[2] is not None
        return env_id if has_version else f"{module_name}{colon}{known_id(env_id)}"
    except (ValueError, gym.error.Error):
        return env_id


def _registered(env_id: str) -> str | None:
    """Return the id as it is registered, None where it is not; one without a version means the highest one."""
    if env_id in gym.registry:
        return env_id
    try:
        namespace, name, version = parse_env_id(env_id)
    except gym.error.Error:
        return None
    highest = None if version is not None else find_highest_version(namespace, name)
    return None if highest is None else f"{env_id}-v{highest}"


def _register(namespace: str, env_id: str) -> str:
    """Import the package of an id's namespace; return what to install where that is known and missing, else nothing."""
    if namespace == "lockstep":
        register_environments()
        return ""
    if namespace == "tensor":
        register_tensor_envs()
        return ""
    package = PACKAGES.get(namespace, Package(namespace, ""))
    if not package.module:
        return ""
    try:
        module = module_named(package.module, env_id)
    except ModuleNotFoundError as error:
        if not f"{package.module}.".startswith(f"{error.name}."):
            raise
        advice = f"Install the package of {namespace}/ environments: pip install {package.install}"
        return advice if package.install else ""
    if package.function:
        getattr(module, package.function)()
    gym.register_envs(module)
    return ""


def _environment_module(module_name: str, name: str) -> Any:
    """Return the module that the name of an environment is about; `ValueError` says what to install."""
    if _is_path(module_name):
        return _module_in_file(module_name, name)
    try:
        return module_named(module_name, name)
    except ModuleNotFoundError as error:
        package, _, rest = module_name.partition(".")
        if isinstance(name, NameInFile) and is_in_current_folder(str(error.name)):
            raise name.names.refusal(
                name.option, name, f"whose module {error.name!r} is in the current folder"
            ) from None
        if f"{module_name}.".startswith(f"{error.name}."):
            near = _near_module(module_name, name)
            raise ValueError(
                f"{name!r}: there is no module {module_name!r}.{_near_member(module_name, name)}{near} Is it in this "
                f"directory, or the package that has it installed (pip install {_TO_INSTALL.get(package, '...')})? "
                f"{FORMS}"
            ) from None
        if package == "pettingzoo":
            extra = rest.partition(".")[0]
            raise ValueError(
                f"{name!r} needs the module {error.name!r}, which is not installed: pip install 'pettingzoo[{extra}]'"
            ) from error
        raise


_TO_INSTALL = {
    **{package.module.partition(".")[0]: package.install for package in PACKAGES.values()},
    **dict.fromkeys(("pettingzoo", "mpe2"), "'pettingzoo>=1.25' 'mpe2>=1.0'"),
}
"""first part of a module's name -> what `pip install` takes"""


FORMS = "A class or function of your own is named 'module:Class' or 'path/file.py:Class'."


def _is_path(module_name: str) -> bool:
    """Return whether what stands before the colon is the path of a file, and not the name of a module."""
    return module_name.endswith(".py") or "/" in module_name or os.sep in module_name


def _module_in_file(file: str, name: str) -> Any:
    """Import a file by its path, as the module that it is in its folder.

    The folder is added to where Python looks for modules, so that processes which this one starts find it too.
    """
    if isinstance(name, NameInFile):
        raise name.names.refusal(name.option, name, "a file of code by its path")
    path = Path(file).expanduser().resolve()
    if not path.is_file() or path.suffix != ".py" or not path.stem.isidentifier():
        raise ValueError(f"{name!r}: there is no Python file {file!r}. {FORMS}")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = importlib.import_module(path.stem)
    if module.__file__ is None or Path(module.__file__).resolve() != path:
        raise ValueError(
            f"{name!r}: another module is called {path.stem!r} ({module.__file__}); give the file another name"
        )
    return module


def _near_member(module_name: str, env_name: str) -> str:
    """Return a question where the last part of a name is a class or function of the module before it."""
    parent, _, member = module_name.rpartition(".")
    try:
        is_member = bool(parent) and callable(getattr(module_named(parent, env_name), member, None))
    except ImportError:
        return ""
    return f" Did you mean '{parent}:{member}'?" if is_member else ""


def _near_module(module_name: str, env_name: str) -> str:
    """Return words about a module beside it with a similar name."""
    parent, _, name = module_name.rpartition(".")
    try:
        folders = module_named(parent, env_name).__path__ if parent else []
    except (ImportError, AttributeError):
        return ""
    return did_you_mean(name, [module.name for module in pkgutil.iter_modules(folders)])
