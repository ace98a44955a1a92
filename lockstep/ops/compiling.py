"""How loops over arrays are compiled; imports numba, so import it only where a kernel is about to run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any]) -> Any:
    """Compile on first call, keep the machine code on disk where some cache folder can be written."""
    try:
        return numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # numba found no folder to cache in (read-only installation without a home)
        return numba.njit(nogil=True, error_model="numpy")(function)
