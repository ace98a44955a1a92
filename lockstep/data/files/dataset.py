"""Data sets larger than memory: rows on disk that are read when they are needed, in shuffled minibatches.

A file of rows is an ordinary `.npy` of records, which `np.load(path, mmap_mode="r")` opens. Each record is a row with
all its columns. A JSON note after the last record holds what records cannot express: nesting, and whether a leaf was a
tensor or an array. The note is followed by its length (8 bytes, little-endian) and by a mark of 8 bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from lockstep.data.codec import array_keys, decode_column, encode_column, naming_damage, plain_dtype
from lockstep.data.digests import digest_of_file
from lockstep.data.indices import row_numbers
from lockstep.data.parquet import parquet_parts
from lockstep.data.sample_batch import SampleBatch
from lockstep.options.checks import check_whole
from lockstep.state.replace import replacing_file
from lockstep.state.sizes import check_claim

_MARK = b"LSROWS01"
_LONGEST_HEADER = 1 << 20
_LONGEST_NOTE = 1 << 24
"""Limits of a header and a note in bytes. Longer ones are damage."""
_ROWS_AT_ONCE = 1 << 14
"""Number of rows that are packed into records and written at once."""
_SEEKING = threading.Lock()
"""Lock around a seek and the read after it, where a file cannot be read at an offset in one call."""


@dataclass(frozen=True)
class RowFormat:
    """Format of the rows of a file: the record of one row, and the columns that its fields form."""

    record: np.dtype
    columns: dict[str, Any]
    """Descriptions of `encode_column`. Keys of arrays are names of fields."""

    @property
    def fields(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """Stored dtype and row shape of each field."""
        return {name: self.record[name].subdtype or (self.record[name], ()) for name in self.record.names or ()}


# ---- writing -------------------------------------------------------------------------------------------------


def write_rows(path: str | Path, batches: SampleBatch | Iterable[SampleBatch]) -> Path:
    """Write the rows of one or many batches to one file for `OfflineDataset`, and return its path (`.npy`).

    Batches are written one after another, so that a generator (`parquet_batches`) of any length fits in memory. The
    first batch with rows determines the columns, their types and shapes. The file appears when it is complete.

    Raises:
        ValueError: a later batch differs, a batch has sequences, or there is no row; names batch and column.
        TypeError: a column holds objects (`infos`).
        OSError: the file cannot be written; names the file.
    """
    path = Path(path)
    path = path if path.suffix == ".npy" else path.with_name(path.name + ".npy")
    batches = [batches] if isinstance(batches, SampleBatch) else batches
    layout: RowFormat | None = None
    num_rows = 0
    with replacing_file(path) as temporary, temporary.open("wb") as file:
        for number, batch in enumerate(batches):
            _check_batch(batch, number)
            if not len(batch):
                continue
            if layout is None:
                columns, first = _describe_columns(batch)
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
        # The number of rows is known only now. The new header is exactly as long as the first one.
        file.seek(0)
        file.write(_header(layout.record, num_rows))
    return path


def _check_batch(batch: object, number: int) -> None:
    """Raise `TypeError` unless `batch` is a `SampleBatch`, and `ValueError` if it has sequences."""
    message = (
        f"batch {number} is a {type(batch).__name__} that is no SampleBatch of single rows; unpad() sequences and "
        "leave out 'seq_lens' and the states"
    )
    if not isinstance(batch, SampleBatch):
        raise TypeError(message)
    if "seq_lens" in batch or batch.time_major or batch.zero_padded:
        raise ValueError(message)


def _describe_columns(columns: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the descriptions of columns, and the array of each field. Columns of one structure have equal names."""
    arrays: dict[str, np.ndarray] = {}

    def put(array: np.ndarray, path: str) -> str:
        # Names of fields in `.npy` headers are best plain ASCII; other paths get a number.
        is_plain = bool(path) and path.isascii() and path.isprintable() and path not in arrays
        name = path if is_plain else f"column {len(arrays)}"
        arrays[name] = array
        return name

    described = {name: encode_column(column, put, _refuse_objects, name) for name, column in columns.items()}
    return described, arrays


