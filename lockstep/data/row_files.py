"""Rows of fixed size in a file that is read row by row: one record each, with all its columns side by side.

A file is an ordinary `.npy` of records (`np.load(path, mmap_mode="r")` opens it) with a note in JSON behind the
last record, which says what records cannot: nesting, tensor or array. Behind the note stand its length (8 bytes,
little-endian) and a mark of 8 bytes.
"""

from __future__ import annotations

import io
import json
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from lockstep.data.codec import decode_column, encode_column, plain_dtype
from lockstep.data.sample_batch import SampleBatch
from lockstep.state.replace import replacing_file

_MARK = b"LSROWS01"
_LONGEST_HEADER = 1 << 20
_LONGEST_NOTE = 1 << 24
_ROWS_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class RowFormat:
    """The record that holds one row, and how its fields make up the columns."""

    record: np.dtype
    columns: dict[str, Any]
    """columns as `encode_column` describes them; a key is the name of a field"""

    @property
    def fields(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """Stored type and row shape of each field."""
        described = {}
        for name in self.record.names or ():
            base = self.record[name].subdtype
            described[name] = base if base is not None else (self.record[name], ())
        return described

    def unpacked(self, records: np.ndarray, wanted: Iterable[str]) -> dict[str, Any]:
        """The wanted columns of some records, as arrays and tensors of their own."""

        def get(field: str) -> np.ndarray:
            return np.array(records[field], order="C")

        return {name: decode_column(self.columns[name], get, get) for name in wanted}


# ---- writing -------------------------------------------------------------------------------------------------


def write_rows(path: str | Path, batches: SampleBatch | Iterable[SampleBatch]) -> Path:
    """Writes all rows of one or many batches to one file for `OfflineDataset`; returns its path (`.npy`).

    Batches are taken one after another, so that a generator (`parquet_batches`) of any length fits in memory. The
    first one with rows says which columns there are, of which type and shape.

    Raises `ValueError` naming batch and column where a later one differs, where a batch has sequences, or where
    there is no row; `TypeError` for columns of objects (`infos`); `OSError` naming the file, of which nothing
    half-written is left.
    """
    path = Path(path)
    path = path if path.suffix == ".npy" else path.with_name(path.name + ".npy")
    given = enumerate([batches] if isinstance(batches, SampleBatch) else batches)
    layout: RowFormat | None = None
    num_rows = 0
    with replacing_file(path) as temporary, temporary.open("wb") as file:
        for number, batch in given:
            _check_batch(batch, number)
            if not len(batch):
                continue
            if layout is None:
                columns, first = _described(batch)
                record = np.dtype([(name, array.dtype.str, array.shape[1:]) for name, array in first.items()])
                layout = RowFormat(record, columns)
                file.write(_header(layout.record, 0))
            arrays = _fitting_arrays(batch, layout, number)
            for start in range(0, len(batch), _ROWS_AT_ONCE):
                file.write(_packed(arrays, layout.record, start, min(start + _ROWS_AT_ONCE, len(batch))))
            num_rows += len(batch)
        if layout is None:
            raise ValueError(f"there is no row to write to {path}")
        note = json.dumps({"version": 1, "columns": layout.columns}).encode()
        file.write(note + len(note).to_bytes(8, "little") + _MARK)
        file.seek(0)
        file.write(_header(layout.record, num_rows))
    return path


def _check_batch(batch: Any, number: int) -> None:
    if not isinstance(batch, SampleBatch):
        raise TypeError(f"batch {number} is a {type(batch).__name__}; SampleBatch is needed")
    if "seq_lens" in batch or batch.time_major or batch.zero_padded:
        raise ValueError(
            f"batch {number} has sequences, padding or time-major columns; rows are written one by one: unpad() it "
            "and leave out 'seq_lens' and the states"
        )


def _described(columns: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Columns as JSON, and the array of each field; columns built alike give the same names."""
    arrays: dict[str, np.ndarray] = {}

    def put(array: np.ndarray, path: str) -> str:
        plain = bool(path) and path.isascii() and path.isprintable() and path not in arrays
        name = path if plain else f"column {len(arrays)}"
        arrays[name] = array
        return name

    return {name: encode_column(column, put, _refuse_objects, name) for name, column in columns.items()}, arrays


def _refuse_objects(rows: np.ndarray, path: str) -> Any:
    raise TypeError(
        f"column {path!r} holds objects (a {type(rows.flat[0]).__name__}), which rows of fixed size cannot; leave it "
        "out, or keep the batch with to_parquet()"
    )


def _fitting_arrays(batch: SampleBatch, layout: RowFormat, number: int) -> dict[str, np.ndarray]:
    """The array of each field; `ValueError` naming a column that is not as in the first batch."""
    odd = sorted(set(batch) ^ set(layout.columns))
    if odd:
        how = "lacks" if odd[0] in layout.columns else "has, unlike the first batch,"
        raise ValueError(f"batch {number} {how} column {odd[0]!r}; columns are {sorted(layout.columns)}")
    columns, arrays = _described({name: batch[name] for name in layout.columns})
    for name, column in columns.items():
        if _told(column) != _told(layout.columns[name]):
            raise ValueError(
                f"column {name!r} of batch {number} is {_told(column)}; the first batch has "
                f"{_told(layout.columns[name])}"
            )
    for field, (dtype, shape) in layout.fields.items():
        array = arrays[field]
        if array.shape[1:] != shape or array.dtype.itemsize > dtype.itemsize:
            raise ValueError(
                f"column {field!r} of batch {number} has rows {array.dtype}{list(array.shape[1:])}; the first batch "
                f"has {dtype}{list(shape)}"
            )
    return arrays


def _told(item: Mapping[str, Any]) -> str:
    """The nesting and types of a described column; the width of text is left out."""
    if item["kind"] == "dict":
        return "{" + ", ".join(f"{key!r}: {_told(part)}" for key, part in item["items"]) + "}"
    if item["kind"] == "tuple":
        return "(" + ", ".join(map(_told, item["items"])) + ")"
    dtype = item["dtype"]
    return f"{item['kind']} {dtype[:2] if dtype[1] in 'US' else dtype}"


def _packed(arrays: Mapping[str, np.ndarray], record: np.dtype, start: int, stop: int) -> memoryview:
    """Rows `start:stop` as the bytes of records."""
    records = np.zeros(stop - start, record)
    for name, array in arrays.items():
        records[name] = array[start:stop]
    return records.view(np.uint8).data


def _header(record: np.dtype, num_rows: int) -> bytes:
    """The head of the `.npy` file, of the same length for any number of rows."""
    text = io.BytesIO()
    described = {"descr": npy.dtype_to_descr(record), "fortran_order": False, "shape": (num_rows,)}
    npy.write_array_header_2_0(text, described)
    return text.getvalue()


# ---- reading -------------------------------------------------------------------------------------------------


class RowFile:
    """An open file of rows. Nothing of it is held in memory but what the methods give.

    Raises `FileNotFoundError`, or `ValueError` naming the file where it is damaged or foreign.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path}")
        self.path = path
        try:
            self.layout, self.num_rows, self._offset = _read_format(path)
        except (ValueError, KeyError, TypeError, IndexError, SyntaxError, EOFError, AttributeError) as error:
            raise ValueError(f"{path} is no readable file of rows (write_rows makes them): {error}") from error
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, index: np.ndarray) -> np.ndarray:
        """Records by number, in this order; consecutive ones are read at once."""
        size, file = self.layout.record.itemsize, self._descriptor
        breaks = np.flatnonzero(np.diff(index) != 1) + 1
        if len(breaks) > len(index) // 2:
            offsets = (index.astype(np.int64) * size + self._offset).tolist()
            content = b"".join([os.pread(file, size, offset) for offset in offsets])
        else:
            bounds = [0, *breaks.tolist(), len(index)] if len(index) else []
            runs = [(int(index[a]), b - a) for a, b in pairwise(bounds)]
            content = b"".join([_read_run(file, first * size + self._offset, n * size) for first, n in runs])
        if len(content) != len(index) * size:
            raise ValueError(f"{self.path} has become shorter since it was opened")
        return np.frombuffer(content, self.layout.record)

    def read_all(self, into: np.ndarray) -> None:
        """All records."""
        content = into.view(np.uint8).data
        done = 0
        while done < len(content):
            count = os.preadv(self._descriptor, [content[done:]], self._offset + done)
            if not count:
                raise ValueError(f"{self.path} has become shorter since it was opened")
            done += count


