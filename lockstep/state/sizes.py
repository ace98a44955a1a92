"""Limits for the sizes that files claim, checked before memory is allocated.

A header, a note or a configuration is a few bytes long and can claim an array of any size. Where the file itself
bounds the size (the bytes of a tensor), the reader compares the claim with these bytes. Where it does not (a
compressed column, a space, a network), the claim may be as large as the memory that is available.
"""

from __future__ import annotations

import math
import os
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch.overrides import TorchFunctionMode

ALWAYS_ALLOWED = 32 << 20
"""Bytes that may be claimed without a look at the memory."""
_LONGEST_HEADER = 1 << 16
_READ_HEADER = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}


class ClaimedSizeError(ValueError):
    """A file claims more than it holds, or more than the memory that is available."""


def count_of(what: str, shape: Iterable[object]) -> int:
    """Return the number of elements of a shape that a file claims.

    Raises:
        ClaimedSizeError: a length is negative or not a whole number.
    """
    lengths = list(shape)
    for length in lengths:
        if not isinstance(length, int) or isinstance(length, bool) or length < 0:
            raise ClaimedSizeError(f"{what} claims the shape {lengths}; lengths must be whole numbers from 0 upwards")
    return math.prod(lengths)  # type: ignore[arg-type]


def check_claim(what: str, claimed: int) -> None:
    """Check that `claimed` bytes fit into the memory that is available.

    Args:
        what: name of the thing that claims them, for the message.
        claimed: bytes, all copies that the reader makes included.

    Raises:
        ClaimedSizeError: more is claimed than is available.
    """
    if claimed <= ALWAYS_ALLOWED:
        return
    allowed = max(available_memory(), ALWAYS_ALLOWED)
    if claimed > allowed:
        raise ClaimedSizeError(
            f"{what} claims {claimed:,} bytes of memory; {allowed:,} bytes are available, and no more is allowed"
        )


def check_holds(what: str, claimed: int, held: int) -> None:
    """Check that a file holds the bytes that its header or note claims.

    Raises:
        ClaimedSizeError: more or fewer are claimed.
    """
    if claimed != held:
        raise ClaimedSizeError(f"{what} claims {claimed:,} bytes, the file holds {held:,} bytes of it")


def check_archive(path: Path) -> None:
    """Check the arrays of an `.npz` file, without reading them, by the archive's directory and by their own headers.

    Python's reader never yields more than the directory claims for a member, so that a member that unpacks to more
    ends as a damaged one.

    Raises:
        ClaimedSizeError: together they need more memory than is available, or an array claims another size than its
            member has.
        zipfile.BadZipFile: the file is not an archive.
    """
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        check_claim("its directory", sum(member.file_size for member in members))
        for member in members:
            with archive.open(member) as file:
                check_array_header(f"its array {member.filename!r}", file, member.file_size)


def check_array_header(what: str, file: IO[bytes], size: int) -> None:
    """Check the header of an `.npy` file of `size` bytes that begins at the position of `file`.

    Raises:
        ClaimedSizeError: the header claims another size than the file has.
        ValueError: the header is damaged, or of a kind that Lockstep does not write.
    """
    version = npy.read_magic(file)
    if version not in _READ_HEADER:
        raise ValueError(f"{what} has a header of version {version}; known are {sorted(_READ_HEADER)}")
    shape, _, dtype = _READ_HEADER[version](file, max_header_size=_LONGEST_HEADER)
    if dtype.hasobject:
        raise ValueError(f"{what} holds Python objects, which are never read")
    check_holds(what, count_of(what, shape) * dtype.itemsize, size - file.tell())


def bytes_of(what: str, shape: Iterable[object], dtype: np.dtype) -> int:
    """Return the bytes of an array whose shape a file claims.

    Raises:
        ClaimedSizeError: a length is negative or not a whole number.
    """
    return count_of(what, shape) * dtype.itemsize


