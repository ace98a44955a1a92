"""Putting a finished file or directory in its place at once, whatever interrupts."""

import contextlib
import ctypes
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

_PREFIX = ".lockstep-tmp"


def temporary_sibling(target: Path) -> Path:
    """Return a hidden, unused name beside `target` that tells which machine and process it belongs to."""
    host = socket.gethostname().replace("~", "-")[:60]
    return target.with_name(f"{_PREFIX}~{host}~{os.getpid()}~{secrets.token_hex(6)}")


def clear_stale(directory: Path) -> None:
    """Remove what processes of this machine that are no longer alive have left half-written in
    `directory`.
    """
    for leftover in directory.glob(f"{_PREFIX}~*"):
        fields = leftover.name.split("~")
        if len(fields) != 4 or fields[1] != socket.gethostname().replace("~", "-")[:60] or not fields[2].isdigit():
            continue
        if not _is_alive(int(fields[2])):
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)


def _is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def move_into_place(temporary: Path, target: Path) -> None:
    """Rename a finished directory to `target`; one that is there already is replaced and deleted.

    Where the system cannot swap two names in one step, the old directory is first renamed out of the way: a
    kill between the two renames then leaves `target` missing.
    """
    try:
        os.rename(temporary, target)  # an empty directory in the way is replaced by this too
    except OSError:
        if not target.is_dir():
            raise
        if not _exchange(temporary, target):
            aside = temporary_sibling(target)
            os.rename(target, aside)
            os.rename(temporary, target)
            temporary = aside
        sync_directory(target.parent)
        shutil.rmtree(temporary, ignore_errors=True)
    sync_directory(target.parent)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two names in one step (Linux's renameat2); False where that is not to be had."""
    at_working_directory, exchange = -100, 2
    with contextlib.suppress(OSError, AttributeError):
        rename = ctypes.CDLL(None).renameat2
        rename.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
        paths = os.fsencode(first), os.fsencode(second)
        return bool(rename(at_working_directory, paths[0], at_working_directory, paths[1], exchange) == 0)
    return False


@contextlib.contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """Give a name beside `path` to write a file under; it takes the place of `path` when the block ends well.

    Raises:
        OSError: naming `path` (no directory to write in, a full disk); the old file stays and nothing
            half-written is left.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no directory {path.parent}")
    clear_stale(path.parent)
    temporary = temporary_sibling(path)
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise OSError(error.errno, f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    sync_directory(path.parent)
