"""Atomic replacement of files and directories, which a kill or power failure at any moment does not damage.

New content is written under a hidden name next to its target, made durable (`fsync`), and renamed. The order matters: a
rename that reaches the disk before the content would leave an empty file under the final name after a power failure.
"""

import contextlib
import ctypes
import glob
import hashlib
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lockstep.state.processes import is_running

_PREFIX = ".lockstep-tmp"
"""Prefix of a file or directory that is being written."""
_REPLACED = ".lockstep-old"
"""Prefix of an old directory that was renamed while the new one takes its place."""
SYNCS_AT_ONCE = 8
"""Number of files of a new directory that are synced at the same time."""


def _host() -> str:
    """Return the name of this machine without the character that separates the fields of a hidden name."""
    return socket.gethostname().replace("~", "-")[:60]


def temporary_sibling(target: Path) -> Path:
    """Return an unused hidden path next to `target`, in the same directory.

    A rename is atomic only within one file system. The name has the machine and the process in it, so that others can
    see whether the writer is still alive (`clear_stale`).
    """
    return target.with_name(f"{_PREFIX}~{_host()}~{os.getpid()}~{secrets.token_hex(6)}")


def _machine() -> str:
    """Return a short text for this machine. It is short because the hidden name also holds the target's whole name."""
    return hashlib.sha256(_host().encode()).hexdigest()[:12]


def _old_path(target: Path) -> Path:
    """Return the hidden path of the old `target` while this process replaces it."""
    return target.with_name(f"{_REPLACED}~{_machine()}~{os.getpid()}~{target.name}")


def clear_stale(directory: Path) -> None:
    """Remove unfinished files of dead processes of this machine from `directory`.

    An old directory that such a process had renamed, but not yet replaced, gets its name back. Files of other machines
    are left: whether a process there is alive cannot be seen from here.
    """
    for leftover in directory.glob(f"{_PREFIX}~*"):
        fields = leftover.name.split("~")
        if len(fields) != 4 or fields[1] != _host() or not fields[2].isdigit():
            continue
        if not is_running(int(fields[2])):
            _remove(leftover)

    for leftover in directory.glob(f"{_REPLACED}~*~*~*"):
        _, machine, process, name = leftover.name.split("~", 3)
        if machine != _machine() or not process.isdigit() or is_running(int(process)):
            continue
        if leftover.with_name(name).exists():
            _remove(leftover)
        else:
            with contextlib.suppress(OSError):  # another process may have done it in the meantime
                os.rename(leftover, leftover.with_name(name))


def _remove(leftover: Path) -> None:
    """Remove a file or a directory, if it exists."""
    if leftover.is_dir():
        shutil.rmtree(leftover, ignore_errors=True)
    else:
        leftover.unlink(missing_ok=True)


def readable_path(target: Path) -> Path:
    """Return the path at which the directory `target` can be read: itself, or its old content under a hidden name.

    Between the two renames of a replacement (see `move_into_place`), and after a kill between them, only the old
    directory exists, under a hidden name. If there is neither, the result is `target`.
    """
    if target.exists():
        return target
    old_paths = sorted(target.parent.glob(f"{_REPLACED}~*~*~{glob.escape(target.name)}"))
    return old_paths[-1] if old_paths else target


def interrupted_replacements(directory: Path) -> list[Path]:
    """Return the directories missing in `directory` whose old content still exists, under a hidden name."""
    names = {leftover.name.split("~", 3)[3] for leftover in directory.glob(f"{_REPLACED}~*~*~*")}
    return [directory / name for name in sorted(names) if not (directory / name).exists()]


def sync_tree(root: Path) -> None:
    """Make a new directory durable, with all files and directories below it.

    Directories are synced as well: without that, a power failure may lose the name of a file whose content is on the
    disk. A file with a second name (a hard link) is left out: it was synced when it got its first one. The others are
    synced at the same time, which a journaling file system answers with a few commits instead of one for each file.
    """
    paths = []
    for folder, _, names in os.walk(root):
        files = [Path(folder, name) for name in names]
        paths += [file for file in files if file.stat().st_nlink == 1]
        paths.append(Path(folder))
    with ThreadPoolExecutor(SYNCS_AT_ONCE) as pool:
        list(pool.map(sync_path, paths))


def sync_path(path: Path) -> None:
    """Make the content of a file, or the list of names of a directory, durable.

    Windows syncs only files that are open for writing, and cannot open a directory: its file system keeps a journal of
    names.
    """
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def move_into_place(temporary: Path, target: Path) -> None:
    """Rename a finished directory to `target`. A directory with that name is replaced and deleted.

    If the system cannot swap two names in one step, the old directory is first renamed to a hidden name. A kill between
    the two renames leaves no `target`: readers then find the old directory with `readable_path`, and the next writer
    gives it its name back (`clear_stale`).
    """
    try:
        os.rename(temporary, target)  # this also replaces an empty directory
    except OSError:
        if not target.is_dir():
            raise
        # A directory with content cannot be renamed over. After the swap, `temporary` is the old directory.
        if not _exchange(temporary, target):
            old = _old_path(target)
            _remove(old)
            os.rename(target, old)
            try:
                os.rename(temporary, target)
            except OSError:
                os.rename(old, target)
                raise
            temporary = old
        # The new name must be durable before the old content is deleted: until then a power failure may undo the
        # renames, and the old content would be needed.
        sync_path(target.parent)
        shutil.rmtree(temporary, ignore_errors=True)
    sync_path(target.parent)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two names in one step (Linux's renameat2), and return whether the system could do that."""
    if sys.platform != "linux":
        return False
    at_working_directory, exchange = -100, 2
    with contextlib.suppress(OSError, AttributeError):
        rename = ctypes.CDLL(None).renameat2
        rename.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
        paths = os.fsencode(first), os.fsencode(second)
        return bool(rename(at_working_directory, paths[0], at_working_directory, paths[1], exchange) == 0)
    return False


@contextlib.contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """Context that yields a path to write a file at, and renames it to `path` if the block ends without an error.

    Raises:
        OSError: The file cannot be written (no directory, a full disk). The message names `path`. The old file stays,
            and nothing unfinished is left.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no directory {path.parent}")
    clear_stale(path.parent)
    temporary = temporary_sibling(path)
    try:
        yield temporary
        # The content must be durable before the rename: see the top of this file.
        sync_path(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise OSError(error.errno, f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    sync_path(path.parent)
