"""Limits for the sizes that files claim, checked before memory is allocated.

A header, metadata or a configuration is a few bytes long and can claim an array of any size. If the file itself bounds
the size (the bytes of a tensor), the reader compares the claim with these bytes. If it does not (a compressed column, a
space, a network), the claim may be as large as the available memory.
"""

from __future__ import annotations

import math
import os
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
"""Number of bytes that may be claimed without a look at the memory."""
_MAX_HEADER_SIZE = 1 << 16
"""Largest header of an `.npy` file, in bytes. numpy evaluates the header as a Python literal."""
_MIN_TENSOR_BYTES = 4096
"""Number of bytes that a tensor counts at least: the memory of a small layer and its Python objects."""
_READ_HEADER = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}
"""Readers of the header of an `.npy` file, by format version."""


class ClaimedSizeError(ValueError):
    """A file claims more bytes than it holds, or more than the available memory."""


def count_of(what: str, shape: Iterable[object]) -> int:
    """Return the number of elements of a shape that a file claims.

    Args:
        what: Name of the array, for the message.
        shape: The claimed lengths, which may be anything that a file can hold.

    Raises:
        ClaimedSizeError: A length is negative or not a whole number.
    """
    lengths = list(shape)
    for length in lengths:
        if not isinstance(length, int) or isinstance(length, bool) or length < 0:
            raise ClaimedSizeError(f"{what} claims the shape {lengths}; lengths must be whole numbers from 0 upwards")
    return math.prod(lengths)  # type: ignore[arg-type]


def check_claim(what: str, claimed: int) -> None:
    """Check that `claimed` bytes fit into the available memory.

    Args:
        what: Name of the thing that claims them, for the message.
        claimed: Number of bytes, including all copies that the reader makes.

    Raises:
        ClaimedSizeError: More is claimed than is available.
    """
    if claimed <= ALWAYS_ALLOWED:
        return
    allowed = max(available_memory(), ALWAYS_ALLOWED)
    if claimed > allowed:
        raise ClaimedSizeError(
            f"{what} claims {claimed:,} bytes of memory; {allowed:,} bytes are available, and no more is allowed"
        )


def check_holds(what: str, claimed: int, held: int) -> None:
    """Check that a file holds exactly the bytes that its header or metadata claims.

    Raises:
        ClaimedSizeError: More or fewer bytes are claimed.
    """
    if claimed != held:
        raise ClaimedSizeError(f"{what} claims {claimed:,} bytes, the file holds {held:,} bytes of it")


def check_archive(path: Path) -> None:
    """Check the sizes of the arrays of an `.npz` file, without reading them.

    They are in the archive's directory and in the header of each array. Python's reader never yields more bytes of a
    member than the directory claims, so a member that unpacks to more is later reported as damaged.

    Raises:
        ClaimedSizeError: The arrays together need more memory than is available, or an array claims another size than
            its member has.
        zipfile.BadZipFile: The file is not an archive.
    """
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        check_claim("its directory", sum(member.file_size for member in members))
        for member in members:
            with archive.open(member) as file:
                check_array_header(f"its array {member.filename!r}", file, member.file_size)


def check_array_header(what: str, file: IO[bytes], size: int) -> None:
    """Check the header of an `.npy` file that begins at the position of `file`.

    Args:
        what: Name of the array, for messages.
        file: The open file.
        size: Size of the `.npy` file in bytes.

    Raises:
        ClaimedSizeError: The header claims another size than the file has.
        ValueError: The header is damaged, or of a kind that Lockstep does not write.
    """
    version = npy.read_magic(file)
    if version not in _READ_HEADER:
        raise ValueError(f"{what} has a header of version {version}; known are {sorted(_READ_HEADER)}")
    shape, _, dtype = _READ_HEADER[version](file, max_header_size=_MAX_HEADER_SIZE)
    if dtype.hasobject:
        raise ValueError(f"{what} holds Python objects, which are never read")
    check_holds(what, count_of(what, shape) * dtype.itemsize, size - file.tell())


def bytes_of(what: str, shape: Iterable[object], dtype: np.dtype) -> int:
    """Return the size in bytes of an array whose shape a file claims.

    Raises:
        ClaimedSizeError: A length is negative or not a whole number.
    """
    return count_of(what, shape) * dtype.itemsize


