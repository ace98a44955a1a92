"""Digests of data sets: of rows in memory, and of files, whose digests are noted so that they are read once."""

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
    """Return the SHA-256 of every row of all columns. The same rows cut into other pieces have another digest."""
    sha = hashlib.sha256()
    for piece in pieces:
        for column in sorted(piece):
            for name, leaf in named_leaves(column, piece[column]):
                array = np.asarray(leaf)
                sha.update(f"{name} {array.dtype} {array.shape}".encode())
                if array.dtype == object:  # whose bytes are addresses
                    sha.update(repr(array.tolist()).encode())
                else:
                    sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


def digest_of_file(path: str | Path) -> str:
    """Return the SHA-256 of a file.

    It is noted beside the file, as `.<name>.digest.json`, or where that folder cannot be written in the user's cache
    (`$XDG_CACHE_HOME`, `lockstep/digests`). The note is used while the size and the time of the file, in nanoseconds,
    are those that it names. So a large file is read once, and not whenever a run on it is resumed.
    """
    path = Path(path).absolute()
    places = [path.with_name(f".{path.name}.digest.json"), _place_in_cache(path)]
    before = _stamp(path)
    for place in places:
        noted = _read(place)
        if noted is not None and noted["stamp"] == before:
            return str(noted[FORMAT])

    with path.open("rb") as file:
        digest = hashlib.file_digest(file, FORMAT).hexdigest()
    # A file that was written meanwhile gets no note: the digest may be of a mixture.
    if _stamp(path) == before:
        for place in places:
            if _write(place, {"stamp": before, FORMAT: digest}):
                break
    return digest


def _stamp(path: Path) -> dict[str, int]:
    found = path.stat()
    return {"size": found.st_size, "time_ns": found.st_mtime_ns}


def _place_in_cache(path: Path) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    name = hashlib.sha256(os.fsencode(path)).hexdigest()
    return Path(cache) / "lockstep" / "digests" / f"{name}.json"


def _read(place: Path) -> dict[str, Any] | None:
    """Return what a note says; None where there is none, or one that cannot be read."""
    try:
        noted = json.loads(place.read_text())
    except (OSError, ValueError):
        return None
    is_whole = isinstance(noted, dict) and isinstance(noted.get(FORMAT), str) and "stamp" in noted
    return noted if is_whole else None


def _write(place: Path, noted: Mapping[str, Any]) -> bool:
    """Write a note as a whole; return whether its folder can be written."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing_file(place) as temporary:
            temporary.write_text(json.dumps(noted))
    except OSError:
        return False
    return True
