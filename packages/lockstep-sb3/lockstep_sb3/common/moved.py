"""Names of this package that have changed: an old name still works, with a `DeprecationWarning`."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from typing import Any


def moved_name(module: str, name: str, places: Mapping[str, str]) -> Any:
    """Return the object of an old name, for the `__getattr__` of a module (PEP 562).

    Args:
        module: `__name__` of the module that has the old name.
        name: Old name.
        places: New place `module:name` of each old name.

    Raises:
        AttributeError: the name is not in `places`.
    """
    if name not in places:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    new_module, _, new_name = places[name].partition(":")
    message = f"{module}.{name} has moved: import {new_name} from {new_module}"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return getattr(importlib.import_module(new_module), new_name)
