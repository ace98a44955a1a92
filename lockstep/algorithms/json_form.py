"""The form of options in JSON: plain values, with spaces, specs, classes and functions by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from torch import nn

from lockstep.data.codec import describe_space, space_from
from lockstep.modules import MultiRLModuleSpec, RLModuleSpec
from lockstep.state.options import import_path, imported

RENAMED = {"evaluation.evaluation_episodes": "evaluation_duration"}
"""options by the path that they had in files of earlier versions, and their name today"""


def to_plain(path: str, value: Any) -> Any:
    """Return `value` as JSON can hold it, tuples as lists; `ValueError` names `path` where it cannot be written."""
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
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return {"__import__": import_path(path, value)}


def from_plain(value: Any) -> Any:
    """Return the value that `to_plain` wrote."""
    if isinstance(value, list):
        return [from_plain(part) for part in value]
    if not isinstance(value, Mapping):
        return value
    if len(value) == 1 and (kind := next(iter(value))) in _READERS:
        return _READERS[kind](value[kind])
    return {key: from_plain(part) for key, part in value.items()}


def section_from_plain(section: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a section that `to_plain` wrote, by the names of today."""
    return {RENAMED.get(f"{section}.{name}", name): from_plain(value) for name, value in options.items()}


def _plain_spec(path: str, spec: RLModuleSpec) -> dict[str, Any]:
    if spec.module_class is not None:
        import_path(f"{path}.module_class", spec.module_class)
    plain = spec.to_dict()
    return {**plain, "model_config": to_plain(f"{path}.model_config", plain["model_config"])}


def _spec(plain: Mapping[str, Any]) -> RLModuleSpec:
    return RLModuleSpec.from_dict({**plain, "model_config": from_plain(plain["model_config"])})


_READERS: dict[str, Callable[[Any], Any]] = {
    "__import__": imported,
    "__path__": Path,
    "__space__": space_from,
    "__set__": set,
    "__spec__": _spec,
    "__multi_spec__": lambda specs: MultiRLModuleSpec({mid: _spec(spec) for mid, spec in specs.items()}),
}
