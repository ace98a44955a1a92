"""Names that moved to another module: still found under the old name, with a DeprecationWarning."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from typing import Any


def moved_name(module: str, name: str, places: Mapping[str, str]) -> Any:
    """Return what a module's `__getattr__` finds under a name that moved to another module (PEP 562).

    Args:
        module: the module that is asked (`__name__`).
        name: the name that is asked for.
        places: the module in which each old name is now.

    Raises:
        AttributeError: the name is not in `places`.
    """
    if name not in places:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    place = places[name]
    message = f"{module}.{name} has moved: import {name} from {place}"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return getattr(importlib.import_module(place), name)