def _refuse_objects(rows: np.ndarray, path: str) -> None:
    raise TypeError(f"column {path!r} holds objects, which rows of fixed size cannot; keep the batch with to_parquet()")


def _fitting_arrays(batch: Mapping[str, Any], layout: RowFormat, number: int) -> dict[str, np.ndarray]:
    """Return the array of each field; `ValueError` naming a column that differs from the first batch."""
    columns, arrays = _describe_columns({name: batch[name] for name in layout.columns if name in batch})
    odd = set(batch) ^ set(layout.columns)
    if not odd:
        odd = {name for name, column in columns.items() if _structure(column) != _structure(layout.columns[name])}
    if not odd:
        for field, (dtype, shape) in layout.fields.items():
            # Text may be shorter than in the first batch, but not longer.
            if arrays[field].shape[1:] != shape or arrays[field].dtype.itemsize > dtype.itemsize:
                odd.add(field)
    if odd:
        shown = {name: f"{array.dtype}{list(array.shape[1:])}" for name, array in arrays.items()}
        raise ValueError(
            f"column {min(odd)!r} of batch {number} differs from the first batch, or one of them lacks it: {shown}; "
            f"the first batch has {layout.fields}"
        )
    return arrays


def _structure(item: Mapping[str, Any]) -> str:
    """Return the nesting and types of a described column as text, without the width of text columns."""
    if item["kind"] == "dict":
        return "{" + ", ".join(f"{key!r}: {_structure(part)}" for key, part in item["items"]) + "}"
    if item["kind"] == "tuple":
        return "(" + ", ".join(map(_structure, item["items"])) + ")"
    dtype = item["dtype"]
    return f"{item['kind']} {dtype[:2] if dtype[1] in 'US' else dtype}"


def _packed(arrays: Mapping[str, np.ndarray], record: np.dtype, start: int, stop: int) -> memoryview:
    """Return the bytes of rows `start:stop` as records."""
    records = np.zeros(stop - start, record)
    for name, array in arrays.items():
        records[name] = array[start:stop]
    return records.view(np.uint8).data


def _header(record: np.dtype, num_rows: int) -> bytes:
    """Return the header of the `.npy` file. It has the same length for every number of rows."""
    text = io.BytesIO()
    described = {"descr": npy.dtype_to_descr(record), "fortran_order": False, "shape": (num_rows,)}
    npy.write_array_header_2_0(text, described)
    return text.getvalue()


# ---- reading -------------------------------------------------------------------------------------------------


class RowFile:
    """Open file of rows. It holds no rows in memory.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged or foreign; names the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with naming_damage(path, "file of rows (write_rows makes them)"):
            self.layout, self.num_rows, self._offset = _read_format(path)
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, index: np.ndarray) -> np.ndarray:
        """Return records by number, in the given order. Consecutive records are read at once."""
        size = self.layout.record.itemsize
        breaks = np.flatnonzero(np.diff(index) != 1) + 1
        if len(breaks) > len(index) // 2:
            # Mostly single rows, as in a shuffled minibatch: the shortest loop over them is the fastest.
            offsets = (index.astype(np.int64) * size + self._offset).tolist()
            content = b"".join([_read_at(self._descriptor, size, offset) for offset in offsets])
            self._check_read(len(content), len(index) * size)
            return np.frombuffer(content, self.layout.record)

        into = np.empty(len(index) * size, np.uint8)
        for start, stop in pairwise([0, *breaks.tolist(), len(index)]):
            if stop > start:
                self.read_run(int(index[start]), into.data[start * size : stop * size])
        return np.frombuffer(into, self.layout.record)

    def read_run(self, first: int, into: memoryview) -> None:
        """Read consecutive records from number `first` on into a buffer, which says how many."""
        offset = first * self.layout.record.itemsize + self._offset
        done = 0
        count = 1
        while count and done < len(into):  # the system returns at most 2 GiB at a time
            count = _read_into(self._descriptor, into[done:], offset + done)
            done += count
        self._check_read(done, len(into))

    def _check_read(self, num_bytes: int, wanted: int) -> None:
        if num_bytes != wanted:
            raise ValueError(f"{self.path} has become shorter since it was opened")


def _read_by_seeking(descriptor: int, size: int, offset: int) -> bytes:
    """Return up to `size` bytes of a file from `offset` on. Other threads wait, since they share the position."""
    with _SEEKING:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, size)


def _read_into(descriptor: int, into: memoryview, offset: int) -> int:
    """Read a file from `offset` on into a buffer, and return the number of bytes."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [into], offset)
    content = _read_at(descriptor, len(into), offset)
    into[: len(content)] = content
    return len(content)


