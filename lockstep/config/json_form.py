"""JSON form of options: plain values, and spaces, specs, classes and functions by name.

A file may name only few objects: each is found by the file's `FileNames`, with the kind of class that its option
expects (see `lockstep.state.trust`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from torch import nn
from torch.optim import Optimizer

from lockstep.connectors import Connector, RescaleActions
from lockstep.data.spaces import describe_space, space_from
from lockstep.envs.make import ENVIRONMENT_CLASS, named_environment
from lockstep.learner.learner import Learner
from lockstep.modules import MultiRLModuleSpec, RLModuleSpec
from lockstep.modules.model_config import NETWORK
from lockstep.state.names import current_name, import_path, is_of_script, names_script
from lockstep.state.trust import (
    ARGUMENT_KEYS,
    FileNames,
    Kind,
    NameInFile,
    UntrustedError,
    names_module,
)
from lockstep.tracking.config import CALLBACK

RENAMED = {"evaluation.evaluation_episodes": "evaluation_duration"}
"""Paths of options in files of earlier versions, with their current names."""
OVERRIDES = "rl_module.algorithm_config_overrides_per_module."
"""Beginning of the paths of training options of single modules."""
CONNECTOR = Kind("a subclass of lockstep.connectors.Connector", (Connector, RescaleActions))
OPTIMIZER = Kind("a subclass of torch.optim.Optimizer", (Optimizer,))
KINDS = {
    "environment.env": ENVIRONMENT_CLASS,
    "env_runners.env_to_module_connector": CONNECTOR,
    "env_runners.module_to_env_connector": CONNECTOR,
    "training.learner_connector": CONNECTOR,
    "training.optimizer": OPTIMIZER,
    "training.learner_class": Kind("a subclass of lockstep.learner.Learner", (Learner,), takes_others=False),
    "training.intrinsic_reward": NETWORK,
    "callbacks.callbacks_class": CALLBACK,
}
"""Kinds of classes that a file may name, by option. Every other object needs the user's trust."""
NAMED_BY_TEXT = ("environment.env", "model_config.encoder", "rl_module.rl_module_spec")
"""Ends of the paths of options whose text may name an object."""


def to_plain(path: str, value: object) -> Any:
    """Return the JSON form of an option's value. Tuples become lists.

    Args:
        path: Path of the option, for messages.
        value: Its value.

    Raises:
        ValueError: The value cannot be written. The message names `path`.
    """
    if isinstance(value, RLModuleSpec):
        return {"__spec__": _plain_spec(path, value)}
    if isinstance(value, MultiRLModuleSpec):
        return {"__multi_spec__": {mid: _plain_spec(path, spec) for mid, spec in value.rl_module_specs.items()}}
    if isinstance(value, nn.Module):
        raise ValueError(
            f"{path} is a {type(value).__name__} that is built already, which cannot be written to JSON: for a run's "
            "folder pass RLModuleSpec(module_class=...) of a class that can be imported by name; "
            "config.build_trainer().run() needs no folder"
        )
    if is_dataclass(value) and not isinstance(value, type):
        return to_plain(path, asdict(value))
    if isinstance(value, Space):  # before Mapping, which a Dict space is too
        return {"__space__": describe_space(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(f"{path}.{key}", part) for key, part in value.items()}
    if isinstance(value, set | frozenset):
        return {"__set__": sorted(to_plain(path, part) for part in value)}
    if isinstance(value, list | tuple):
        return [to_plain(path, part) for part in value]
    if isinstance(value, Path):
        return {"__path__": str(value)}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, NameInFile) and value.is_object:
        return {"__import__": value}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return {"__import__": import_path(path, value)}


def script_objects(value: object) -> Iterator[Any]:
    """Yield the classes and functions of the running script in an option's value, and names of such from a file."""
    if isinstance(value, Space):  # before Mapping, which a Dict space is too
        return
    parts: Iterable[Any] = ()
    if is_dataclass(value) and not isinstance(value, type):  # also the spec of a module
        parts = vars(value).values()
    elif isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        parts = value
    elif is_of_script(value) or (isinstance(value, NameInFile) and names_script(value)):
        yield value
    for part in parts:
        yield from script_objects(part)