class _Claims:
    """Counter of the bytes that the tensors of one file's networks claim, with a limit."""

    def __init__(self) -> None:
        # Half of the memory: drawing initial weights makes copies, and layers are Python objects with buffers.
        self.allowed = max(available_memory() // 2, ALWAYS_ALLOWED)
        self.claimed = 0

    def add(self, what: str, num_bytes: int) -> None:
        """Count a new tensor, before it is allocated.

        Raises:
            ClaimedSizeError: All tensors so far need more memory than is allowed.
        """
        # A layer is a Python object as well: 10^15 layers of one number each must also be refused here.
        self.claimed += max(num_bytes, _MIN_TENSOR_BYTES)
        if self.claimed > self.allowed:
            raise ClaimedSizeError(
                f"its networks, up to {what}, claim {self.claimed:,} bytes of memory; {self.allowed:,} bytes, "
                "half of what is available, are allowed"
            )


_claims: ContextVar[_Claims | None] = ContextVar("_claims", default=None)
"""Counter of the file from which an object is being built, if any."""


@contextmanager
def claims_of(file: str | os.PathLike[str]) -> Iterator[None]:
    """Context for building an object from `file`: the sizes that the file claims are checked.

    Raises:
        ClaimedSizeError: The file claims more memory than is available. The message names the file.
    """
    # Within the context of another file, such as the run's folder that this one is in, the outer one counts.
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
    """Return the context for building a network. It counts the network's tensors within `claims_of` a file."""
    claims = _claims.get()
    return nullcontext() if claims is None else _CountedTensors(claims)


class _CountedTensors(TorchFunctionMode):
    """Context that counts new tensors on the CPU before they are allocated.

    A layer of torch allocates its weights with one of a few functions, so layers of every kind are covered. Other
    devices raise an error themselves when their memory is full; a process on the CPU would be killed.
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
            if options.get("device") is None:
                device = torch.get_default_device()
            else:
                device = torch.device(options["device"])
            shape = _shape_of_new(func, args, options)
            if device.type == "cpu" and all(isinstance(length, int) for length in shape):
                dtype = options.get("dtype") or torch.get_default_dtype()
                what = f"a tensor of shape {shape}"
                self.claims.add(what, count_of(what, shape) * dtype.itemsize)
        return func(*args, **options)


_FACTORIES = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn)
"""Functions of torch that allocate the weights of layers."""


def _shape_of_new(func: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
    """Return the shape in a call of a torch factory, which is `size=`, one sequence, or one length an argument."""
    if "size" in options:
        return list(options["size"])
    if func is torch.full or (args and isinstance(args[0], list | tuple)):
        return list(args[0])
    return list(args)


def available_memory() -> int:
    """Return the number of bytes that this process can still allocate.

    That is the smallest of three limits: of the system, of the container (cgroup), and of the process (`ulimit -v`).
    """
    limits = [_free_memory()]

    group = Path("/sys/fs/cgroup")
    maximum = _number_in(group / "memory.max")
    used = _number_in(group / "memory.current")
    if maximum is not None and used is not None:
        limits.append(maximum - used + _cached_files(group / "memory.stat"))

    try:
        import resource
    except ImportError:  # Windows
        pass
    else:
        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        if soft != resource.RLIM_INFINITY:
            limits.append(soft - _address_space())

    return max(min(limits), 0)


def machine_memory() -> int:
    """Return the memory of this machine, in bytes; 1 TiB on Windows, where Python cannot tell it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 40


def _free_memory() -> int:
    """Return the number of bytes that the system can give without swapping, or of all memory if that is unknown."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return machine_memory()


def _cached_files(statistics: Path) -> int:
    """Return the number of bytes of a container's memory that cache files. The system frees these when needed."""
    try:
        counts = {}
        for line in statistics.read_text(encoding="utf-8").splitlines():
            name, number = line.split()
            counts[name] = int(number)
    except (OSError, ValueError):
        return 0
    return counts.get("inactive_file", 0) + counts.get("active_file", 0)


def _address_space() -> int:
    """Return the number of bytes of this process's address space, or 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _number_in(path: Path) -> int | None:
    """Return the whole number in a file, or None if there is none."""
    try:
        return int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no such file, or the word "max"
        return None
