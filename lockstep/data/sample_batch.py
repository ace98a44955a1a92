"""Batches: `SampleBatch`, columns with the same number of rows, and `MultiAgentBatch`, one of them for each module."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise, repeat
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from lockstep.data import codec, compressed, parquet, tensordicts
from lockstep.data.columns import DEFAULT_MODULE_ID, Columns, input_sources, is_state_column
from lockstep.data.indices import (
    Pieces,
    changes_in,
    check_seq_lens,
    episode_cuts,
    index_second,
    number_steps,
    pad_leaf,
    row_numbers,
    rows_of_sequences,
    sequence_at,
    sequence_starts,
    time_major_to_padded,
    unpad_leaf,
)
from lockstep.data.trees import (
    Leaf,
    Tree,
    as_column,
    column_rows,
    common_names,
    concat_trees,
    copy_leaf,
    describe_leaf,
    index_leaf,
    is_numeric,
    leaf_bytes,
    leaves,
    map_tree,
    named_leaves,
    rows_of,
    to_numpy_leaf,
    to_torch_leaf,
)
from lockstep.options.checks import check_choice, check_whole

Slice = slice  # the method of this name hides the type in the class
Generator = np.random.Generator | int | None
Device = str | torch.device
OnMissing = Literal["raise", "drop"]

_SEQ_LENS = Columns.SEQ_LENS


class SampleBatch(dict[str, Any], Columns):
    """Columns of equal length, numpy or torch, possibly nested (dicts and tuples of arrays).

    `SampleBatch({"obs": obs, "rewards": rewards})` or `SampleBatch(obs=obs, rewards=rewards)`. Lists and numbers
    become arrays; `infos` may hold objects.

    With a column `seq_lens` (int [S]) the rows are S sequences: flat (one after another), padded
    (`zero_padded`, each filled to `max_seq_len` rows) or `time_major` (columns [L, S, ...]). State columns
    (`state_in`, `state_out`) then have one row for each sequence.

    `len(batch)` is the number of real rows: the sum of `seq_lens` if there is one, else the rows.

    Raises:
        TypeError: a name is no string, or a value is no column.
        ValueError: columns have different numbers of rows.
    """

    __slots__ = ("_max_seq_len", "is_training", "num_grad_updates", "time_major", "zero_padded")

    def __init__(
        self,
        mapping: Mapping[str, Any] | Iterable[tuple[str, Any]] | None = None,
        *,
        _time_major: bool = False,
        _zero_padded: bool = False,
        _max_seq_len: int | None = None,
        _is_training: bool = False,
        _num_grad_updates: float | None = None,
        **columns: Any,
    ) -> None:
        super().__init__()
        self.time_major = _time_major
        self.zero_padded = _zero_padded
        self._max_seq_len = _max_seq_len
        self.is_training = _is_training
        self.num_grad_updates = _num_grad_updates
        made = {name: _named_column(name, value) for name, value in {**dict(mapping or {}), **columns}.items()}
        self._check_rows(made)
        super().update(made)

    @classmethod
    def trusted(cls, columns: Mapping[str, Any], like: SampleBatch | None = None) -> SampleBatch:
        """Return a batch of columns known to fit together, without checks; layout and marks are those of `like`."""
        batch = cls.__new__(cls)
        dict.update(batch, columns)
        if like is None:
            batch.time_major = batch.zero_padded = batch.is_training = False
            batch._max_seq_len = batch.num_grad_updates = None
        else:
            batch.time_major, batch.zero_padded, batch.is_training = like.time_major, like.zero_padded, like.is_training
            batch._max_seq_len, batch.num_grad_updates = like._max_seq_len, like.num_grad_updates
        return batch

    def marks(self) -> dict[str, Any]:
        """Return what is known of the batch besides its columns: its layout, `is_training`, `num_grad_updates`."""
        return {
            "time_major": self.time_major,
            "zero_padded": self.zero_padded,
            "max_seq_len": self._max_seq_len,
            "is_training": self.is_training,
            "num_grad_updates": self.num_grad_updates,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._marked, (dict(self), self.marks())

    # ---- sizes -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        seq_lens = dict.get(self, _SEQ_LENS)
        if seq_lens is not None:
            return int(seq_lens.sum())
        for name, column in self.items():
            rows = column_rows(name, column, self.time_major and not is_state_column(name))
            if rows is not None:
                return rows
        return 0

    @property
    def count(self) -> int:
        """Number of real rows, counted now."""
        return len(self)

    def env_steps(self) -> int:
        """Return the environment steps: one for each row."""
        return len(self)

    agent_steps = env_steps

    @property
    def max_seq_len(self) -> int | None:
        """The longest sequence allowed (the padded length where the batch is padded); None without sequences."""
        if self._max_seq_len is not None:
            return self._max_seq_len
        seq_lens = self._seq_lens()
        return None if seq_lens is None or not len(seq_lens) else int(seq_lens.max())

    @max_seq_len.setter
    def max_seq_len(self, value: int | None) -> None:
        self._max_seq_len = value

    def set_training(self, training: bool = True) -> None:
        """Say whether the batch is used for training (`is_training`)."""
        self.is_training = training

    def size_bytes(self) -> int:
        """Return the bytes of all leaves, objects included."""
        return sum(leaf_bytes(leaf) for column in self.values() for leaf in leaves(column))

    def _seq_lens(self) -> np.ndarray | None:
        """Return `seq_lens` as a numpy array."""
        seq_lens = dict.get(self, _SEQ_LENS)
        return None if seq_lens is None else to_numpy_leaf(seq_lens)

    def _num_sequences(self) -> int | None:
        seq_lens = dict.get(self, _SEQ_LENS)
        return None if seq_lens is None else int(seq_lens.shape[0])

    # ---- a dict that keeps its columns sound -------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return super().__getitem__(key)
        if isinstance(key, slice):
            return self._select_slice(key)
        index = row_numbers(key, len(self))
        if _SEQ_LENS in self:
            raise ValueError("rows of sequences cannot be picked one by one; use take_sequences, or unpad() first")
        return self.take_rows(index)

    def __missing__(self, key: str) -> Any:
        if key == Columns.DONES:
            flags = [self[name] for name in (Columns.TERMINATEDS, Columns.TRUNCATEDS) if name in self]
            if flags:
                return flags[0] | flags[1] if len(flags) == 2 else flags[0]
        raise KeyError(f"no column {key!r}; columns are {sorted(self)}")

    def get(self, key: str, default: Any = None) -> Any:
        """Return the column, or `default`; `dones` reads as in `batch["dones"]`."""
        try:
            return self[key]
        except KeyError:
            return default

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def update(self, *mappings: Any, **columns: Any) -> None:
        """Set several columns, with the checks of the constructor; on an error nothing is changed."""
        made = {name: _named_column(name, value) for name, value in {**dict(*mappings), **columns}.items()}
        self._check_rows({**self, **made})
        super().update(made)

    def setdefault(self, name: str, default: Any = None) -> Any:
        """Return the column, which is set to `default` first where it is missing."""
        if name not in self:
            self[name] = default
        return self[name]

    def __ior__(self, other: Any) -> SampleBatch:  # type: ignore[override, misc]
        self.update(other)
        return self

    def _check_rows(self, columns: Mapping[str, Tree]) -> None:
        """Raise `ValueError` with two column names and their lengths unless the columns fit together."""
        seq_lens = columns.get(_SEQ_LENS)
        num_sequences = None if seq_lens is None else int(seq_lens.shape[0])
        first: tuple[str, int] | None = None
        for name, column in columns.items():
            if _is_per_sequence(name, column, num_sequences):
                continue
            rows = column_rows(name, column, self.time_major)
            if rows is not None and first is not None and rows != first[1]:
                raise ValueError(f"columns {first[0]!r} and {name!r} have {first[1]} and {rows} rows")
            first = (name, rows) if first is None and rows is not None else first
        if seq_lens is not None and first is not None:
            lengths, (name, rows) = to_numpy_leaf(seq_lens), first
            check_seq_lens(lengths, name, rows, self.time_major, self.zero_padded, self._max_seq_len)

    # ---- reading -----------------------------------------------------------------------------------------

    def columns(self, keys: Sequence[str]) -> list[Any]:
        """Return the columns in this order; `KeyError` for one that is missing."""
        return [self[key] for key in keys]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Iterate over the real rows as `{column: row}`; states are left out, `seq_lens` is 1."""
        flat = self.flat()
        sequences = self._num_sequences()
        columns = {name: column for name, column in flat.items() if not _is_per_sequence(name, column, sequences)}
        alone = {} if sequences is None else {_SEQ_LENS: 1}
        for row in range(len(flat)):
            yield {name: rows_of(column, row) for name, column in columns.items()} | alone

    def get_single_step_input_dict(
        self, view_requirements: Mapping[str, str | None] | None = None, index: int | Literal["last"] = "last"
    ) -> SampleBatch:
        """Return one row as model input, [1, ...] for each column, with `seq_lens` [1].

        `index="last"` is the input for the step *after* the last row: `obs` is the last `new_obs`,
        `prev_actions` and `prev_rewards` are the last action and reward, `state_in` the last `state_out`.
        An integer takes that row as it is. `view_requirements` maps a wanted column to the column it is read from
        (None: the same).
        """
        flat = self.flat()
        row = int(row_numbers([-1 if index == "last" else index], len(flat))[0])
        seq_lens = self._seq_lens()
        made: dict[str, Any] = {}
        for name, source in input_sources(flat, view_requirements, after_last=index == "last").items():
            at, column = row, flat[source]
            if seq_lens is not None and _is_per_sequence(source, column, len(seq_lens)):
                at = int(np.searchsorted(sequence_starts(seq_lens)[1:], row, side="right"))
            made[name] = map_tree(partial(index_leaf, index=slice(at, at + 1)), column)
        return SampleBatch({**made, _SEQ_LENS: np.ones(1, dtype=np.int32)})

    def is_terminated_or_truncated(self) -> bool:
        """Return whether the last row ends an episode."""
        return bool(len(self)) and bool(self.flat()[Columns.DONES][-1])

    def is_single_trajectory(self) -> bool:
        """Return whether no row but the last ends an episode, and all have one `eps_id` (and one `agent_id`)."""
        flat = self.flat()
        if flat.get(Columns.DONES) is not None and bool(flat[Columns.DONES][:-1].any()):
            return False
        names = [name for name in (Columns.EPS_ID, Columns.AGENT_ID) if name in flat and Columns.EPS_ID in flat]
        return not any(len(changes_in(to_numpy_leaf(flat[name]))) for name in names)

    def summary(self) -> str:
        """Return one line for each column: container, shape, dtype, min, max, mean."""
        marks = [f"{len(self)} rows"]
        if _SEQ_LENS in self:
            marks.append(f"{len(self[_SEQ_LENS])} sequences")
        marks += ["zero padded"] * self.zero_padded + ["time-major"] * self.time_major
        lines = [f"SampleBatch({', '.join(marks)})"]
        for name, column in self.items():
            lines += [f"    {path!r}: {describe_leaf(leaf)}" for path, leaf in named_leaves(name, column)]
        return "\n".join(lines)

    __repr__ = summary

    # ---- parts -------------------------------------------------------------------------------------------

    def take_rows(self, index: Slice | np.ndarray) -> SampleBatch:
        """Return rows of a batch without sequences: views for a slice, one gather for int64 rows (none negative)."""
        if self.time_major:
            raise ValueError("a time-major batch has no rows one by one; use take_sequences, or unpad() first")
        columns: dict[str, Any] = {}
        for name, column in self.items():
            if type(column) is np.ndarray:
                columns[name] = column[index] if isinstance(index, slice) else column.take(index, axis=0)
            else:
                columns[name] = map_tree(lambda leaf: index_leaf(leaf, index), column)
        return self.trusted(columns, self)

    def _select_slice(self, key: Slice) -> SampleBatch:
        seq_lens = self._seq_lens()
        if seq_lens is None:
            return self.take_rows(key)
        starts = sequence_starts(seq_lens)
        start, stop, step = key.indices(int(starts[-1]))
        if step == 1:
            return self.take_sequences(slice(sequence_at(starts, start), sequence_at(starts, stop)))
        chosen = np.zeros(int(starts[-1]), dtype=bool)
        chosen[key] = True
        real = np.flatnonzero(seq_lens > 0)
        sequences = real[chosen[starts[real]]]
        return self.take_sequences(sequences if step > 0 else sequences[::-1])

    def slice(self, start: int, end: int, state_start: int | None = None, state_end: int | None = None) -> SampleBatch:
        """Return rows `start` to `end` as views.

        With `seq_lens` the slice snaps to whole sequences: from the one that holds row `start` up to, but without,
        the one that holds row `end` (neighbouring slices therefore never share or lose a row). With `state_start`
        and `state_end` the sequences are named instead; `ValueError` unless their rows are just `start` to `end`.
        """
        if state_start is None and state_end is None:
            return self._select_slice(slice(start, end))
        seq_lens = self._required_seq_lens()
        first, last, _ = slice(state_start, state_end).indices(len(seq_lens))
        starts = sequence_starts(seq_lens)
        rows = (int(starts[first]), int(starts[max(first, last)]))
        if slice(start, end).indices(int(starts[-1]))[:2] != rows:
            raise ValueError(f"sequences {first}:{last} are rows {rows[0]}:{rows[1]}, not {start}:{end}")
        return self.take_sequences(slice(first, last))

    def _required_seq_lens(self) -> np.ndarray:
        seq_lens = self._seq_lens()
        if seq_lens is None:
            raise ValueError(f"this batch has no column 'seq_lens'; columns are {sorted(self)}")
        return seq_lens

    def take_sequences(self, sequences: Slice | np.ndarray) -> SampleBatch:
        """Return whole sequences by number; views for a slice of flat or padded rows, one gather for an int array."""
        seq_lens = self._required_seq_lens()
        if isinstance(sequences, slice) and sequences.step not in (None, 1):
            sequences = np.arange(len(seq_lens))[sequences]
        if not isinstance(sequences, slice):
            sequences = row_numbers(sequences, len(seq_lens))
        rows = None if self.time_major else self._rows_of_sequences(seq_lens, sequences)
        columns: dict[str, Any] = {}
        for name, column in self.items():
            if _is_per_sequence(name, column, len(seq_lens)):
                columns[name] = map_tree(lambda leaf: index_leaf(leaf, sequences), column)
            elif rows is None:
                columns[name] = map_tree(lambda leaf: index_second(leaf, sequences), column)
            else:
                columns[name] = map_tree(lambda leaf: index_leaf(leaf, rows), column)
        return self.trusted(columns, self)

    def _rows_of_sequences(self, seq_lens: np.ndarray, sequences: Slice | np.ndarray) -> Slice | np.ndarray:
        if self.zero_padded:
            seq_lens = np.full(len(seq_lens), self.max_seq_len or 0, dtype=np.int64)
        starts = sequence_starts(seq_lens)
        if isinstance(sequences, slice):
            first, last, _ = sequences.indices(len(seq_lens))
            return slice(int(starts[first]), int(starts[max(first, last)]))
        return rows_of_sequences(starts[:-1][sequences], seq_lens[sequences])

    def split_by_episode(self, key: str | None = None) -> Sequence[SampleBatch]:
        """Return one view for each episode: cut where `key` changes, else after each ended row.

        The default key is `eps_id`, with `agent_id` where there is one: agents of one module share their `eps_id`.

        An open last piece is kept. The views are made when they are read (`list(...)` makes all of them).
        Neither an episode column nor flags: `KeyError`.
        """
        flat = self.flat()
        if not len(flat):
            return []
        cuts = episode_cuts(flat, key)
        bounds = np.concatenate([[0], cuts, [len(flat)]])
        snapshot = flat.trusted(flat, flat)
        seq_lens = self._seq_lens()
        if seq_lens is None:
            return Pieces(snapshot.take_rows, bounds)
        starts = sequence_starts(seq_lens)
        inside = np.setdiff1d(cuts, starts)
        if len(inside):
            raise ValueError(f"a sequence crosses the episode boundary at row {int(inside[0])}")
        numbers = np.searchsorted(starts, bounds)
        numbers[-1] = len(seq_lens)
        return Pieces(snapshot.take_sequences, numbers)

    def timeslices(self, size: int | None = None, num_slices: int | None = None) -> list[SampleBatch]:
        """Return views of `size` rows each (the last may be shorter), or `num_slices` views of nearly equal size.

        Every row lies in exactly one slice. `ValueError` unless exactly one argument is given.
        """
        if (size is None) == (num_slices is None):
            raise ValueError(f"exactly one of size and num_slices is needed, got size={size}, num_slices={num_slices}")
        total = len(self)
        if size is not None:
            size = check_whole("size", size, 1)
            slices = [self[start : start + size] for start in range(0, total, size)]
            return [part for part in slices if len(part)]
        count = check_whole("num_slices", num_slices, 1)
        share, longer = divmod(total, count)
        bounds = [share * i + max(0, i - count + longer) for i in range(count + 1)]
        return [self[a:b] for a, b in pairwise(bounds)]

    def split(self, size: int, shuffle: bool = False, generator: Generator = None) -> Iterator[SampleBatch]:
        """Return batches of `size` rows, the last possibly shorter; in random order with `shuffle`."""
        return iter((self._permuted(generator) if shuffle else self).timeslices(size))

    # ---- new forms ---------------------------------------------------------------------------------------

    def shuffle(self, generator: Generator = None) -> SampleBatch:
        """Permute rows (with `seq_lens`: whole sequences) in place, every column alike; return self."""
        dict.update(self, self._permuted(generator))
        return self

    def _permuted(self, generator: Generator) -> SampleBatch:
        rng = np.random.default_rng(generator)
        sequences = self._num_sequences()
        if sequences is not None:
            return self.take_sequences(rng.permutation(sequences))
        return self.take_rows(rng.permutation(len(self)))

    def copy(self, shallow: bool = False) -> SampleBatch:
        """Return a copy; deep for tensors and objects too, or `shallow` with the same arrays."""
        function = (lambda leaf: leaf) if shallow else copy_leaf
        return self.trusted({name: map_tree(function, column) for name, column in self.items()}, self)

    def right_zero_pad(self, max_seq_len: int, exclude_states: bool = True) -> SampleBatch:
        """Fill each sequence with zeros on the right to `max_seq_len` rows, in place; return self.

        `exclude_states=False` spreads state columns as well: the state in the first row of its sequence, zeros
        after. `ValueError` without `seq_lens`, or where a sequence is longer than `max_seq_len`.
        """
        seq_lens = self._required_seq_lens()
        if len(seq_lens) and int(seq_lens.max()) > max_seq_len:
            raise ValueError(
                f"max_seq_len={max_seq_len} is less than the longest sequence ({int(seq_lens.max())} rows)"
            )
        self.unpad()
        for name, column in list(self.items()):
            per_sequence = _is_per_sequence(name, column, len(seq_lens))
            if name == _SEQ_LENS or (per_sequence and exclude_states):
                continue
            lengths = np.ones_like(seq_lens) if per_sequence else seq_lens
            padded = map_tree(partial(pad_leaf, seq_lens=lengths, length=max_seq_len), column)
            dict.__setitem__(self, name, padded)
        self.zero_padded = True
        self.max_seq_len = max_seq_len
        return self

    def unpad(self) -> SampleBatch:
        """Bring padded or time-major sequences to flat rows, in place; return self."""
        if not (self.zero_padded or self.time_major):
            return self
        seq_lens, sequences = self._seq_lens(), self._num_sequences()
        columns: dict[str, Any] = {}
        for name, column in self.items():
            if _is_per_sequence(name, column, sequences):
                columns[name] = column
                continue
            length = self.max_seq_len or 0
            if self.time_major:
                length = next((int(leaf.shape[0]) for leaf in leaves(column)), 0)
                column = map_tree(time_major_to_padded, column)
            if seq_lens is not None:
                lengths = np.ones_like(seq_lens) if is_state_column(name) and not self.time_major else seq_lens
                column = map_tree(partial(unpad_leaf, seq_lens=lengths, length=length), column)
            columns[name] = column
        dict.update(self, columns)
        self.zero_padded = self.time_major = False
        self.max_seq_len = None
        return self

    def flat(self) -> SampleBatch:
        """Return self, or an unpadded shallow copy where rows are padded or time-major."""
        return self.copy(shallow=True).unpad() if self.zero_padded or self.time_major else self

    def to_device(
        self, device: Device, pin_memory: bool = False, non_blocking: bool = False, *, keep_dtype: bool = False
    ) -> SampleBatch:
        """Make all columns tensors on `device`, in place; return self.

        float64 becomes float32 unless `keep_dtype`. `infos`, strings and objects stay as they are.
        """
        device = torch.device(device)

        def move(leaf: Leaf) -> Leaf:
            if not is_numeric(leaf):
                return leaf
            tensor = to_torch_leaf(leaf)
            dtype = torch.float32 if tensor.dtype == torch.float64 and not keep_dtype else tensor.dtype
            if pin_memory and tensor.device.type == "cpu" and device.type == "cuda":
                tensor = tensor.pin_memory()
            return tensor.to(device=device, dtype=dtype, non_blocking=non_blocking)

        for name, column in self.items():
            if name != Columns.INFOS:
                dict.__setitem__(self, name, map_tree(move, column))
        return self

    def to_numpy(self) -> SampleBatch:
        """Return the same columns as numpy arrays, sharing memory where tensors lie on the CPU."""
        return self.trusted({name: map_tree(to_numpy_leaf, column) for name, column in self.items()}, self)

    def to_torch(self) -> SampleBatch:
        """Return the same columns as tensors, sharing memory where it can be; strings and objects stay arrays."""
        return self.trusted({name: map_tree(to_torch_leaf, column) for name, column in self.items()}, self)

    def as_multi_agent(self, module_id: str | None = None) -> MultiAgentBatch:
        """Return the `MultiAgentBatch` with this batch under `module_id`; None: under "default_policy"."""
        return MultiAgentBatch({DEFAULT_MODULE_ID if module_id is None else module_id: self}, self.env_steps())

    def compress(self, bulk: bool = False, columns: Collection[str] = compressed.DEFAULT_COLUMNS) -> SampleBatch:
        """Compress columns in place (lz4, extra `compression`); return self.

        Each row apart, or with `bulk` all rows of a leaf together (smaller, and faster where all are needed). Rows
        can still be sliced, joined, shuffled and padded. On an error nothing is changed: `KeyError` for a missing
        column that is named, `TypeError` for a column of objects.
        """
        sequences = self._num_sequences()
        made = {}
        for name in compressed.columns_to_compress(columns, self):
            column = dict.__getitem__(self, name)
            lead = 2 if self.time_major and not _is_per_sequence(name, column, sequences) else 1
            made[name] = compressed.compress_column(name, column, bulk, lead)
        dict.update(self, made)
        return self

    def decompress_if_needed(self, columns: Collection[str] = compressed.DEFAULT_COLUMNS) -> SampleBatch:
        """Bring compressed columns back as they were (tensors on the CPU), in place; return self."""
        names = compressed.columns_to_compress(columns, self)
        made = {name: compressed.decompress_column(name, dict.__getitem__(self, name)) for name in names}
        dict.update(self, made)
        return self

    # ---- files and other libraries -----------------------------------------------------------------------

    @classmethod
    def _marked(cls, columns: Mapping[str, Any], marks: Mapping[str, Any]) -> SampleBatch:
        return cls(columns, **{f"_{name}": value for name, value in marks.items()})

    def to_npz(self, path: str | Path) -> Path:
        """Write all columns to one `.npz` file without loss; return its path.

        `infos` may hold None, bool, int, float, str, arrays and dicts, lists and tuples of them; `TypeError`
        naming the column for any other object, `OSError` naming the file where it cannot be written.
        """
        return codec.write_npz(Path(path), self, self.marks())

    @classmethod
    def from_npz(cls, path: str | Path) -> SampleBatch:
        """Read what `to_npz` wrote; `ValueError` naming the file where it is damaged or foreign."""
        with codec.naming_damage(Path(path), "SampleBatch file"):
            return cls._marked(*codec.read_npz(Path(path)))

    def to_parquet(self, path: str | Path, *, compression: str = "zstd", row_group_size: int = 65_536) -> Path:
        """Write all columns to one Parquet file without loss (extra `offline`); return its path. As `to_npz`."""
        return parquet.write_parquet(Path(path), self, self.marks(), compression, row_group_size)

    @classmethod
    def from_parquet(cls, path: str | Path, columns: Sequence[str] | None = None) -> SampleBatch:
        """Read what `to_parquet` wrote, or a plain table of numbers, bools and text; all columns or some.

        `ValueError` naming the file where it is damaged or foreign, `KeyError` for a column it lacks.
        """
        with codec.naming_damage(Path(path), "Parquet file of a SampleBatch"):
            return cls._marked(*parquet.read_parquet(Path(path), columns))

    def to_tensordict(self) -> Any:
        """Return a `TensorDict` (extra `tensordict`) that shares memory; text and objects are non-tensor data.

        Its batch size is the number of rows; with sequences it has none.
        """
        num_rows = None if _SEQ_LENS in self or self.time_major or not dict.__len__(self) else len(self)
        return tensordicts.to_tensordict(self, num_rows, self.marks())

    @classmethod
    def from_tensordict(cls, tensordict: Any) -> SampleBatch:
        """Return the batch that `to_tensordict` was given, or any `TensorDict` with up to one batch dimension."""
        return cls._marked(*tensordicts.from_tensordict(tensordict))

    # ---- joining -----------------------------------------------------------------------------------------

    def concat(self, other: SampleBatch) -> SampleBatch:
        """Return the rows of both; see `concat_samples`."""
        return concat_samples([self, other])

    @staticmethod
    def concat_samples(batches: Sequence[Any], on_missing: OnMissing = "raise") -> Any:
        """Return the rows of all batches in one; see the function `concat_samples`."""
        return concat_samples(batches, on_missing)


