"""Keyword types of the options declared in this folder."""

# Written by `python tests/architecture/keyword_types.py` from the fields of the sections: do not edit.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict


class RLModuleOptions(TypedDict, total=False):
    """Options of `RLModuleSection`."""

    rl_module_spec: Any
    model_config: Any
    observation_groups: Any
    algorithm_config_overrides_per_module: Mapping[str, Any]
