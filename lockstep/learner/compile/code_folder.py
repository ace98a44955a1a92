"""The cache folder of compiled code: its path, its permissions, its size limit, and how it is emptied."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MAX_BYTES = 1 << 30
"""Size of the folder in bytes. Above it, the code that was not used for the longest time is deleted."""
SUFFIX = ".so"
"""Suffix of a compiled library."""
CHECKSUM = ".sha256"
"""Suffix of a library's checksum file, appended to the library's whole name."""


@dataclass(frozen=True)
class CacheSize:
    """Size of the cache folder: number of compiled libraries, and bytes of all files."""

    num_libraries: int
    num_bytes: int


def cache_path() -> Path:
    """Return the path of the cache folder: `lockstep/compiled` in the user's cache folder (`$XDG_CACHE_HOME`).

    Raises `RuntimeError` if the user has no home folder.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lockstep" / "compiled"


def make_private(folder: Path) -> None:
    """Create the folder with mode 0700, or check that it belongs to the user and nobody else may write to it.

    Compiled code is machine code that runs as it is, so whoever may write here could run programs as this user. If the
    user's own folder is open to others, it is closed; if others could write to it, its files are deleted.

    Raises:
        OSError: the folder cannot be created, is a link, or belongs to another user.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)

    status = folder.lstat()  # not `stat`: a link could lead into a folder of somebody else
    if not stat.S_ISDIR(status.st_mode):
        raise OSError(f"{folder} is a link or a file, not a folder")
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise OSError(f"{folder} belongs to another user")
    if stat.S_IMODE(status.st_mode) == 0o700:
        return

    # Close the folder before it is emptied, else a file could be put there in between.
    folder.chmod(0o700)
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        empty(folder)


def is_own_file(path: Path) -> bool:
    """Return whether `path` is a regular file of the user, in a folder that only the user may enter."""
    try:
        file = path.lstat()
        folder = path.parent.lstat()
    except OSError:
        return False
    is_own = not hasattr(os, "geteuid") or (file.st_uid == folder.st_uid == os.geteuid())
    return is_own and stat.S_ISREG(file.st_mode) and stat.S_IMODE(folder.st_mode) == 0o700


def cache_size(folder: Path) -> CacheSize:
    """Return the size of a cache folder; zeros if the folder does not exist."""
    num_libraries = 0
    num_bytes = 0
    for path, size, _ in _files(folder):
        num_libraries += path.suffix == SUFFIX
        num_bytes += size
    return CacheSize(num_libraries, num_bytes)


def empty(folder: Path) -> CacheSize:
    """Delete all files in a cache folder, and return its size before. Runs that have loaded code continue with it."""
    before = cache_size(folder)
    with suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with suppress(FileNotFoundError):  # another process may empty the folder, too
                    os.unlink(entry.path)
    return before


def limit_size(folder: Path, max_bytes: int = MAX_BYTES) -> None:
    """Delete the least recently used libraries until those in the folder take at most `max_bytes`."""
    libraries = [entry for entry in _files(folder) if entry[0].suffix == SUFFIX]
    total = sum(size for _, size, _ in libraries)
    for path, size, _ in sorted(libraries, key=lambda entry: entry[2]):
        if total <= max_bytes:
            return
        for file in (path, Path(f"{path}{CHECKSUM}")):
            with suppress(OSError):
                file.unlink()
        total -= size


def _files(folder: Path) -> Iterator[tuple[Path, int, float]]:
    """Yield path, size and time of last use of each file below a folder."""
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root, name)
            with suppress(OSError):  # another process may have deleted it since
                status = path.lstat()
                yield path, status.st_size, status.st_mtime
