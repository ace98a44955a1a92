"""Data sets larger than memory: rows on disk, read where they are needed, in shuffled minibatches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.data.row_files import RowFile
from lockstep.data.sample_batch import SampleBatch


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
        given = [paths] if isinstance(paths, str | Path) else list(paths)
        if not given:
            raise ValueError("there is no file; give one path or several")
        if max_memory_bytes < 0:
            raise ValueError(f"max_memory_bytes={max_memory_bytes}; it cannot be negative")
        self._files = [RowFile(Path(path)) for path in given]
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
        """Bytes of all rows, all columns of the files."""
        return len(self) * int(self._layout.record.itemsize)

    @property
    def schema(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """Type and row shape of each leaf in the files, by path (`"obs/camera"`)."""
        return self._layout.fields

    @property
    def paths(self) -> list[Path]:
        """The files, in order."""
        return [file.path for file in self._files]

    def __repr__(self) -> str:
        size = f"{len(self)} rows of {self._layout.record.itemsize} bytes"
        return f"OfflineDataset({size} in {len(self._files)} files, columns {list(self.columns)})"

    def __getitem__(self, key: slice | Sequence[int] | np.ndarray) -> SampleBatch:
        """Rows as a batch: a slice, or integers (negative ones count from the end) in any order."""
        if isinstance(key, slice):
            return self._rows(np.arange(*key.indices(len(self))))
        index = np.asarray(key) if len(key) else np.empty(0, np.int64)
        if index.ndim != 1 or index.dtype.kind not in "iu":
            raise TypeError(f"rows are picked by a slice or a list of integers, not by {key!r}")
        outside = (index >= len(self)) | (index < -len(self))
        if outside.any():
            raise IndexError(f"row {index[outside][0]} is outside a data set of {len(self)} rows")
        return self._rows(np.where(index < 0, index + len(self), index))

    def _rows(self, index: np.ndarray) -> SampleBatch:
        """Rows by number, not checked."""
        columns = self._layout.unpacked(self._read(index), self._sources.values())
        return SampleBatch._trusted({name: columns[source] for name, source in self._sources.items()})

    def _read(self, index: np.ndarray) -> np.ndarray:
        if self._in_memory:
            if self._records is None:
                self._records = np.empty(len(self), self._layout.record)
                for file, start in zip(self._files, self._starts):
                    file.read_all(self._records[start : start + file.num_rows])
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
        """Minibatches of `size` rows, each row exactly once in each of `num_epochs` passes (None: without end).

        The shuffle is global: each pass is one uniform permutation of all rows of all files, a function of `seed`
        and the number of the pass. It takes 4 bytes of memory for each row (8 beyond 2^32 rows). On a disk that is
        slow at random reads and not in the system's cache, `shuffle=False` is faster.

        The last minibatch of a pass is smaller where `size` does not divide the rows, or left out with `drop_last`.
        `ValueError` for `size` or `num_epochs` below 1.
        """
        return OfflineMinibatches(self, size, num_epochs, seed, shuffle, drop_last)


class OfflineMinibatches:
    """An iterator over minibatches that goes on exactly where a saved one stood. `OfflineDataset.minibatches` makes it.

    `epoch` is the number of the pass and `position` the row in its order at which the next minibatch begins.
    """

    def __init__(
        self, dataset: OfflineDataset, size: int, num_epochs: int | None, seed: int, shuffle: bool, drop_last: bool
    ) -> None:
        if size < 1:
            raise ValueError(f"size={size}; a minibatch has at least 1 row")
        if num_epochs is not None and num_epochs < 1:
            raise ValueError(f"num_epochs={num_epochs}; it must be at least 1, or None for no end")
        if seed < 0:
            raise ValueError(f"seed={seed}; it cannot be negative")
        self._dataset = dataset
        self._settings = {
            "num_rows": len(dataset),
            "size": int(size),
            "num_epochs": None if num_epochs is None else int(num_epochs),
            "seed": int(seed),
            "shuffle": bool(shuffle),
            "drop_last": bool(drop_last),
        }
        self._size, self._num_epochs, self._seed, self._shuffle = size, num_epochs, seed, shuffle
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
        batch = self._dataset._rows(index)
        self.position = stop
        return batch

    def _permutation(self) -> np.ndarray:
        count = len(self._dataset)
        order = np.arange(count, dtype=np.uint32 if count <= 2**32 else np.int64)
        np.random.default_rng((self._seed, self.epoch)).shuffle(order)
        return order

    def get_state(self) -> dict[str, Any]:
        """Where the iterator stands, and of what: plain numbers."""
        return {"epoch": self.epoch, "position": self.position, **self._settings}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state` was taken: the same minibatches follow.

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
