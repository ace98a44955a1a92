"""Arrays that do not change, so that one file on disk can stand in several checkpoints."""

import contextlib
import os
from pathlib import Path
from typing import Any


class SealedArrays(dict[str, Any]):
    """A flat dict of arrays of which the owner says: as long as this object is used, they do not change.

    When it is written to a checkpoint as a top-level key, it remembers the file. The next checkpoint on the same
    file system gets that file under a second name (a hard link), which costs next to nothing. Where that does not
    work (the older checkpoint is gone, or on another disk) the arrays are written again. It is read as a dict.
    """

    __slots__ = ("_entry", "_home")

    def __init__(self, *arrays: Any, **more: Any) -> None:
        super().__init__(*arrays, **more)
        self._home: tuple[Path, int, int] | None = None
        self._entry: dict[str, Any] = {}

    def link_to(self, path: Path) -> dict[str, Any] | None:
        """Puts the file written before at `path` too; its size and SHA-256, or None where that does not work."""
        if self._home is None:
            return None
        home, inode, changed = self._home
        try:
            os.link(home, path)
        except OSError:
            self._home = None
            return None
        found = path.stat()
        if (found.st_ino, found.st_mtime_ns) != (inode, changed):  # another file has taken its place
            path.unlink()
            self._home = None
            return None
        return dict(self._entry)

    def written_to(self, path: Path, entry: dict[str, Any]) -> None:
        """The file at `path` now holds these arrays."""
        with contextlib.suppress(OSError):
            found = path.stat()
            self._home, self._entry = (path, found.st_ino, found.st_mtime_ns), dict(entry)