def from_plain(path: str, value: Any, names: FileNames) -> Any:
    """Return the value of an option from its JSON form.

    Args:
        path: Path of the option.
        value: The result of `to_plain`, as read from a file.
        names: Access to the objects that the file names.

    Raises:
        UntrustedError: An object needs the user's trust.
    """
    if isinstance(value, list):
        return [from_plain(path, part, names) for part in value]
    if not isinstance(value, Mapping):
        return value
    if len(value) == 1 and (form := next(iter(value))) in _READERS:
        return _READERS[form](path, value[form], names)
    return {key: _named_or_plain(f"{path}.{key}", part, names) for key, part in value.items()}


def section_from_plain(section: str, options: Mapping[str, Any], names: FileNames) -> dict[str, Any]:
    """Return the options of a section from their JSON form, under their current names."""
    values = {}
    for name, value in options.items():
        path = f"{section}.{name}"
        values[RENAMED.get(path, name)] = _named_or_plain(path, value, names)
    return values


def _named_or_plain(path: str, value: object, names: FileNames) -> Any:
    """Return an option's value from its JSON form.

    A text that may name an object stays a text. It is looked up when it is used, with the same checks.
    """
    # An argument with such a name, for example `env_config["encoder"]`, is the user's own text.
    is_argument = any(f".{key}." in path for key in ARGUMENT_KEYS if key != "evaluation_config")
    if isinstance(value, str) and path.endswith(NAMED_BY_TEXT) and not is_argument:
        return names.text(path, value)
    return from_plain(path, value, names)


def check_texts(path: str, value: object, names: FileNames) -> None:
    """Raise `UntrustedError` if a text in an option's JSON form names an object that the file may not name."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            check_texts(f"{path}.{key}", part, names)
    elif isinstance(value, str) and path.endswith("environment.env"):
        named_environment(names.text(path, value))
    elif isinstance(value, str) and path.endswith(NAMED_BY_TEXT) and names_module(value):
        names.find(path, value, kind_of(path))


def kind_of(path: str) -> Kind | None:
    """Return the kind of classes that a file may name for an option, or None if every object needs the user's trust.

    Overrides for one module count as the options of training, and those of evaluation as the options they replace.
    """
    path = path.removeprefix("evaluation.evaluation_config.")
    if path.startswith(OVERRIDES):
        path = f"training.{path.removeprefix(OVERRIDES).partition('.')[2]}"
    return NETWORK if path.endswith("model_config.encoder") else KINDS.get(path)


def _plain_spec(path: str, spec: RLModuleSpec) -> dict[str, Any]:
    """Return the JSON form of a spec. Raises `ValueError` if its class cannot be imported by name."""
    if spec.module_class is not None:
        import_path(f"{path}.module_class", spec.module_class)
    plain = spec.to_dict()
    return {**plain, "model_config": to_plain(f"{path}.model_config", plain["model_config"])}


def _named_object(path: str, name: object, names: FileNames) -> Any:
    """Return the object that a file names for an option.

    An environment that it may not name is refused only when it is made: a policy can be read and used without it.
    """
    try:
        return names.find(path, name, kind_of(path))
    except UntrustedError:
        if path != "environment.env":
            raise
        return NameInFile(current_name(str(name)), names, path, is_object=True)


def _spec(path: str, plain: Mapping[str, Any], names: FileNames) -> RLModuleSpec:
    """Return a spec from its JSON form, which may have a signature of its own."""
    names = names.of_part(plain)
    model_config = from_plain(f"{path}.model_config", plain["model_config"], names)
    return RLModuleSpec.from_dict({**plain, "model_config": model_config}, names=names)


def _multi_spec(path: str, plain: Mapping[str, Any], names: FileNames) -> MultiRLModuleSpec:
    """Return the specs of several modules from their JSON form."""
    return MultiRLModuleSpec({module_id: _spec(path, spec, names) for module_id, spec in plain.items()})


_READERS: dict[str, Callable[[str, Any, FileNames], Any]] = {
    "__import__": _named_object,
    "__path__": lambda path, value, names: Path(value),
    "__space__": lambda path, value, names: space_from(value),
    "__set__": lambda path, value, names: set(value),
    "__spec__": _spec,
    "__multi_spec__": _multi_spec,
}
"""Functions that read a value which JSON cannot express, by the key under which `to_plain` stores it."""