_read_at: Callable[[int, int, int], bytes] = getattr(os, "pread", _read_by_seeking)
"""Function that reads a file at an offset. Windows has no `pread`."""


def _read_format(path: Path) -> tuple[RowFormat, int, int]:
    """Return the format, the number of rows, and the offset of the first record.

    Raises:
        ValueError: the file is damaged or foreign.
        ClaimedSizeError: its rows do not fit into memory.
    """
    with path.open("rb") as file:
        if npy.read_magic(file) != (2, 0):
            raise ValueError("it is no .npy file of version 2.0")
        shape, fortran_order, record = npy.read_array_header_2_0(file, max_header_size=_LONGEST_HEADER)
        offset = file.tell()
        size = path.stat().st_size
        if len(shape) != 1 or fortran_order or record.names is None or record.hasobject:
            raise ValueError(f"it holds an array {list(shape)} of {record}, not records")

        end = offset + shape[0] * record.itemsize
        # A record may have no bytes, so that the size of the file does not bound the number of rows.
        check_claim(f"the order of its {shape[0]:,} rows", shape[0] * 8)
        if not end + 16 <= size <= end + _LONGEST_NOTE:
            raise ValueError(f"it has {size} bytes, {shape[0]} rows need little more than {end}")
        file.seek(end)
        tail = file.read(size - end)

    note = tail[:-16]
    length = int.from_bytes(tail[-16:-8], "little")
    if tail[-8:] != _MARK or length != len(note):
        raise ValueError("behind its records there is no note of the columns")

    layout = RowFormat(record, json.loads(note)["columns"])
    _check_layout(layout)
    return layout, shape[0], offset


def _check_layout(layout: RowFormat) -> None:
    """Raise an error now for a note that does not fit the records, rather than when rows are read."""
    record = layout.record
    keys: list[Any] = []
    for column in layout.columns.values():
        keys += array_keys(column)
    if sorted(keys) != sorted(record.names or ()):
        raise ValueError(f"its note names the fields {sorted(keys)}, the records have {sorted(record.names or ())}")
    for dtype, _ in layout.fields.values():
        plain_dtype(dtype.str)

    no_rows = np.empty(0, record)
    for column in layout.columns.values():
        decode_column(column, no_rows.__getitem__, no_rows.__getitem__)


def parquet_batches(
    paths: str | Path | Iterable[str | Path], size: int, columns: Collection[str] | None = None
) -> Iterator[SampleBatch]:
    """Iterate over the rows of Parquet files in order, in batches of up to `size` rows.

    One row group is held in memory at a time (`to_parquet(row_group_size=...)`); a batch never spans two of them.

    Args:
        paths: One file or several.
        size: Largest number of rows in a batch.
        columns: Columns to read. Defaults to all columns.

    Raises:
        ValueError: a file is damaged, foreign or holds sequences (the message names it), or `size` is below 1.
        KeyError: a file lacks a column.
    """
    check_whole("size", size, 1)
    for path in map(Path, [paths] if isinstance(paths, str | Path) else paths):
        with naming_damage(path, "Parquet file of a SampleBatch"):
            for part in parquet_parts(path, size, columns):
                yield SampleBatch(part)


# ---- data sets -----------------------------------------------------------------------------------------------