def _read_run(file: int, offset: int, size: int) -> bytes:
    """`size` bytes; the system gives at most 2 GiB at a time."""
    parts = []
    while size > 0:
        part = os.pread(file, size, offset)
        if not part:
            break
        parts.append(part)
        size, offset = size - len(part), offset + len(part)
    return b"".join(parts)


def _read_format(path: Path) -> tuple[RowFormat, int, int]:
    """Format, number of rows, and where the first record begins."""
    with path.open("rb") as file:
        if npy.read_magic(file) != (2, 0):
            raise ValueError("it is no .npy file of version 2.0")
        shape, fortran_order, record = npy.read_array_header_2_0(file, max_header_size=_LONGEST_HEADER)
        offset, size = file.tell(), path.stat().st_size
        if len(shape) != 1 or fortran_order or record.names is None or record.hasobject:
            raise ValueError(f"it holds an array {list(shape)} of {record}, not records")
        end = offset + shape[0] * record.itemsize
        if not end + 16 <= size <= end + _LONGEST_NOTE:
            raise ValueError(f"it has {size} bytes, {shape[0]} rows need little more than {end}")
        file.seek(end)
        tail = file.read(size - end)
    note, length = tail[:-16], int.from_bytes(tail[-16:-8], "little")
    if tail[-8:] != _MARK or length != len(note):
        raise ValueError("behind its records there is no note of the columns")
    layout = RowFormat(record, json.loads(note)["columns"])
    named = [key for column in layout.columns.values() for key in _fields_of(column)]
    if sorted(named) != sorted(record.names):
        raise ValueError(f"its note names the fields {sorted(named)}, the records have {sorted(record.names)}")
    for dtype, _ in layout.fields.values():
        plain_dtype(dtype.str)
    return layout, shape[0], offset


def _fields_of(item: Mapping[str, Any]) -> Iterator[str]:
    if "key" in item:
        yield item["key"]
    else:
        for part in item["items"]:
            yield from _fields_of(part[1] if item["kind"] == "dict" else part)