class _Claims:
    """Bytes that the tensors of one file's networks have claimed so far, and those that are allowed."""

    def __init__(self) -> None:
        # Half: drawing initial weights takes copies, and layers are objects of Python with buffers of their own.
        self.allowed = max(available_memory() // 2, ALWAYS_ALLOWED)
        self.claimed = 0

    def add(self, what: str, num_bytes: int) -> None:
        """Count a new tensor, before it is allocated.

        Raises:
            ClaimedSizeError: all tensors so far need more than is available.
        """
        # A layer is a Python object too: 10^15 layers of one number each must also end here.
        self.claimed += max(num_bytes, _LEAST_OF_A_TENSOR)
        if self.claimed > self.allowed:
            raise ClaimedSizeError(
                f"its networks, up to {what}, claim {self.claimed:,} bytes of memory; {self.allowed:,} bytes, "
                "half of what is available, are allowed"
            )


_claims: ContextVar[_Claims | None] = ContextVar("_claims", default=None)
"""Of the file that something is being built from, if any."""


@contextmanager
def claims_of(file: str | os.PathLike[str]) -> Iterator[None]:
    """Context in which something is built from `file`: its sizes are checked, and errors about them name the file.

    Within the context of another file, such as a run's folder, this one changes nothing.

    Raises:
        ClaimedSizeError: the file claims more memory than is available.
    """
    if _claims.get() is not None:
        yield
        return
    token = _claims.set(_Claims())
    try:
        yield
    except ClaimedSizeError as error:
        raise ClaimedSizeError(f"{file}: {error}") from error
    except MemoryError as error:
        raise ClaimedSizeError(f"{file} claims more than fits into memory: {error}") from error
    finally:
        _claims.reset(token)


def checked_tensors() -> AbstractContextManager[Any]:
    """Return the context for building a network: its tensors are counted within `claims_of` a file, only there."""
    claims = _claims.get()
    return nullcontext() if claims is None else _CountedTensors(claims)


class _CountedTensors(TorchFunctionMode):
    """Context that counts new tensors on the CPU before they are allocated; other devices refuse by themselves.

    A layer of torch allocates its weights with one of a few functions, so that layers of every kind are covered.
    """

    def __init__(self, claims: _Claims) -> None:
        super().__init__()
        self.claims = claims

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        if func in _FACTORIES:
            device = torch.get_default_device() if options.get("device") is None else torch.device(options["device"])
            shape = _shape_of_new(func, args, options)
            if device.type == "cpu" and all(isinstance(length, int) for length in shape):
                dtype = options.get("dtype") or torch.get_default_dtype()
                what = f"a tensor of shape {shape}"
                self.claims.add(what, count_of(what, shape) * dtype.itemsize)
        return func(*args, **options)


_FACTORIES = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn)
_LEAST_OF_A_TENSOR = 4096


def _shape_of_new(func: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
    """Return the shape that a factory of torch is called with: `size=`, one sequence, or lengths one by one."""
    if "size" in options:
        return list(options["size"])
    if func is torch.full or (args and isinstance(args[0], list | tuple)):
        return list(args[0])
    return list(args)


def available_memory() -> int:
    """Return the bytes of memory that this process can still take, by the system, its container and its own limit."""
    limits = [_free_memory()]
    group = Path("/sys/fs/cgroup")
    most = _number_in(group / "memory.max")
    used = _number_in(group / "memory.current")
    if most is not None and used is not None:
        limits.append(most - used + _cached_files(group / "memory.stat"))
    if sys.platform != "win32":
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        if soft != resource.RLIM_INFINITY:
            limits.append(soft - _address_space())
    return max(min(limits), 0)


def _free_memory() -> int:
    """Return the memory that the system can give without swapping; all of it where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        return 1 << 40


def _cached_files(statistics: Path) -> int:
    """Return the bytes of a container's memory that hold copies of files, which the system gives up when needed."""
    try:
        lines = statistics.read_text().splitlines()
        counts = {name: int(number) for name, number in (line.split() for line in lines)}
    except (OSError, ValueError):
        return 0
    return counts.get("inactive_file", 0) + counts.get("active_file", 0)


def _address_space() -> int:
    """Return the bytes of address space that this process has; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _number_in(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such file, or the word "max"
        return None