class OfflineDataset:
    """Rows of one or several files of `write_rows`.

    A data set of up to `max_memory_bytes` is read into memory as a whole when it is first used. The rows of a larger
    one stay on disk, and each is read when it is needed (all its columns in one read).

    `len(dataset)` is the number of rows. `dataset[a:b]` and `dataset[indices]` are `SampleBatch`es, which are copies.
    Rows are in the order of the files.

    Args:
        paths: One file or several, all with the same columns.
        columns: Columns to return, or a dict `{name here: name in the files}`. Defaults to all columns.
        max_memory_bytes: Largest data set in bytes that is held in memory. With 0, none is.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, foreign, or has other columns than the first; names the file.
        KeyError: the files lack a column.
    """

    def __init__(
        self,
        paths: str | Path | Iterable[str | Path],
        *,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        max_memory_bytes: int = 256 << 20,
    ) -> None:
        check_whole("max_memory_bytes", max_memory_bytes, 0)
        paths = [paths] if isinstance(paths, str | Path) else paths
        self._files = [RowFile(Path(path)) for path in paths]
        if not self._files:
            raise ValueError("there is no file; give one path or several")
        self._layout = self._files[0].layout
        for file in self._files[1:]:
            if file.layout != self._layout:
                raise ValueError(
                    f"{file.path} has columns {file.layout.fields}, unlike {self._files[0].path} with "
                    f"{self._layout.fields}; files of one data set have the same columns, types and shapes"
                )

        present = list(self._layout.columns)
        wanted = present if columns is None else columns
        self._sources = dict(wanted) if isinstance(wanted, Mapping) else dict(zip(wanted, wanted))
        """Name of each column in the files, by its name here."""
        missing = [name for name in self._sources.values() if name not in present]
        if missing:
            raise KeyError(f"{self._files[0].path} has no column {missing[0]!r}; columns are {sorted(present)}")
        self.columns: tuple[str, ...] = tuple(self._sources)
        self._starts = np.cumsum([0, *(file.num_rows for file in self._files)])
        """Number of the first row of each file, and the number of all rows."""
        self._in_memory = self.size_bytes() <= max_memory_bytes
        self._records: np.ndarray | None = None
        """All rows, once they have been read into memory."""

    def __len__(self) -> int:
        return int(self._starts[-1])

    def size_bytes(self) -> int:
        """Return the bytes of all rows, all columns of the files."""
        return len(self) * int(self._layout.record.itemsize)

    @property
    def schema(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """Dtype and row shape of each leaf in the files, by path (`"obs/camera"`)."""
        return self._layout.fields

    @property
    def paths(self) -> list[Path]:
        """Paths of the files, in order."""
        return [file.path for file in self._files]

    def digest(self) -> str:
        """Return the SHA-256 of all files and of the names of the columns. `digest_of_file` caches that of a file."""
        files = [digest_of_file(path) for path in self.paths]
        return hashlib.sha256(json.dumps([self._sources, files]).encode()).hexdigest()

    def __repr__(self) -> str:
        size = f"{len(self)} rows of {self._layout.record.itemsize} bytes"
        return f"OfflineDataset({size} in {len(self._files)} files, columns {list(self.columns)})"

    def __getitem__(self, key: slice | Sequence[int] | np.ndarray) -> SampleBatch:
        """Return a batch of the rows of a slice, or of row numbers in any order. Negative ones count from the end."""
        if isinstance(key, slice):
            return self.take_rows(np.arange(*key.indices(len(self))))
        return self.take_rows(row_numbers(key, len(self)))

    def take_rows(self, index: np.ndarray) -> SampleBatch:
        """Return a batch of the rows with these numbers, which must be valid and not negative."""
        records = self._read(index)

        def get(field: str) -> np.ndarray:
            return np.array(records[field], order="C")

        descriptions = self._layout.columns
        columns = {name: decode_column(descriptions[source], get, get) for name, source in self._sources.items()}
        return SampleBatch.trusted(columns)

    def _read(self, index: np.ndarray) -> np.ndarray:
        """Return the records with these numbers, from memory or from the files."""
        if self._in_memory:
            if self._records is None:
                self._records = np.empty(len(self), self._layout.record)
                for file, start in zip(self._files, self._starts):
                    file.read_run(0, self._records[start : start + file.num_rows].view(np.uint8).data)
            return self._records.take(index)
        if len(self._files) == 1:
            return self._files[0].read(index)

        records = np.empty(len(index), self._layout.record)
        file_numbers = np.searchsorted(self._starts, index, side="right") - 1
        for number in np.unique(file_numbers):
            in_file = file_numbers == number
            records[in_file] = self._files[number].read(index[in_file] - self._starts[number])
        return records

    def minibatches(
        self,
        size: int,
        *,
        num_epochs: int | None = 1,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> OfflineMinibatches:
        """Return an iterator over minibatches of `size` rows, with each row exactly once in each pass.

        The shuffle is global: a pass is one uniform permutation of all rows of all files, a function of `seed` and the
        number of the pass. It needs 4 bytes of memory for each row (8 beyond 2^32 rows). On a disk that is slow at
        random reads and not in the system's cache, `shuffle=False` is faster.

        Args:
            size: Number of rows in a minibatch.
            num_epochs: Number of passes. None for an endless iterator.
            seed: Seed of the permutations.
            shuffle: Permute the rows in each pass.
            drop_last: Leave out the last minibatch of a pass if it is smaller than `size`.

        Raises:
            ValueError: `size` or `num_epochs` is below 1.
        """
        return OfflineMinibatches(
            self,
            size=check_whole("size", size, 1),
            num_epochs=check_whole("num_epochs", num_epochs, 1, optional=True),
            seed=check_whole("seed", seed, 0),
            shuffle=shuffle,
            drop_last=drop_last,
        )


class OfflineMinibatches:
    """Iterator over minibatches that can be saved and resumed exactly. `OfflineDataset.minibatches` makes it.

    Attributes:
        epoch: Number of the pass.
        position: Number of rows of the pass that have been returned.
    """

    def __init__(
        self,
        dataset: OfflineDataset,
        *,
        size: int,
        num_epochs: int | None,
        seed: int,
        shuffle: bool,
        drop_last: bool,
    ) -> None:
        self._dataset = dataset
        self._size = size
        self._num_epochs = num_epochs
        self._seed = seed
        self._shuffle = shuffle
        self._settings = {
            "num_rows": len(dataset),
            "size": size,
            "num_epochs": num_epochs,
            "seed": seed,
            "shuffle": shuffle,
            "drop_last": drop_last,
        }
        """Settings that a state must share to be resumed."""
        num_dropped = len(dataset) % size if drop_last else 0
        self._rows_used = len(dataset) - num_dropped
        self._order: np.ndarray | None = None
        """Permutation of the present pass; None if it has not been drawn yet."""
        self.epoch = 0
        self.position = 0

    def __iter__(self) -> Iterator[SampleBatch]:
        return self

    def __next__(self) -> SampleBatch:
        if self.position >= self._rows_used:
            self.epoch += 1
            self.position = 0
            self._order = None
        if not self._rows_used or (self._num_epochs is not None and self.epoch >= self._num_epochs):
            raise StopIteration

        stop = min(self.position + self._size, self._rows_used)
        if self._shuffle:
            if self._order is None:
                self._order = self._permutation()
            index = self._order[self.position : stop].astype(np.int64)
        else:
            index = np.arange(self.position, stop)
        batch = self._dataset.take_rows(index)
        self.position = stop
        return batch

    def _permutation(self) -> np.ndarray:
        count = len(self._dataset)
        order = np.arange(count, dtype=np.uint32 if count <= 2**32 else np.int64)
        np.random.default_rng((self._seed, self.epoch)).shuffle(order)
        return order

    def get_state(self) -> dict[str, Any]:
        """Return the position of the iterator and its settings, as plain numbers."""
        return {"epoch": self.epoch, "position": self.position, **self._settings}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of a state: the same minibatches follow.

        Raises:
            KeyError: the state lacks a setting.
            ValueError: the state has other settings, or another number of rows.
        """
        for name, setting in self._settings.items():
            if name not in state:
                raise KeyError(f"this is no state of minibatches; it lacks {name!r}")
            if state[name] != setting:
                raise ValueError(f"the state was taken with {name}={state[name]!r}; here it is {setting!r}")
        epoch = int(state["epoch"])
        position = int(state["position"])
        if epoch != self.epoch:
            self._order = None
        self.epoch = epoch
        self.position = position
