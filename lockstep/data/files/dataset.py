"""Data sets larger than memory: rows on disk, read where they are needed, in shuffled minibatches.

A file of rows is an ordinary `.npy` of records (`np.load(path, mmap_mode="r")` opens it), one record for each row, with
all its columns side by side. A note in JSON behind the last record says what records cannot: nesting, tensor or array.
Behind the note stand its length (8 bytes, little-endian) and a mark of 8 bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
_ROWS_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class RowFormat:
    """The record that holds one row, and how its fields make up the columns."""

    record: np.dtype
    columns: dict[str, Any]
    """columns as `encode_column` describes them; a key is the name of a field"""

    @property
    def fields(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """The stored type and row shape of each field."""
        return {name: self.record[name].subdtype or (self.record[name], ()) for name in self.record.names or ()}


# ---- writing -------------------------------------------------------------------------------------------------


def write_rows(path: str | Path, batches: SampleBatch | Iterable[SampleBatch]) -> Path:
    """Write all rows of one or many batches to one file for `OfflineDataset`; return its path (`.npy`).

    Batches are taken one after another, so that a generator (`parquet_batches`) of any length fits in memory. The
    first one with rows says which columns there are, of which type and shape.

    Raises `ValueError` naming batch and column where a later one differs, where a batch has sequences, or where
    there is no row; `TypeError` for columns of objects (`infos`); `OSError` naming the file, of which nothing
    half-written is left.
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
        file.seek(0)
        file.write(_header(layout.record, num_rows))
    return path


def _check_batch(batch: object, number: int) -> None:
    if not isinstance(batch, SampleBatch) or "seq_lens" in batch or batch.time_major or batch.zero_padded:
        raise (ValueError if isinstance(batch, SampleBatch) else TypeError)(
            f"batch {number} is a {type(batch).__name__} that is no SampleBatch of single rows; unpad() sequences and "
            "leave out 'seq_lens' and the states"
        )


