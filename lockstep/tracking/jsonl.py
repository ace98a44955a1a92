"""The logger that needs nothing: one JSON object for each record, one line each."""

import json
import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Unpack

from lockstep.tracking.logger import BaseLogger, Intervals, RestoredData
from lockstep.tracking.records import flatten, parse_record, read_metrics, to_strict_json

_BLOCK = 1 << 16


class JsonlLogger(BaseLogger):
    """Appends records to a file that any tool can read (`read_metrics` does).

    A line: `{"scope": "test", "step_type": "env_step", "step": 1024, "wall_s": 3.2, "data": {...}}`. Each
    line is written by one call to the system, so a kill can tear no more than the last one. The state holds
    the file's length, taken after all of it is on the disk: `set_state` cuts away what was written after
    the checkpoint, so that a resumed run doubles no record.

    Args:
        path: the file; its directory must exist.
        resume: continue a file that is there already.
        intervals: as `BaseLogger`.

    Raises `ValueError`: the file holds records and `resume` is False. `OSError`: the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], *, resume: bool = False, **intervals: Unpack[Intervals]) -> None:
        super().__init__(**intervals)
        self.path = Path(path).absolute()
        if not resume and self.path.is_file() and self.path.stat().st_size:
            raise ValueError(f"{self.path} already holds records: pass resume=True to continue it, or another path")
        self._file: BinaryIO | None = None
        self._size = 0
        self._wall_before = 0.0
        self._started = time.monotonic()
        self._kept_save: tuple[int, ...] | None = None
        self._restored_to: int | None = None
        self._open()

    @property
    def wall_s(self) -> float:
        """Seconds of logging so far: this process's and those restored by `set_state`."""
        return self._wall_before + time.monotonic() - self._started

    def write(self, step_type: str, step: int, data: Mapping[str, Any]) -> None:
        """Append one line for each scope in `data`.

        Raises `OSError`: the disk is full, say; the file is cut back to its last whole line.
        """
        scopes: dict[str, dict[str, Any]] = {}
        for name, value in flatten(data).items():
            scope, slash, rest = name.partition("/")
            scopes.setdefault(scope if slash else "", {})[rest if slash else name] = value
        for scope, values in scopes.items():
            record = {
                "scope": scope,
                "step_type": step_type,
                "step": int(step),
                "wall_s": round(self.wall_s, 3),
                "data": to_strict_json(values),
            }
            self._append(json.dumps(record, allow_nan=False).encode() + b"\n")

    def restore_data(self) -> tuple[int, int, int]:
        """Return `(epoch, env_step, gradient_step)` of the last save on record.

        Cuts away what was recorded after that save, as a run that goes on from its counters will record it
        anew.
        """
        counters, end = (0, 0, 0), 0
        position = 0
        with open(self.path, "rb") as file:
            for line in file:
                position += len(line)
                record = parse_record(line)
                if _is_save(record):
                    data = record["data"]
                    counters = (int(data["epoch"]), int(data["env_step"]), int(data["gradient_step"]))
                    end = position
                    self._wall_before = float(record["wall_s"])
        if end:
            self.truncate_to(end)
            self._started = time.monotonic()
            self._continue_from(*counters)
        return counters

    def last_checkpoint(self) -> str | None:
        saves = [record["data"] for record in read_metrics(self.path) if _is_save(record)]
        return saves[-1]["path"] if saves else None

    def drop_save(self) -> None:
        if self._restored_to is not None:
            self.truncate_to(self._restored_to)
            self._kept_save = None

    def restore_logged_data(self, path: str | os.PathLike[str]) -> RestoredData:
        """Return every value in a `metrics.jsonl`: scoped name -> `{"step": [...], "value": [...]}`."""
        restored: RestoredData = {}
        for record in read_metrics(path):
            for name, value in record["data"].items():
                key = f"{record['scope']}/{name}" if record["scope"] else name
                series = restored.setdefault(key, {"step": [], "value": []})
                series["step"].append(record["step"])
                series["value"].append(value)
        return restored

    def truncate_to(self, offset: int) -> None:
        """Cut the file to its first `offset` bytes, which end a line."""
        self._open().truncate(offset)
        self._size = offset

    def finalize(self) -> None:
        """Write what is waiting, sync the file to the disk and close it."""
        try:
            super().finalize()
        finally:
            if self._file is not None:
                os.fsync(self._file.fileno())
                self._file.close()
                self._file = None

    def get_state(self) -> dict[str, Any]:
        """Return the state of the base, the clock and the file's length, all of which is on the disk by then."""
        os.fsync(self._open().fileno())
        return {**super().get_state(), "offset": self._size, "wall_s": self.wall_s}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go back to where the file stood; the note of the save that holds this state is kept, and not doubled
        when that save is recorded again (a kill may have come before its note).

        A file that is shorter than the state says (a run folder without its metrics) is continued with a
        warning.
        """
        super().set_state(state)
        self._wall_before = float(state["wall_s"])
        self._started = time.monotonic()
        self._open()
        offset = int(state["offset"])
        if offset > self._size:
            warnings.warn(
                f"{self.path} has {self._size} bytes, {offset} when the checkpoint was made: earlier records are lost",
                RuntimeWarning,
                stacklevel=2,
            )
            return
        note = self._save_note(offset)
        if note:
            record = parse_record(note)
            self._wall_before = max(self._wall_before, float(record["wall_s"]))
            self._kept_save = tuple(record["data"][name] for name in ("epoch", "env_step", "gradient_step"))
        self.truncate_to(offset + len(note))
        self._restored_to = offset

    def record_save(self, epoch: int, env_step: int, gradient_step: int, path: object) -> None:
        kept, self._kept_save = self._kept_save, None
        if kept != (epoch, env_step, gradient_step):
            super().record_save(epoch, env_step, gradient_step, path)

    def _save_note(self, offset: int) -> bytes:
        """Return the line at `offset` if it is whole and records a save, else nothing."""
        try:
            with open(self.path, "rb") as reader:
                reader.seek(offset)
                line = reader.readline()
            return line if line.endswith(b"\n") and _is_save(parse_record(line)) else b""
        except (OSError, ValueError):
            return b""  # what follows the checkpoint is cut away in any case

    def _open(self) -> BinaryIO:
        """Return the file, opened at its end; a damaged end is cut off first."""
        if self._file is None:
            # Unbuffered: a record is in the system's hands when `write` returns.
            file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (kept open until finalize)
            self._size = _intact_size(self.path)
            if self._size != self.path.stat().st_size:
                file.truncate(self._size)
            self._file = file
        return self._file

    def _append(self, line: bytes) -> None:
        file = self._open()
        try:
            written = file.write(line)
            if written != len(line):
                file.write(line[written:])  # makes the system say what is wrong
        except OSError as error:
            file.truncate(self._size)
            raise OSError(error.errno, f"cannot log to {self.path}: {error.strerror}") from error
        self._size += len(line)


def _intact_size(path: Path) -> int:
    """Return the size of a file of records without the damaged lines at its end.

    A kill tears the last line; a power failure may leave zeros instead of the last ones, and a bad sector there cannot
    be read. The file is read from its end, only as far as needed.
    """
    end = path.stat().st_size
    with open(path, "rb") as reader:
        while end > 0:
            start, tail, length = end, b"", _BLOCK
            # The last line ends at `end`: find where it begins, in a stretch that doubles.
            while start > 0 and b"\n" not in tail[:-1]:
                start, length = max(0, end - length), 2 * length
                reader.seek(start)
                try:
                    tail = reader.read(end - start)
                except OSError:
                    tail = b""
                    break
            begin = start + tail[:-1].rfind(b"\n") + 1
            line = tail[begin - start :]
            if line.endswith(b"\n") and _is_record(line):
                return end
            end = begin
    return 0


def _is_record(line: bytes) -> bool:
    try:
        parse_record(line)
    except ValueError:
        return False
    return True


def _is_save(record: Mapping[str, Any]) -> bool:
    """Return whether the record notes a save; others of that scope tell its fate (`save/episodes_cut`)."""
    return record["scope"] == "save" and "epoch" in record["data"]
