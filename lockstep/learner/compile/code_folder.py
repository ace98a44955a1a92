"""The folder of compiled code that is kept between runs: whose it is, how large it may get, how it is emptied."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MAX_BYTES = 1 << 30
"""Size of the folder above which the code that was not used for the longest time is deleted."""
SUFFIX = ".so"
CHECKSUM = ".sha256"


@dataclass(frozen=True)
class KeptCode:
    """Number of kept pieces of compiled code, and the size of all files in bytes."""

    pieces: int
    num_bytes: int


def place_of_kept_code() -> Path:
    """Return the folder's place: `lockstep/compiled` in the user's cache folder (`$XDG_CACHE_HOME`).

    Raises `RuntimeError` where the user has no home folder.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lockstep" / "compiled"


def make_private(folder: Path) -> None:
    """Make the folder with mode 0700, or check that it is the user's own and nobody else may write to it.

    Compiled code is machine code that is run as it is, so whoever may write here could run programs as this user. A
    folder of the user's own that is open to others is closed; what others may have put there is deleted.

    Raises:
        OSError: the folder cannot be made, is a link, or belongs to somebody else.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise OSError(f"{folder} is a link or a file, not a folder")
    if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
        raise OSError(f"{folder} belongs to another user")
    if stat.S_IMODE(found.st_mode) == 0o700:
        return
    folder.chmod(0o700)
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        empty(folder)


def is_own_file(path: Path) -> bool:
    """Return whether a file is a plain one of the user's own, in a folder that only the user may enter."""
    try:
        found, folder = path.lstat(), path.parent.lstat()
    except OSError:
        return False
    is_own = not hasattr(os, "geteuid") or (found.st_uid == folder.st_uid == os.geteuid())
    return is_own and stat.S_ISREG(found.st_mode) and stat.S_IMODE(folder.st_mode) == 0o700


def kept_code(folder: Path) -> KeptCode:
    """Return what a folder holds; nothing where there is none."""
    sizes = [(path.suffix, size) for path, size, _ in _files(folder)]
    return KeptCode(sum(suffix == SUFFIX for suffix, _ in sizes), sum(size for _, size in sizes))


def empty(folder: Path) -> KeptCode:
    """Delete all that a folder holds, and return what it was. A run that has loaded code keeps it."""
    before = kept_code(folder)
    with suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with suppress(FileNotFoundError):
                    os.unlink(entry.path)
    return before


def bound(folder: Path, max_bytes: int = MAX_BYTES) -> None:
    """Delete the code that was not used for the longest time until the folder's files take at most `max_bytes`."""
    pieces = [each for each in _files(folder) if each[0].suffix == SUFFIX]
    total = sum(size for _, size, _ in pieces)
    for path, size, _ in sorted(pieces, key=lambda each: each[2]):
        if total <= max_bytes:
            return
        for name in (path, Path(f"{path}{CHECKSUM}")):
            with suppress(OSError):
                name.unlink()
        total -= size


def _files(folder: Path) -> Iterator[tuple[Path, int, float]]:
    """Yield path, size and time of last use of each file below a folder."""
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root, name)
            with suppress(OSError):
                found = path.lstat()
                yield path, found.st_size, found.st_mtime