def _named_column(name: object, value: object) -> Tree:
    if not isinstance(name, str):
        raise TypeError(f"column names are strings, got {name!r} ({type(name).__name__})")
    return as_column(name, value)


def _is_per_sequence(name: str, column: Tree, num_sequences: int | None) -> bool:
    """Return whether a column has one row for each sequence rather than one for each step."""
    if num_sequences is None:
        return False
    return name == _SEQ_LENS or (is_state_column(name) and column_rows(name, column) == num_sequences)


# ---- joining batches -----------------------------------------------------------------------------------------

_LAYOUT = attrgetter("zero_padded", "time_major", "_max_seq_len")
_GRAD_UPDATES = attrgetter("num_grad_updates")


def concat_samples(batches: Sequence[Any], on_missing: OnMissing = "raise") -> Any:
    """Return the rows of all batches in one, with one allocation for each column.

    Empty batches are skipped; `[]` gives an empty batch. `max_seq_len` becomes the largest, `num_grad_updates` the
    mean over the rows. Where one is a `MultiAgentBatch` the result is one as well (`concat_samples_into_ma_batch`).

    Raises:
        KeyError: a batch lacks a column: names it and the position (`on_missing="drop"` keeps the common columns).
        ValueError: the batches have different layouts (padding, padded length, time-major).
    """
    batches = list(batches)
    if set(map(type, batches)) - {SampleBatch} and not all(isinstance(batch, SampleBatch) for batch in batches):
        return concat_samples_into_ma_batch(batches, on_missing)
    check_choice("on_missing", on_missing, ("raise", "drop"))
    if not batches:
        return SampleBatch()
    gathered = _gather_alike(batches)
    like = batches[0]
    if gathered is None:
        filled = [(position, batch) for position, batch in enumerate(batches) if len(batch)] or [(0, like)]
        _check_same_layout(filled)
        like = filled[0][1]
        names = common_names([(position, batch.keys()) for position, batch in filled], on_missing)
        gathered = {name: [dict.__getitem__(batch, name) for _, batch in filled] for name in names}
    seq_lens = dict.get(like, _SEQ_LENS)
    sequences = None if seq_lens is None else len(seq_lens)
    joined = {}
    for name, parts in gathered.items():
        side_by_side = like.time_major and not _is_per_sequence(name, parts[0], sequences)
        joined[name] = concat_trees(parts, name, int(side_by_side))
    result = SampleBatch.trusted(joined, like)
    if _SEQ_LENS in result or result.max_seq_len is not None:
        result.max_seq_len = max((each.max_seq_len for each in batches if each.max_seq_len is not None), default=None)
    result.num_grad_updates = _mean_grad_updates(batches)
    return result


