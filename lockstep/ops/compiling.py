"""How loops over arrays are compiled; imports numba, so import it only where a kernel is about to run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any], fastmath: bool | set[str] = False) -> Any:
    """Compile on first call, keep the machine code on disk where some cache folder can be written.

    `fastmath`: what numba's option of that name takes; by default sums are taken in the order they are written in.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no folder to cache in (read-only installation without a home)
        return numba.njit(**options)(function)


def compiled_sums(function: Callable[..., Any]) -> Any:
    """Compile as `compiled`, for sums that may be taken in any order: several numbers are added at once."""
    return compiled(function, fastmath={"reassoc", "contract", "nsz"})
