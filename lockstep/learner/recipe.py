"""What a checkpoint says about how its learner is built."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from lockstep.learner.config import FrameworkSection

if TYPE_CHECKING:
    from lockstep.learner.learner import Learner

Recipe = dict[str, Any]


def recipe_of(learner: Learner) -> Recipe:
    """Class names by import path and plain options; functions are named but not written down."""
    return {
        "learner_class": _path_of(type(learner)),
        "training": _section(learner.config),
        "framework": _section(learner.framework),
        "module_configs": {mid: _section(config) for mid, config in learner.module_configs.items()},
    }


def _section(section: Any) -> Recipe:
    options = {f.name: getattr(section, f.name) for f in fields(section) if f.name != "learner_class"}
    return {
        "class": _path_of(type(section)),
        "options": {name: value for name, value in options.items() if _is_plain(value)},
        "functions": sorted(name for name, value in options.items() if not _is_plain(value)),
    }


def built_section(saved: Mapping[str, Any], given: Any, base: type) -> Any:
    """The section that was saved, or the one that is given instead; `ValueError` saying what has to be given."""
    if given is not None:
        return given
    name = "framework" if base is FrameworkSection else "config"
    if saved["functions"]:
        raise ValueError(
            f"the options {saved['functions']} are functions or objects, which a checkpoint does not hold; pass {name}="
        )
    return imported_class(saved["class"], base, f"pass {name}=")(**saved["options"])


def imported_class(path: str, base: type, otherwise: str) -> Any:
    """The class at `package.module:Class`; `ValueError` unless it is importable and a subclass of `base`."""
    module, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"the class {path} cannot be imported ({error}); {otherwise}") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ValueError(
            f"{path} is no {base.__name__}; the checkpoint is foreign or its class has changed; {otherwise}"
        )
    return found


def _path_of(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(part) for key, part in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)
