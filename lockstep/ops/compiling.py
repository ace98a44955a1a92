"""How loops over arrays are compiled; imports numba, so import it only where a kernel is about to run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba.core.caching import FunctionCache
from numba.core.runtime.nrt import rtsys

LOADS_ALONE = ("0.68",)
"""Versions of numba whose compiled code needs nothing but the runtime, see `_KeptCode`. Before you add one, run the
test of this file and those of all kernels twice with it: code that misses a symbol ends the process. Code of other
versions is loaded as numba does it."""


def compiled(function: Callable[..., Any], fastmath: bool | set[str] = False) -> Any:
    """Compile on first call, keep the machine code on disk where some cache folder can be written.

    `fastmath`: what numba's option of that name takes; by default sums are taken in the order they are written in.
    """
    kernel: Any = numba.njit(nogil=True, error_model="numpy", fastmath=fastmath)(function)
    try:
        kernel.enable_caching()
    except RuntimeError:  # numba found no folder to cache in (read-only installation without a home)
        return kernel
    if numba.__version__.startswith(tuple(f"{version}." for version in LOADS_ALONE)):
        kernel._cache = _KeptCode(function)
    return kernel


def compiled_sums(function: Callable[..., Any]) -> Any:
    """Compile as `compiled`, for sums that may be taken in any order: several numbers are added at once."""
    return compiled(function, fastmath={"reassoc", "contract", "nsz"})


class _KeptCode(FunctionCache):
    """The compiled code of a kernel on disk.

    numba imports everything that it can compile, with scipy, before it loads code that has been compiled already. That
    takes longer than importing numba itself, and each process pays it before its first step. The code needs only the
    runtime, which owns the memory of new arrays (and the hashes, where a kernel has dicts or sets: none has). When a
    kernel has to be compiled, numba imports the rest.
    """

    def load_overload(self, sig: object, target_context: object) -> Any:
        """Return the compiled code for the types of the arguments; None where it is not on disk."""
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)
