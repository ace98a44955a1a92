"""`JsonlLogger`: records as lines of JSON in a file, without any service or package."""

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
"""Number of bytes that are read first when the end of a file is examined."""


class JsonlLogger(BaseLogger):
    """Logger that appends records to a file of JSON lines, which `read_metrics` and any other tool can read.

    A line: `{"scope": "test", "step_type": "env_step", "step": 1024, "wall_s": 3.2, "data": {...}}`.

    Each line is written by one system call, so that a kill can truncate no line but the last one. The state holds the
    length of the file, after all of it has been synced to the disk. `set_state` cuts the file to that length, so that a
    resumed run does not record anything twice.

    Args:
        path: the file, whose directory must exist.
        resume: whether a file that exists already is continued.
        intervals: options of `BaseLogger`.

    Raises:
        ValueError: the file holds records, and `resume` is False.
        OSError: the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], *, resume: bool = False, **intervals: Unpack[Intervals]) -> None:
        super().__init__(**intervals)
        self.path = Path(path).absolute()
        if not resume and self.path.is_file() and self.path.stat().st_size:
            raise ValueError(f"{self.path} already holds records: pass resume=True to continue it, or another path")
        self._file: BinaryIO | None = None
        self._size = 0
        """Length of the file in bytes."""
        self._wall_before = 0.0
        """Seconds of logging before `_started`."""
        self._started = time.monotonic()
        self._recorded_save: tuple[int, ...] | None = None
        """Counters of a save whose record is in the file already, and must not be written again."""
        self._restored_to: int | None = None
        """Length of the file at the checkpoint that `set_state` has restored."""
        self._open()

    @property
    def wall_s(self) -> float:
        """Seconds of logging so far, in this process and in those before it."""
        return self._wall_before + time.monotonic() - self._started

    def write(self, step_type: str, step: int, data: Mapping[str, Any]) -> None:
        """Append one line for each scope in `data`.

        Raises `OSError`: the line cannot be written, for example because the disk is full. The file then ends with the
        last whole line.
        """
        scopes: dict[str, dict[str, Any]] = {}
        for name, value in flatten(data).items():
            scope, slash, name_in_scope = name.partition("/")
            if not slash:
                scope, name_in_scope = "", name
            scopes.setdefault(scope, {})[name_in_scope] = value
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
        """Return `(epoch, env_step, gradient_step)` of the last recorded save, zeros if there is none.

        Cuts away later records, because a run that continues from these counters will record them again.
        """
        counters = (0, 0, 0)
        end = 0  # of the line of the last save
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
            self._recorded_save = None

    def restore_logged_data(self, path: str | os.PathLike[str]) -> RestoredData:
        """Return all values in a `metrics.jsonl`, by scoped name: `{"step": [...], "value": [...]}`."""
        restored: RestoredData = {}
        for record in read_metrics(path):
            for name, value in record["data"].items():
                key = f"{record['scope']}/{name}" if record["scope"] else name
                series = restored.setdefault(key, {"step": [], "value": []})
                series["step"].append(record["step"])
                series["value"].append(value)
        return restored

    def truncate_to(self, offset: int) -> None:
        """Cut the file to its first `offset` bytes, which must end with a line."""
        self._open().truncate(offset)
        self._size = offset

    def finalize(self) -> None:
        """Write all pending records, sync the file to the disk and close it."""
        try:
            super().finalize()
        finally:
            if self._file is not None:
                os.fsync(self._file.fileno())
                self._file.close()
                self._file = None

    def get_state(self) -> dict[str, Any]:
        """Return the state of the base, the seconds of logging and the file's length.

        The file is synced first: a checkpoint must not survive a power failure with more records than the file.
        """
        os.fsync(self._open().fileno())
        return {**super().get_state(), "offset": self._size, "wall_s": self.wall_s}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`, and cut away all records after it but one.

        The checkpoint that holds the state was recorded after the state was taken. If this record is there, it stays,
        and is not written again when the save is recorded again. A kill may have come before it.

        A file that is shorter than the state says (in a run folder without its metrics) is continued with a warning.
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
        line = self._save_line(offset)
        if line:
            record = parse_record(line)
            self._wall_before = max(self._wall_before, float(record["wall_s"]))
            self._recorded_save = tuple(record["data"][name] for name in ("epoch", "env_step", "gradient_step"))
        self.truncate_to(offset + len(line))
        self._restored_to = offset

    def record_save(self, epoch: int, env_step: int, gradient_step: int, path: object) -> None:
        recorded = self._recorded_save
        self._recorded_save = None
        if recorded != (epoch, env_step, gradient_step):
            super().record_save(epoch, env_step, gradient_step, path)

    def _save_line(self, offset: int) -> bytes:
        """Return the line at `offset` if it is whole and records a save, otherwise an empty one."""
        try:
            with open(self.path, "rb") as reader:
                reader.seek(offset)
                line = reader.readline()
            return line if line.endswith(b"\n") and _is_save(parse_record(line)) else b""
        except (OSError, ValueError):
            return b""  # a damaged line is cut away like all others after the checkpoint

    def _open(self) -> BinaryIO:
        """Return the file, opened at its end. A damaged end is cut off first."""
        if self._file is None:
            # Unbuffered: when `write` returns, the system has the record, and a kill of this process cannot lose it.
            file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (kept open until finalize)
            self._size = _intact_size(self.path)
            if self._size != self.path.stat().st_size:
                file.truncate(self._size)
            self._file = file
        return self._file

    def _append(self, line: bytes) -> None:
        """Append a line, or nothing if it cannot be written as a whole."""
        file = self._open()
        try:
            written = file.write(line)
            if written != len(line):
                # A short write reports no error. Writing the remaining bytes makes the system report it.
                file.write(line[written:])
        except OSError as error:
            file.truncate(self._size)
            raise OSError(error.errno, f"cannot log to {self.path}: {error.strerror}") from error
        self._size += len(line)


def _intact_size(path: Path) -> int:
    """Return the size of a file of records without the damaged lines at its end.

    A kill truncates the last line; a power failure may leave zeros instead of the last lines, and a bad sector there
    cannot be read. The file is read from its end, only as far as needed.
    """
    end = path.stat().st_size
    with open(path, "rb") as reader:
        while end > 0:
            # The last line ends at `end`. Its beginning is searched in a part of the file that doubles in length.
            start = end
            tail = b""
            length = _BLOCK
            while start > 0 and b"\n" not in tail[:-1]:
                start = max(0, end - length)
                length *= 2
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
    """Return whether a line holds an intact record."""
    try:
        parse_record(line)
    except ValueError:
        return False
    return True


def _is_save(record: Mapping[str, Any]) -> bool:
    """Return whether a record describes a save. Its scope has other records as well (`save/episodes_cut`)."""
    return record["scope"] == "save" and "epoch" in record["data"]
