"""Access to old public names: an object whose name has moved or changed is still found, with a `DeprecationWarning`."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from typing import Any


def moved_name(module: str, name: str, places: Mapping[str, str]) -> Any:
    """Return the object that an old name stands for, for the `__getattr__` of a module (PEP 562).

    Args:
        module: `__name__` of the module that had the name.
        name: The old name.
        places: For each old name the module that has the object now, or `module:name` if the name has changed as well.

    Raises:
        AttributeError: The name is not in `places`.
    """
    if name not in places:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    place, _, new_name = places[name].partition(":")
    new_name = new_name or name
    message = f"{module}.{name} has moved: import {new_name} from {place}"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return getattr(importlib.import_module(place), new_name)
