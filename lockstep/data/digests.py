"""SHA-256 digests of data sets, in memory and in files. The digest of a file is cached next to it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.data.trees import named_leaves
from lockstep.state.replace import replacing_file

FORMAT = "sha256"


def digest_of_rows(pieces: Iterable[Mapping[str, Any]]) -> str:
    """Return the SHA-256 of all columns. The same rows cut into other pieces have another digest."""
    sha = hashlib.sha256()
    for piece in pieces:
        for column in sorted(piece):
            for name, leaf in named_leaves(column, piece[column]):
                array = np.asarray(leaf)
                sha.update(f"{name} {array.dtype} {array.shape}".encode())
                if array.dtype == object:
                    # The bytes of an object array are addresses, which differ in every process.
                    sha.update(repr(array.tolist()).encode())
                else:
                    sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


def digest_of_file(path: str | Path) -> str:
    """Return the SHA-256 of a file.

    The digest is cached in `.<name>.digest.json` next to the file or, if that folder is read-only, in the user's cache
    (`$XDG_CACHE_HOME/lockstep/digests`). A cached digest is used as long as the size and the modification time of the
    file, in nanoseconds, have not changed. So a large file is read once, and not each time a run on it is resumed.
    """
    path = Path(path).absolute()
    cache_paths = [path.with_name(f".{path.name}.digest.json"), _path_in_user_cache(path)]
    stamp = _stamp(path)
    for cache_path in cache_paths:
        cached = _read(cache_path)
        if cached is not None and cached["stamp"] == stamp:
            return str(cached[FORMAT])

    with path.open("rb") as file:
        digest = hashlib.file_digest(file, FORMAT).hexdigest()

    # If the file was written during the read, the digest may be of a mixture: it is not cached.
    if _stamp(path) == stamp:
        for cache_path in cache_paths:
            if _write(cache_path, {"stamp": stamp, FORMAT: digest}):
                break
    return digest


def _stamp(path: Path) -> dict[str, int]:
    """Return the size and modification time that identify this version of a file."""
    status = path.stat()
    return {"size": status.st_size, "time_ns": status.st_mtime_ns}


def _path_in_user_cache(path: Path) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    name = hashlib.sha256(os.fsencode(path)).hexdigest()
    return Path(cache) / "lockstep" / "digests" / f"{name}.json"


def _read(cache_path: Path) -> dict[str, Any] | None:
    """Return the content of a cache file, or None if it is missing or damaged."""
    try:
        content = json.loads(cache_path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_complete = isinstance(content, dict) and isinstance(content.get(FORMAT), str) and "stamp" in content
    return content if is_complete else None


def _write(cache_path: Path, content: Mapping[str, Any]) -> bool:
    """Write a cache file atomically. Return False if its folder cannot be written."""
    try:
        cache_path.parent.mkdir(parents=True, exist_ok=True)
        with replacing_file(cache_path) as temporary:
            temporary.write_text(json.dumps(content), encoding="utf-8")
    except OSError:
        return False
    return True
