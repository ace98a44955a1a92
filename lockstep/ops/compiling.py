"""Compilation of loops over arrays with numba.

This module imports numba, which takes longer than the rest of the library. So import it only from a file of kernels,
and that file only inside of the function that is about to run one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba.core.caching import FunctionCache
from numba.core.runtime.nrt import rtsys

QUICKLY_LOADED_VERSIONS = ("0.68",)
"""Minor versions of numba whose compiled code needs nothing but numba's runtime, so that `_KernelCache` may load it.

Before you add a version, run the test of this file and those of all kernels twice with it: code that misses a symbol
ends the process. With any other version numba loads compiled code in its own way.
"""


def compiled(function: Callable[..., Any], fastmath: bool | set[str] = False) -> Any:
    """Return a kernel that numba compiles on its first call, and whose machine code is cached on disk.

    Args:
        function: Loop over arrays, in the part of Python that numba compiles.
        fastmath: Numba's option of that name. By default sums are taken in the written order, so that a kernel gives
            the same bits on every machine.
    """
    kernel: Any = numba.njit(nogil=True, error_model="numpy", fastmath=fastmath)(function)
    try:
        kernel.enable_caching()
    except RuntimeError:
        # numba found no folder to cache in (read-only installation without a home): each process compiles again.
        return kernel

    prefixes = tuple(f"{version}." for version in QUICKLY_LOADED_VERSIONS)
    if numba.__version__.startswith(prefixes):
        kernel._cache = _KernelCache(function)
    return kernel


def compiled_sums(function: Callable[..., Any]) -> Any:
    """Return a kernel like `compiled` whose sums may be taken in any order.

    So the processor can add several numbers at once. The bits of such a sum depend on the processor, but not on the
    values or on how often the kernel is called.
    """
    return compiled(function, fastmath={"reassoc", "contract", "nsz"})


class _KernelCache(FunctionCache):
    """Cache of a kernel's machine code on disk that loads without numba's compiler.

    Before numba loads code from its cache, it imports everything that it could compile, including scipy. That takes
    longer than importing numba itself, and every process would pay it before its first step. The code needs only the
    runtime, which owns the memory of new arrays (and the hash functions, if a kernel has dicts or sets: none has). When
    a kernel has to be compiled, numba imports the rest.
    """

    def load_overload(self, sig: object, target_context: object) -> Any:
        """Return the cached code for the argument types `sig`, or None if it is not on disk.

        As in numba's method, except that it does not call `target_context.refresh()`, which imports the compiler's
        parts.
        """
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)
