"""Marks of the ranks of a run. After a restart they say how each rank had ended."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.tracking.records import write_json

RANKS = "ranks"
PEER_ERROR = "LearnerError"
"""Name of the error of a rank that has lost another one. It is a consequence, and never the reason of a restart."""


class RankMark:
    """File `ranks/R.json` in the folder of a run, for rank R.

    The rank writes it when it begins to train, and removes it when it ends in order, also after a signal. A file that
    is left has the error of the rank. Without an error the rank has died in a way that it could not note: by SIGKILL,
    for lack of memory, or with its machine.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.path = folder / RANKS / f"{rank}.json"

    def last_end(self) -> dict[str, Any] | None:
        """Return `process` and `error` of the last rank with this number, or None if it had ended in order.

        A damaged file counts as a death without an error: the rank died while it wrote the file.
        """
        try:
            content = json.loads(self.path.read_bytes())
            return {"process": str(content["process"]), "error": content["error"] and str(content["error"])}
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError):
            return {"process": "unknown process", "error": None}

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Keep the file while the block trains the run."""
        process = f"process {os.getpid()} on {socket.gethostname()}"
        self._write(process, None)
        try:
            yield
        except Exception as error:
            self._write(process, f"{type(error).__name__}: {error}".splitlines()[0])
            raise
        except BaseException:  # Ctrl-C and SIGTERM end a rank in order
            self._remove()
            raise
        self._remove()

    def _write(self, process: str, error: str | None) -> None:
        # A full disk must neither end a run nor hide the error that ends it.
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(exist_ok=True)
            write_json(self.path, {"process": process, "error": error})

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()
            self.path.parent.rmdir()  # fails until the last rank has removed its file


def restart_reason(ends: Sequence[Mapping[str, Any] | None]) -> str:
    """Return why ranks were started again, from the `last_end` of each rank."""
    died = [rank for rank, end in enumerate(ends) if end is not None and end["error"] is None]
    if died:
        named = ", ".join(f"rank {rank} ({ends[rank]['process']})" for rank in died)  # type: ignore[index]
        return f"{named} died without an error: killed, out of memory, or the machine was lost"

    failed = [(rank, end) for rank, end in enumerate(ends) if end is not None]
    # Ranks that have lost another one end with an error as well, and come last.
    failed.sort(key=lambda pair: pair[1]["error"].startswith(PEER_ERROR))
    if failed:
        rank, end = failed[0]
        return f"rank {rank} ({end['process']}) ended with {end['error']}"
    return "the job was stopped and started again"