def _gather_alike(batches: Sequence[SampleBatch]) -> dict[str, list[Any]] | None:
    """Return parts by column where all batches have rows, one layout and the same columns; else None."""
    first = batches[0]
    if not first or len(set(map(_LAYOUT, batches))) > 1 or len(set(map(dict.__len__, batches))) > 1:
        return None
    try:
        gathered = {name: list(map(dict.__getitem__, batches, repeat(name))) for name in first}
    except KeyError:
        return None
    leading = next(iter(gathered.values()))
    arrays = all(type(part) is np.ndarray for part in leading)
    return gathered if arrays and not first.time_major and all(map(len, leading)) else None


def _mean_grad_updates(batches: Sequence[SampleBatch]) -> float | None:
    """Return the mean of `num_grad_updates` over the rows of the batches that know it, None where none does."""
    if set(map(_GRAD_UPDATES, batches)) <= {None}:
        return None
    known = [(len(batch), value) for batch in batches if (value := batch.num_grad_updates) is not None]
    rows = sum(count for count, _ in known)
    return sum(count * value for count, value in known) / rows if rows else known[0][1]


def _check_same_layout(filled: Sequence[tuple[int, SampleBatch]]) -> None:
    position, first = filled[0]
    for other_position, other in filled[1:]:
        for mark in ("zero_padded", "time_major", *["max_seq_len"] * first.zero_padded):
            if getattr(first, mark) != getattr(other, mark):
                raise ValueError(
                    f"batches of different layout: {mark} is {getattr(first, mark)} at position {position} "
                    f"and {getattr(other, mark)} at position {other_position}; use unpad() or right_zero_pad() first"
                )