def _describe_columns(columns: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return columns as JSON, and the array of each field; columns built alike give the same names."""
    arrays: dict[str, np.ndarray] = {}

    def put(array: np.ndarray, path: str) -> str:
        plain = bool(path) and path.isascii() and path.isprintable() and path not in arrays
        name = path if plain else f"column {len(arrays)}"
        arrays[name] = array
        return name

    return {name: encode_column(column, put, _refuse_objects, name) for name, column in columns.items()}, arrays


def _refuse_objects(rows: np.ndarray, path: str) -> None:
    raise TypeError(f"column {path!r} holds objects, which rows of fixed size cannot; keep the batch with to_parquet()")


def _fitting_arrays(batch: Mapping[str, Any], layout: RowFormat, number: int) -> dict[str, np.ndarray]:
    """Return the array of each field; `ValueError` naming a column that is not as in the first batch."""
    missing = set(batch) ^ set(layout.columns)
    columns, arrays = _describe_columns({name: batch[name] for name in layout.columns if name in batch})
    odd = missing or {name for name, column in columns.items() if _words(column) != _words(layout.columns[name])}
    odd = odd or {
        field
        for field, (dtype, shape) in layout.fields.items()
        if arrays[field].shape[1:] != shape or arrays[field].dtype.itemsize > dtype.itemsize
    }
    if odd:
        shown = {name: f"{array.dtype}{list(array.shape[1:])}" for name, array in arrays.items()}
        raise ValueError(
            f"column {min(odd)!r} of batch {number} differs from the first batch, or one of them lacks it: {shown}; "
            f"the first batch has {layout.fields}"
        )
    return arrays


def _words(item: Mapping[str, Any]) -> str:
    """Return the nesting and types of a described column; the width of text is left out."""
    if item["kind"] == "dict":
        return "{" + ", ".join(f"{key!r}: {_words(part)}" for key, part in item["items"]) + "}"
    if item["kind"] == "tuple":
        return "(" + ", ".join(map(_words, item["items"])) + ")"
    dtype = item["dtype"]
    return f"{item['kind']} {dtype[:2] if dtype[1] in 'US' else dtype}"


def _packed(arrays: Mapping[str, np.ndarray], record: np.dtype, start: int, stop: int) -> memoryview:
    """Return rows `start:stop` as the bytes of records."""
    records = np.zeros(stop - start, record)
    for name, array in arrays.items():
        records[name] = array[start:stop]
    return records.view(np.uint8).data


def _header(record: np.dtype, num_rows: int) -> bytes:
    """Return the head of the `.npy` file, of the same length for any number of rows."""
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
        self.path = path
        with naming_damage(path, "file of rows (write_rows makes them)"):
            self.layout, self.num_rows, self._offset = _read_format(path)
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, index: np.ndarray) -> np.ndarray:
        """Return records by number, in this order; consecutive ones are read at once."""
        size = self.layout.record.itemsize
        breaks = np.flatnonzero(np.diff(index) != 1) + 1
        if len(breaks) > len(index) // 2:
            offsets = (index.astype(np.int64) * size + self._offset).tolist()
            content = b"".join([os.pread(self._descriptor, size, offset) for offset in offsets])
            self._check_read(len(content), len(index) * size)
            return np.frombuffer(content, self.layout.record)
        into = np.empty(len(index) * size, np.uint8)
        for start, stop in pairwise([0, *breaks.tolist(), len(index)]):
            if stop > start:
                self.read_run(int(index[start]), into.data[start * size : stop * size])
        return np.frombuffer(into, self.layout.record)

    def read_run(self, first: int, into: memoryview) -> None:
        """Read consecutive records from number `first` on; the system gives at most 2 GiB at a time."""
        offset = first * self.layout.record.itemsize + self._offset
        done, count = 0, 1
        while count and done < len(into):
            count = os.preadv(self._descriptor, [into[done:]], offset + done)
            done += count
        self._check_read(done, len(into))

    def _check_read(self, num_bytes: int, wanted: int) -> None:
        if num_bytes != wanted:
            raise ValueError(f"{self.path} has become shorter since it was opened")


def _read_format(path: Path) -> tuple[RowFormat, int, int]:
    """Return format, number of rows, and where the first record begins."""
    with path.open("rb") as file:
        if npy.read_magic(file) != (2, 0):
            raise ValueError("it is no .npy file of version 2.0")
        shape, fortran_order, record = npy.read_array_header_2_0(file, max_header_size=_LONGEST_HEADER)
        offset, size = file.tell(), path.stat().st_size
        if len(shape) != 1 or fortran_order or record.names is None or record.hasobject:
            raise ValueError(f"it holds an array {list(shape)} of {record}, not records")
        end = offset + shape[0] * record.itemsize
        check_claim(f"the order of its {shape[0]:,} rows", shape[0] * 8)  # a record may have no bytes
        if not end + 16 <= size <= end + _LONGEST_NOTE:
            raise ValueError(f"it has {size} bytes, {shape[0]} rows need little more than {end}")
        file.seek(end)
        tail = file.read(size - end)
    note, length = tail[:-16], int.from_bytes(tail[-16:-8], "little")
    if tail[-8:] != _MARK or length != len(note):
        raise ValueError("behind its records there is no note of the columns")
    layout = RowFormat(record, json.loads(note)["columns"])
    named = [key for column in layout.columns.values() for key in array_keys(column)]
    if sorted(named) != sorted(record.names):
        raise ValueError(f"its note names the fields {sorted(named)}, the records have {sorted(record.names)}")
    for dtype, _ in layout.fields.values():
        plain_dtype(dtype.str)
    no_rows = np.empty(0, record)
    for column in layout.columns.values():
        decode_column(column, no_rows.__getitem__, no_rows.__getitem__)  # else reading rows meets the damage
    return layout, shape[0], offset


def parquet_batches(
    paths: str | Path | Iterable[str | Path], size: int, columns: Collection[str] | None = None
) -> Iterator[SampleBatch]:
    """Iterate over the rows of Parquet files in order, in batches of up to `size` rows of one row group.

    One row group is held in memory at a time (`to_parquet(row_group_size=...)`). `columns` (all by default) names
    those to read.

    Raises:
        ValueError: a file is damaged, foreign or holds sequences (it is named), or `size < 1`.
        KeyError: a file lacks a column.
    """
    check_whole("size", size, 1)
    for path in map(Path, [paths] if isinstance(paths, str | Path) else paths):
        with naming_damage(path, "Parquet file of a SampleBatch"):
            for part in parquet_parts(path, size, columns):
                yield SampleBatch(part)


# ---- data sets -----------------------------------------------------------------------------------------------


class OfflineDataset:
    """The rows of one or several files of `write_rows`.

    A data set of up to `max_memory_bytes` is read into memory as a whole when it is first used. Of a larger one
    nothing is held: each row is read from the disk where it is needed (all its columns in one read).

    `len(dataset)` is the number of rows; `dataset[a:b]` and `dataset[indices]` are `SampleBatch`es of those rows, in
    memory of their own. Files follow one another in the given order.

    Args:
        paths: one file or several, all with the same columns.
        columns: the columns to give (default: all); as a dict `{name here: name in the files}`.
        max_memory_bytes: size up to which the rows are held in memory; 0: never.

    Raises `FileNotFoundError` or `ValueError` naming the file that is missing, damaged, foreign, or has other columns
    than the first; `KeyError` naming a column that there is not.
    """

    def __init__(
        self,
        paths: str | Path | Iterable[str | Path],
        *,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        max_memory_bytes: int = 256 << 20,
    ) -> None:
        check_whole("max_memory_bytes", max_memory_bytes, 0)
        self._files = [RowFile(Path(path)) for path in ([paths] if isinstance(paths, str | Path) else paths)]
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
        missing = [name for name in self._sources.values() if name not in present]
        if missing:
            raise KeyError(f"{self._files[0].path} has no column {missing[0]!r}; columns are {sorted(present)}")
        self.columns: tuple[str, ...] = tuple(self._sources)
        self._starts = np.cumsum([0, *(file.num_rows for file in self._files)])
        self._in_memory = self.size_bytes() <= max_memory_bytes
        self._records: np.ndarray | None = None

    def __len__(self) -> int:
        return int(self._starts[-1])

    def size_bytes(self) -> int:
        """Return the bytes of all rows, all columns of the files."""
        return len(self) * int(self._layout.record.itemsize)

    @property
    def schema(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """The type and row shape of each leaf in the files, by path (`"obs/camera"`)."""
        return self._layout.fields

    @property
    def paths(self) -> list[Path]:
        """The files, in order."""
        return [file.path for file in self._files]

    def digest(self) -> str:
        """Return the SHA-256 of all files and of which columns are taken; see `digest_of_file` for how it is kept."""
        files = [digest_of_file(path) for path in self.paths]
        return hashlib.sha256(json.dumps([self._sources, files]).encode()).hexdigest()

    def __repr__(self) -> str:
        size = f"{len(self)} rows of {self._layout.record.itemsize} bytes"
        return f"OfflineDataset({size} in {len(self._files)} files, columns {list(self.columns)})"

    def __getitem__(self, key: slice | Sequence[int] | np.ndarray) -> SampleBatch:
        """Return rows as a batch: a slice, or integers (negative ones count from the end) in any order."""
        if isinstance(key, slice):
            return self.take_rows(np.arange(*key.indices(len(self))))
        return self.take_rows(row_numbers(key, len(self)))

    def take_rows(self, index: np.ndarray) -> SampleBatch:
        """Return rows by number (none negative), which are not checked."""
        records = self._read(index)

        def get(field: str) -> np.ndarray:
            return np.array(records[field], order="C")

        columns = self._layout.columns
        return SampleBatch.trusted(
            {name: decode_column(columns[source], get, get) for name, source in self._sources.items()}
        )

    def _read(self, index: np.ndarray) -> np.ndarray:
        if self._in_memory:
            if self._records is None:
                self._records = np.empty(len(self), self._layout.record)
                for file, start in zip(self._files, self._starts):
                    file.read_run(0, self._records[start : start + file.num_rows].view(np.uint8).data)
            return self._records.take(index)
        if len(self._files) == 1:
            return self._files[0].read(index)
        records = np.empty(len(index), self._layout.record)
        owner = np.searchsorted(self._starts, index, side="right") - 1
        for number in np.unique(owner):
            mine = owner == number
            records[mine] = self._files[number].read(index[mine] - self._starts[number])
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
        """Return minibatches of `size` rows, each row exactly once in each of `num_epochs` passes (None: without end).

        The shuffle is global: each pass is one uniform permutation of all rows of all files, a function of `seed`
        and the number of the pass. It takes 4 bytes of memory for each row (8 beyond 2^32 rows). On a disk that is
        slow at random reads and not in the system's cache, `shuffle=False` is faster.

        The last minibatch of a pass is smaller where `size` does not divide the rows, or left out with `drop_last`.
        `ValueError` for `size` or `num_epochs` below 1.
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
    """An iterator over minibatches that goes on exactly where a saved one stood. `OfflineDataset.minibatches` makes it.

    `epoch` is the number of the pass and `position` the row in its order at which the next minibatch begins.
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
        self._size, self._num_epochs, self._seed, self._shuffle = size, num_epochs, seed, shuffle
        self._settings = {"num_rows": len(dataset), "size": size, "num_epochs": num_epochs}
        self._settings |= {"seed": seed, "shuffle": shuffle, "drop_last": drop_last}
        self._rows_used = len(dataset) - (len(dataset) % size if drop_last else 0)
        self._order: np.ndarray | None = None
        self.epoch = 0
        self.position = 0

    def __iter__(self) -> Iterator[SampleBatch]:
        return self

    def __next__(self) -> SampleBatch:
        if self.position >= self._rows_used:
            self.epoch, self.position, self._order = self.epoch + 1, 0, None
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
        """Return where the iterator stands, and of what: plain numbers."""
        return {"epoch": self.epoch, "position": self.position, **self._settings}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken: the same minibatches follow.

        `ValueError` where it was taken with other settings or of another number of rows, `KeyError` where it is no
        such state.
        """
        for name, mine in self._settings.items():
            if name not in state:
                raise KeyError(f"this is no state of minibatches; it lacks {name!r}")
            if state[name] != mine:
                raise ValueError(f"the state was taken with {name}={state[name]!r}; here it is {mine!r}")
        epoch, position = int(state["epoch"]), int(state["position"])
        if epoch != self.epoch:
            self._order = None
        self.epoch, self.position = epoch, position
