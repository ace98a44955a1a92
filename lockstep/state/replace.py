"""Putting a finished file or directory in its place at once, whatever interrupts."""

import contextlib
import ctypes
import glob
import hashlib
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_PREFIX = ".lockstep-tmp"
SYNCS_AT_ONCE = 8
"""Files of a new directory that are synced side by side."""
_REPLACED = ".lockstep-old"
"""Prefix of an old directory that was moved aside while the new one takes its place."""


def _host() -> str:
    return socket.gethostname().replace("~", "-")[:60]


def temporary_sibling(target: Path) -> Path:
    """Return a hidden, unused name beside `target` that tells which machine and process it belongs to."""
    return target.with_name(f"{_PREFIX}~{_host()}~{os.getpid()}~{secrets.token_hex(6)}")


def _machine() -> str:
    """Return a short text for this machine: with it and a long name, a hidden name is still a legal file name."""
    return hashlib.sha256(_host().encode()).hexdigest()[:12]


def _moved_aside(target: Path) -> Path:
    """Return the hidden name under which this process keeps the old `target` while it is replaced."""
    return target.with_name(f"{_REPLACED}~{_machine()}~{os.getpid()}~{target.name}")


def clear_stale(directory: Path) -> None:
    """Remove half-written files of dead processes of this machine from `directory`.

    An old directory that such a process had moved aside, and not yet replaced, gets its name back.
    """
    for leftover in directory.glob(f"{_PREFIX}~*"):
        fields = leftover.name.split("~")
        if len(fields) != 4 or fields[1] != _host() or not fields[2].isdigit():
            continue
        if not _is_alive(int(fields[2])):
            _remove(leftover)

    for leftover in directory.glob(f"{_REPLACED}~*~*~*"):
        _, machine, process, name = leftover.name.split("~", 3)
        if machine != _machine() or not process.isdigit() or _is_alive(int(process)):
            continue
        if leftover.with_name(name).exists():
            _remove(leftover)
        else:
            with contextlib.suppress(OSError):  # another process may have done it meanwhile
                os.rename(leftover, leftover.with_name(name))


def _remove(leftover: Path) -> None:
    if leftover.is_dir():
        shutil.rmtree(leftover, ignore_errors=True)
    else:
        leftover.unlink(missing_ok=True)


def readable_path(target: Path) -> Path:
    """Return where the content of the directory `target` is: there, or moved aside by a replacement under way.

    Between the two renames of a replacement (see `move_into_place`), and after a kill between them, only the old
    directory exists, under a hidden name.
    """
    if target.exists():
        return target
    aside = sorted(target.parent.glob(f"{_REPLACED}~*~*~{glob.escape(target.name)}"))
    return aside[-1] if aside else target


def interrupted_replacements(directory: Path) -> list[Path]:
    """Return the directories that are missing in `directory` but whose old content is still there, moved aside."""
    names = {leftover.name.split("~", 3)[3] for leftover in directory.glob(f"{_REPLACED}~*~*~*")}
    return [directory / name for name in sorted(names) if not (directory / name).exists()]


def _is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def sync_tree(root: Path) -> None:
    """Make a new directory and all that was written below it durable.

    A file with a second name is left out: it was synced when it got its first one. The others are synced side by side,
    which a journaling file system answers with a few commits instead of one for each file.
    """
    paths = []
    for folder, _, names in os.walk(root):
        files = [Path(folder, name) for name in names]
        paths += [file for file in files if file.stat().st_nlink == 1]
        paths.append(Path(folder))
    with ThreadPoolExecutor(SYNCS_AT_ONCE) as pool:
        list(pool.map(sync_path, paths))


def sync_path(path: Path) -> None:
    """Make the content of a file, or the names in a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def move_into_place(temporary: Path, target: Path) -> None:
    """Rename a finished directory to `target`; one that is there already is replaced and deleted.

    Where the system cannot swap two names in one step, the old directory is first renamed out of the way. A kill
    between the two renames leaves `target` missing: readers then find the old one with `readable_path`, and the next
    writer gives it its name back (`clear_stale`).
    """
    try:
        os.rename(temporary, target)  # an empty directory in the way is replaced by this too
    except OSError:
        if not target.is_dir():
            raise
        if not _exchange(temporary, target):
            aside = _moved_aside(target)
            _remove(aside)
            os.rename(target, aside)
            try:
                os.rename(temporary, target)
            except OSError:
                os.rename(aside, target)
                raise
            temporary = aside
        sync_path(target.parent)
        shutil.rmtree(temporary, ignore_errors=True)
    sync_path(target.parent)


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
    sync_path(path.parent)