class MultiAgentBatch:
    """The batches of several modules by module id, collected in `env_steps` environment steps.

    `len(batch)` is the number of environment steps, `batch[module_id]` a module's rows; iteration gives module ids.

    Raises:
        TypeError: a module id is no string, or a value is no `SampleBatch`.
        ValueError: `env_steps` is negative or no whole number.
    """

    __slots__ = ("_env_steps", "policy_batches")

    def __init__(self, policy_batches: Mapping[str, SampleBatch], env_steps: int) -> None:
        for module_id, batch in policy_batches.items():
            if not isinstance(module_id, str) or not isinstance(batch, SampleBatch):
                raise TypeError(
                    f"module {module_id!r} has a {type(batch).__name__}; each module id, a string, needs a SampleBatch"
                )
        self.policy_batches: dict[str, SampleBatch] = dict(policy_batches)
        self._env_steps = check_whole("env_steps", env_steps, 0)

    def env_steps(self) -> int:
        """Return the environment steps in which the rows were collected."""
        return self._env_steps

    def agent_steps(self) -> int:
        """Return the rows of all modules together."""
        return sum(batch.agent_steps() for batch in self.policy_batches.values())

    def __len__(self) -> int:
        return self._env_steps

    @property
    def count(self) -> int:
        """Environment steps."""
        return self._env_steps

    def __getitem__(self, module_id: str) -> SampleBatch:
        try:
            return self.policy_batches[module_id]
        except KeyError:
            raise KeyError(f"no module {module_id!r}; modules are {sorted(self.policy_batches)}") from None

    def __contains__(self, module_id: object) -> bool:
        return module_id in self.policy_batches

    def __iter__(self) -> Iterator[str]:
        return iter(self.policy_batches)

    def size_bytes(self) -> int:
        """Return the bytes of all modules' leaves."""
        return sum(batch.size_bytes() for batch in self.policy_batches.values())

    def copy(self, shallow: bool = False) -> MultiAgentBatch:
        """Return a copy; deep, or `shallow` with the same arrays."""
        return MultiAgentBatch(
            {module_id: batch.copy(shallow) for module_id, batch in self.policy_batches.items()},
            self._env_steps,
        )

    def to_device(
        self, device: Device, pin_memory: bool = False, non_blocking: bool = False, *, keep_dtype: bool = False
    ) -> MultiAgentBatch:
        """Make every module's columns tensors on `device`, in place; return self."""
        for batch in self.policy_batches.values():
            batch.to_device(device, pin_memory, non_blocking, keep_dtype=keep_dtype)
        return self

    def compress(self, bulk: bool = False, columns: Collection[str] = compressed.DEFAULT_COLUMNS) -> MultiAgentBatch:
        """Compress columns of every module in place; return self. See `SampleBatch.compress`.

        A module may lack a column that another has; `KeyError` where none has it.
        """
        for batch, names in self._with_columns(columns):
            batch.compress(bulk, names)
        return self

    def decompress_if_needed(self, columns: Collection[str] = compressed.DEFAULT_COLUMNS) -> MultiAgentBatch:
        """Bring compressed columns of every module back as they were, in place; return self."""
        for batch, names in self._with_columns(columns):
            batch.decompress_if_needed(names)
        return self

    def _with_columns(self, columns: Collection[str]) -> list[tuple[SampleBatch, list[str]]]:
        """Return each module's batch with those of the columns that it has."""
        everywhere = {name for batch in self.policy_batches.values() for name in batch}
        wanted = compressed.columns_to_compress(columns, everywhere)
        return [(batch, [name for name in wanted if name in batch]) for batch in self.policy_batches.values()]

    def as_multi_agent(self, module_id: str | None = None) -> MultiAgentBatch:
        """Return self. `ValueError` for a `module_id`: the batches have theirs."""
        if module_id is not None:
            raise ValueError(
                f"module_id={module_id!r} is not allowed: this batch has the modules {list(self.policy_batches)}"
            )
        return self

    def timeslices(self, k: int) -> list[MultiAgentBatch]:
        """Return batches of `k` environment steps each (the last may have fewer).

        An environment step is one `(eps_id, t)` over all modules; episodes keep the order in which they appear.
        Every row lies in exactly one slice; modules without rows in a slice are left out of it. With `seq_lens`
        sequences stay whole, as in slices of a `SampleBatch`: each lies in the slice of its last row, and the slice
        counts the environment steps that no earlier slice has. Raises `ValueError` for `k < 1`, `KeyError` where a
        module lacks `eps_id` or `t`.
        """
        k = check_whole("k", k, 1)
        filled = {module_id: batch for module_id, batch in self.policy_batches.items() if len(batch)}
        if not filled:
            return []
        for module_id, batch in filled.items():
            for name in (Columns.EPS_ID, Columns.T):
                if name not in batch:
                    raise KeyError(f"module {module_id!r} lacks column {name!r}; timeslices needs 'eps_id' and 't'")
        flat = [batch.flat() for batch in filled.values()]
        ids, times = ([to_numpy_leaf(batch[name]) for batch in flat] for name in (Columns.EPS_ID, Columns.T))
        steps = dict(zip(filled, number_steps(ids, times)))
        num_steps = 1 + max(int(rows.max()) for rows in steps.values())
        parts: list[dict[str, SampleBatch]] = [{} for _ in range(-(-num_steps // k))]
        slice_of_step = np.full(num_steps, len(parts), dtype=np.int64)
        for module_id, batch in filled.items():
            number, lengths = steps[module_id] // k, batch.get(_SEQ_LENS)
            if lengths is None:
                np.minimum.at(slice_of_step, steps[module_id], number)
            else:
                lengths = to_numpy_leaf(lengths)
                real = np.flatnonzero(lengths)
                batch = batch.take_sequences(real) if len(real) < len(lengths) else batch
                number = number[np.cumsum(lengths[real]) - 1]
                np.minimum.at(slice_of_step, steps[module_id], np.repeat(number, lengths[real]))
            take = batch.take_rows if lengths is None else batch.take_sequences
            order = np.argsort(number, kind="stable")
            bounds = np.searchsorted(number[order], np.arange(len(parts) + 1))
            in_order = bool(np.all(np.diff(number) >= 0))
            for part, start, stop in zip(parts, bounds[:-1].tolist(), bounds[1:].tolist()):
                if stop > start:
                    part[module_id] = take(slice(start, stop) if in_order else order[start:stop])
        counts = np.bincount(slice_of_step, minlength=len(parts)).tolist()
        return [MultiAgentBatch(part, count) for part, count in zip(parts, counts) if part]

    @staticmethod
    def wrap_as_needed(policy_batches: Mapping[str, SampleBatch], env_steps: int) -> SampleBatch | MultiAgentBatch:
        """Return the plain `SampleBatch` where there is only the default module, else a `MultiAgentBatch`."""
        if list(policy_batches) == [DEFAULT_MODULE_ID]:
            return policy_batches[DEFAULT_MODULE_ID]
        return MultiAgentBatch(policy_batches, env_steps)

    @staticmethod
    def concat_samples(
        batches: Sequence[SampleBatch | MultiAgentBatch], on_missing: OnMissing = "raise"
    ) -> MultiAgentBatch:
        """Return all rows by module; environment steps add up. See `concat_samples_into_ma_batch`."""
        return concat_samples_into_ma_batch(batches, on_missing)

    def __repr__(self) -> str:
        lines = [f"MultiAgentBatch({self._env_steps} env steps, {self.agent_steps()} agent steps)"]
        for module_id, batch in self.policy_batches.items():
            lines += [f"{module_id!r}: {line}" if not i else line for i, line in enumerate(repr(batch).split("\n"))]
        return "\n".join(lines)


def concat_samples_into_ma_batch(
    batches: Sequence[SampleBatch | MultiAgentBatch], on_missing: OnMissing = "raise"
) -> MultiAgentBatch:
    """Return all rows by module in one `MultiAgentBatch`; a `SampleBatch` counts as the default module's.

    Environment steps add up. Missing columns are treated as in `concat_samples`; `TypeError` for other values.
    """
    pieces: dict[str, list[SampleBatch]] = {}
    env_steps = 0
    for position, batch in enumerate(batches):
        if not isinstance(batch, SampleBatch | MultiAgentBatch):
            raise TypeError(f"position {position} is a {type(batch).__name__}; a batch is needed")
        whole = batch.as_multi_agent()
        env_steps += whole.env_steps()
        for module_id, part in whole.policy_batches.items():
            pieces.setdefault(module_id, []).append(part)
    joined = {module_id: concat_samples(parts, on_missing) for module_id, parts in pieces.items()}
    return MultiAgentBatch(joined, env_steps)


def convert_ma_batch_to_sample_batch(batch: SampleBatch | MultiAgentBatch) -> SampleBatch:
    """Return the `SampleBatch` of the default module, where it is the only one; `ValueError` naming the others."""
    if isinstance(batch, SampleBatch):
        return batch
    if list(batch) != [DEFAULT_MODULE_ID]:
        raise ValueError(f"the batch has modules {sorted(batch)}; only {DEFAULT_MODULE_ID!r} alone can be converted")
    return batch[DEFAULT_MODULE_ID]
