"""Batches of rows: `SampleBatch` for one module, and `MultiAgentBatch` with one `SampleBatch` for each module."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise, repeat
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Literal

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

Slice = slice  # inside the class, annotations with `slice` would mean the method of that name
Generator = np.random.Generator | int | None
Device = str | torch.device
OnMissing = Literal["raise", "drop"]

_SEQ_LENS = Columns.SEQ_LENS


class SampleBatch(dict[str, Any], Columns):
    """Dict of columns with equal numbers of rows. Columns are numpy arrays or tensors, or dicts and tuples of them.

    `SampleBatch({"obs": obs, "rewards": rewards})` or `SampleBatch(obs=obs, rewards=rewards)`. Lists and numbers
    become arrays; `infos` may hold objects.

    With a column `seq_lens` (int `[S]`) the rows are S sequences. They are flat (one after another), padded
    (`zero_padded`: each filled to `max_seq_len` rows), or `time_major` (columns `[L, S, ...]`). State columns
    (`state_in`, `state_out`) then have one row for each sequence.

    `len(batch)` is the number of real rows: without padding, if there are sequences.

    Attributes:
        time_major: Whether columns are `[L, S, ...]`.
        zero_padded: Whether sequences are padded.
        is_training: Mark for the user's own code: whether the batch is used for training.
        num_grad_updates: Number of gradient updates of the weights that collected the rows; None if unknown.

    Raises:
        TypeError: a column name is not a string, or a value cannot be a column.
        ValueError: the columns have different numbers of rows.
    """

    __slots__ = ("_max_seq_len", "is_training", "num_grad_updates", "time_major", "zero_padded")

    is_by_module: ClassVar[Literal[False]] = False
    """Whether this consists of one batch for each module, as a `MultiAgentBatch` does."""

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
        new_columns = _named_columns({**dict(mapping or {}), **columns})
        self._check_rows(new_columns)
        super().update(new_columns)

    @classmethod
    def trusted(cls, columns: Mapping[str, Any], like: SampleBatch | None = None) -> SampleBatch:
        """Return a batch of columns that are known to fit together, without any check.

        Layout and marks are copied from `like`. Without it they are the defaults of the constructor.
        """
        # Every slice and minibatch is made here: no constructor, and each attribute is set directly.
        batch = cls.__new__(cls)
        dict.update(batch, columns)
        if like is None:
            batch.time_major = False
            batch.zero_padded = False
            batch.is_training = False
            batch._max_seq_len = None
            batch.num_grad_updates = None
        else:
            batch.time_major = like.time_major
            batch.zero_padded = like.zero_padded
            batch.is_training = like.is_training
            batch._max_seq_len = like._max_seq_len
            batch.num_grad_updates = like.num_grad_updates
        return batch

    def marks(self) -> dict[str, Any]:
        """Return the attributes of the batch by name: layout, `is_training` and `num_grad_updates`.

        Files store them. With an underscore before it, each name is a keyword argument of the constructor.
        """
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
        """Number of real rows."""
        return len(self)

    def env_steps(self) -> int:
        """Return the number of environment steps: one for each row."""
        return len(self)

    agent_steps = env_steps

    @property
    def max_seq_len(self) -> int | None:
        """Largest allowed length of a sequence, which is the padded length of a padded batch; None without sequences.

        Defaults to the longest sequence.
        """
        if self._max_seq_len is not None:
            return self._max_seq_len
        seq_lens = self._seq_lens()
        if seq_lens is None or not len(seq_lens):
            return None
        return int(seq_lens.max())

    @max_seq_len.setter
    def max_seq_len(self, value: int | None) -> None:
        self._max_seq_len = value

    def set_training(self, training: bool = True) -> None:
        """Set the mark `is_training`: whether the batch is used for training."""
        self.is_training = training

    def size_bytes(self) -> int:
        """Return the memory of all leaves in bytes, including objects."""
        return sum(sum(map(leaf_bytes, leaves(column))) for column in self.values())

    def _seq_lens(self) -> np.ndarray | None:
        """Return `seq_lens` as a numpy array, or None."""
        seq_lens = dict.get(self, _SEQ_LENS)
        return None if seq_lens is None else to_numpy_leaf(seq_lens)

    def _num_sequences(self) -> int | None:
        seq_lens = dict.get(self, _SEQ_LENS)
        return None if seq_lens is None else int(seq_lens.shape[0])

    # ---- access, with checks of new columns --------------------------------------------------------------

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
        # `dones` is derived from the two flags, unless it is a column of its own.
        if key == Columns.DONES:
            flags = [self[name] for name in (Columns.TERMINATEDS, Columns.TRUNCATEDS) if name in self]
            if len(flags) == 2:
                return flags[0] | flags[1]
            if flags:
                return flags[0]
        raise KeyError(f"no column {key!r}; columns are {sorted(self)}")

    def get(self, key: str, default: Any = None) -> Any:
        """Return the column, or `default` if it is missing. `dones` is derived, as in `batch["dones"]`."""
        try:
            return self[key]
        except KeyError:
            return default

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def update(self, *mappings: Any, **columns: Any) -> None:
        """Set several columns, with the checks of the constructor. After an error the batch is unchanged."""
        new_columns = _named_columns({**dict(*mappings), **columns})
        self._check_rows({**self, **new_columns})
        super().update(new_columns)

    def setdefault(self, name: str, default: Any = None) -> Any:
        """Return the column. If it is missing, it is set to `default` first."""
        if name not in self:
            self[name] = default
        return self[name]

    def __ior__(self, other: Any) -> SampleBatch:  # type: ignore[override, misc]
        self.update(other)
        return self

    def _check_rows(self, columns: Mapping[str, Tree]) -> None:
        """Raise `ValueError` naming two columns and their lengths, unless the columns fit together."""
        seq_lens = columns.get(_SEQ_LENS)
        num_sequences = None if seq_lens is None else int(seq_lens.shape[0])

        first_name: str | None = None
        first_rows = 0
        for name, column in columns.items():
            if _is_per_sequence(name, column, num_sequences):
                continue
            rows = column_rows(name, column, self.time_major)
            if rows is None:
                continue
            if first_name is None:
                first_name = name
                first_rows = rows
            elif rows != first_rows:
                raise ValueError(f"columns {first_name!r} and {name!r} have {first_rows} and {rows} rows")

        if seq_lens is not None and first_name is not None:
            lengths = to_numpy_leaf(seq_lens)
            check_seq_lens(lengths, first_name, first_rows, self.time_major, self.zero_padded, self._max_seq_len)

    # ---- reading -----------------------------------------------------------------------------------------

    def columns(self, keys: Sequence[str]) -> list[Any]:
        """Return the columns in the order of `keys`; `KeyError` for a missing one."""
        return [self[key] for key in keys]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Iterate over the real rows as `{column: row}`. States are left out, and `seq_lens` is 1 in each row."""
        flat = self.flat()
        num_sequences = self._num_sequences()
        columns = {name: column for name, column in flat.items() if not _is_per_sequence(name, column, num_sequences)}
        length_of_row = {} if num_sequences is None else {_SEQ_LENS: 1}
        for row in range(len(flat)):
            yield {name: rows_of(column, row) for name, column in columns.items()} | length_of_row

    def get_single_step_input_dict(
        self, view_requirements: Mapping[str, str | None] | None = None, index: int | Literal["last"] = "last"
    ) -> SampleBatch:
        """Return one row as model input: each column `[1, ...]`, and `seq_lens` `[1]`.

        Args:
            view_requirements: For each input column the column that it is read from; None as its source means the
                column itself.
            index: A row number, or `"last"` for the input of the step *after* the last row. In that input `obs` is the
                last `new_obs`, `prev_actions` and `prev_rewards` are the last action and reward, and `state_in` is the
                last `state_out`.
        """
        flat = self.flat()
        row = int(row_numbers([-1 if index == "last" else index], len(flat))[0])
        seq_lens = self._seq_lens()
        inputs: dict[str, Any] = {}
        for name, source in input_sources(flat, view_requirements, after_last=index == "last").items():
            column = flat[source]
            position = row
            if seq_lens is not None and _is_per_sequence(source, column, len(seq_lens)):
                position = int(np.searchsorted(sequence_starts(seq_lens)[1:], row, side="right"))
            inputs[name] = map_tree(partial(index_leaf, index=slice(position, position + 1)), column)
        return SampleBatch({**inputs, _SEQ_LENS: np.ones(1, dtype=np.int32)})

    def is_terminated_or_truncated(self) -> bool:
        """Return whether the last row ends an episode."""
        return bool(len(self)) and bool(self.flat()[Columns.DONES][-1])

    def is_single_trajectory(self) -> bool:
        """Return whether only the last row may end an episode, and all rows share one `eps_id` and one `agent_id`."""
        flat = self.flat()
        dones = flat.get(Columns.DONES)
        if dones is not None and bool(dones[:-1].any()):
            return False
        if Columns.EPS_ID not in flat:
            return True
        names = [name for name in (Columns.EPS_ID, Columns.AGENT_ID) if name in flat]
        return not any(len(changes_in(to_numpy_leaf(flat[name]))) for name in names)

    def summary(self) -> str:
        """Return a text with one line for each column: its container, shape, dtype, minimum, maximum and mean."""
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
        """Return rows of a batch without sequences: views for a slice, one gather for int64 row numbers.

        Row numbers must not be negative.
        """
        if self.time_major:
            raise ValueError("a time-major batch has no rows one by one; use take_sequences, or unpad() first")
        columns: dict[str, Any] = {}
        for name, column in self.items():
            if type(column) is np.ndarray:  # nearly all columns of a minibatch: no calls for them
                columns[name] = column[index] if isinstance(index, slice) else column.take(index, axis=0)
            else:
                columns[name] = map_tree(lambda leaf: index_leaf(leaf, index), column)
        return self.trusted(columns, self)

    def _select_slice(self, key: Slice) -> SampleBatch:
        """Return the rows of a slice. With `seq_lens` it snaps to whole sequences; see `slice`."""
        seq_lens = self._seq_lens()
        if seq_lens is None:
            return self.take_rows(key)

        starts = sequence_starts(seq_lens)
        num_rows = int(starts[-1])
        start, stop, step = key.indices(num_rows)
        if step == 1:
            return self.take_sequences(slice(sequence_at(starts, start), sequence_at(starts, stop)))

        # With another step: the sequences whose first row is selected. Empty sequences have no row.
        is_selected = np.zeros(num_rows, dtype=bool)
        is_selected[key] = True
        not_empty = np.flatnonzero(seq_lens > 0)
        sequences = not_empty[is_selected[starts[not_empty]]]
        return self.take_sequences(sequences if step > 0 else sequences[::-1])

    def slice(self, start: int, end: int, state_start: int | None = None, state_end: int | None = None) -> SampleBatch:
        """Return rows `start` to `end` as views.

        With `seq_lens` the slice snaps to whole sequences: from the sequence that holds row `start` to the one before
        the sequence that holds row `end`. So adjacent slices never share or lose a row.

        `state_start` and `state_end` select the sequences by number instead. `ValueError` unless their rows are exactly
        `start` to `end`.
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
        """Return whole sequences by number: views for a slice, one gather for an int array."""
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
        """Return the stored rows of flat or padded sequences; a slice for a slice."""
        if self.zero_padded:
            seq_lens = np.full(len(seq_lens), self.max_seq_len or 0, dtype=np.int64)
        starts = sequence_starts(seq_lens)
        if isinstance(sequences, slice):
            first, last, _ = sequences.indices(len(seq_lens))
            return slice(int(starts[first]), int(starts[max(first, last)]))
        return rows_of_sequences(starts[:-1][sequences], seq_lens[sequences])

    def split_by_episode(self, key: str | None = None) -> Sequence[SampleBatch]:
        """Return one view for each episode, also for the last one if it has not ended.

        Args:
            key: Column whose changes separate episodes. By default it is `eps_id`, together with `agent_id` if the
                batch has it, since agents of one module share their `eps_id`. Without these columns, episodes are cut
                after each row that ends one.

        Returns:
            A sequence that makes each view when it is indexed; `list(...)` makes all of them.

        Raises:
            KeyError: the batch has neither an episode column nor flags.
            ValueError: a sequence of `seq_lens` crosses the end of an episode.
        """
        flat = self.flat()
        if not len(flat):
            return []
        cuts = episode_cuts(flat, key)
        bounds = np.concatenate([[0], cuts, [len(flat)]])

        # Views are made later, when columns of this batch may have been replaced.
        snapshot = flat.trusted(flat, flat)
        seq_lens = self._seq_lens()
        if seq_lens is None:
            return Pieces(snapshot.take_rows, bounds)

        starts = sequence_starts(seq_lens)
        crossed = np.setdiff1d(cuts, starts)
        if len(crossed):
            raise ValueError(f"a sequence crosses the episode boundary at row {int(crossed[0])}")
        numbers = np.searchsorted(starts, bounds)
        numbers[-1] = len(seq_lens)
        return Pieces(snapshot.take_sequences, numbers)

    def timeslices(self, size: int | None = None, num_slices: int | None = None) -> list[SampleBatch]:
        """Return views of `size` rows each (the last may be shorter), or `num_slices` views of nearly equal size.

        Every row is in exactly one slice. `ValueError` unless exactly one argument is given.
        """
        if (size is None) == (num_slices is None):
            raise ValueError(f"exactly one of size and num_slices is needed, got size={size}, num_slices={num_slices}")
        total = len(self)
        if size is not None:
            size = check_whole("size", size, 1)
            slices = [self[start : start + size] for start in range(0, total, size)]
            # Slices snap to sequences, so that some of them may hold none.
            return [part for part in slices if len(part)]

        count = check_whole("num_slices", num_slices, 1)
        share, num_longer = divmod(total, count)
        bounds = [share * i + max(0, i - count + num_longer) for i in range(count + 1)]
        return [self[start:stop] for start, stop in pairwise(bounds)]

    def split(self, size: int, shuffle: bool = False, generator: Generator = None) -> Iterator[SampleBatch]:
        """Return an iterator of batches of `size` rows; the last may be shorter. `shuffle` permutes the rows first."""
        return iter((self._permuted(generator) if shuffle else self).timeslices(size))

    # ---- order, padding, device --------------------------------------------------------------------------

    def shuffle(self, generator: Generator = None) -> SampleBatch:
        """Permute the rows in place, or whole sequences if there are any, and return self."""
        dict.update(self, self._permuted(generator))
        return self

    def _permuted(self, generator: Generator) -> SampleBatch:
        rng = np.random.default_rng(generator)
        sequences = self._num_sequences()
        if sequences is not None:
            return self.take_sequences(rng.permutation(sequences))
        return self.take_rows(rng.permutation(len(self)))

    def copy(self, shallow: bool = False) -> SampleBatch:
        """Return a deep copy, objects included, or with `shallow` a new batch of the same arrays."""
        function = (lambda leaf: leaf) if shallow else copy_leaf
        return self.trusted({name: map_tree(function, column) for name, column in self.items()}, self)

    def right_zero_pad(self, max_seq_len: int, exclude_states: bool = True) -> SampleBatch:
        """Fill each sequence with zeros on the right to `max_seq_len` rows, in place, and return self.

        `exclude_states=False` pads state columns as well: the first row of a sequence holds its state, the other rows
        are zeros.

        Raises:
            ValueError: the batch has no `seq_lens`, or a sequence is longer than `max_seq_len`.
        """
        seq_lens = self._required_seq_lens()
        if len(seq_lens) and int(seq_lens.max()) > max_seq_len:
            raise ValueError(
                f"max_seq_len={max_seq_len} is less than the longest sequence ({int(seq_lens.max())} rows)"
            )
        self.unpad()
        for name, column in list(self.items()):
            is_per_sequence = _is_per_sequence(name, column, len(seq_lens))
            if name == _SEQ_LENS or (is_per_sequence and exclude_states):
                continue
            lengths = np.ones_like(seq_lens) if is_per_sequence else seq_lens
            padded = map_tree(partial(pad_leaf, seq_lens=lengths, length=max_seq_len), column)
            dict.__setitem__(self, name, padded)
        self.zero_padded = True
        self.max_seq_len = max_seq_len
        return self

    def unpad(self) -> SampleBatch:
        """Turn padded or time-major sequences into flat rows, in place, and return self."""
        if not (self.zero_padded or self.time_major):
            return self
        num_sequences = self._num_sequences()
        columns: dict[str, Any] = {}
        for name, column in self.items():
            is_per_sequence = _is_per_sequence(name, column, num_sequences)
            columns[name] = column if is_per_sequence else self._unpadded(name, column)
        dict.update(self, columns)
        self.zero_padded = False
        self.time_major = False
        self.max_seq_len = None
        return self

    def _unpadded(self, name: str, column: Tree) -> Tree:
        """Return one padded or time-major column as flat rows."""
        seq_lens = self._seq_lens()
        length = self.max_seq_len or 0
        if self.time_major:
            length = next((int(leaf.shape[0]) for leaf in leaves(column)), 0)
            column = map_tree(time_major_to_padded, column)
        if seq_lens is None:
            return column
        # A padded state column (`right_zero_pad(exclude_states=False)`) has one real row for each sequence.
        is_padded_state = is_state_column(name) and not self.time_major
        lengths = np.ones_like(seq_lens) if is_padded_state else seq_lens
        return map_tree(partial(unpad_leaf, seq_lens=lengths, length=length), column)

    def flat(self) -> SampleBatch:
        """Return self if the rows are flat, else an unpadded shallow copy."""
        return self.copy(shallow=True).unpad() if self.zero_padded or self.time_major else self

    def to_device(
        self, device: Device, pin_memory: bool = False, non_blocking: bool = False, *, keep_dtype: bool = False
    ) -> SampleBatch:
        """Turn all columns into tensors on `device`, in place, and return self.

        float64 becomes float32 unless `keep_dtype` is set. `infos`, strings and objects stay as they are.
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
        """Return a batch with all columns as numpy arrays, which share memory with tensors on the CPU."""
        return self.trusted({name: map_tree(to_numpy_leaf, column) for name, column in self.items()}, self)

    def to_torch(self) -> SampleBatch:
        """Return a batch with all columns as tensors, which share memory with arrays if torch allows it.

        Strings and objects stay arrays.
        """
        return self.trusted({name: map_tree(to_torch_leaf, column) for name, column in self.items()}, self)

    def as_multi_agent(self, module_id: str | None = None) -> MultiAgentBatch:
        """Return a `MultiAgentBatch` with this batch under `module_id`, by default "default_policy"."""
        return MultiAgentBatch({DEFAULT_MODULE_ID if module_id is None else module_id: self}, self.env_steps())

    def compress(self, bulk: bool = False, columns: Collection[str] = compressed.DEFAULT_COLUMNS) -> SampleBatch:
        """Compress columns with lz4 (extra `compression`), in place, and return self.

        Rows can still be sliced, joined, shuffled and padded. After an error the batch is unchanged.

        Args:
            bulk: Compress all rows of a leaf together. This is smaller, and faster to read as a whole. By default each
                row is compressed separately.
            columns: Columns to compress. Of the default columns those that are missing are skipped.

        Raises:
            KeyError: a column is missing.
            TypeError: a column holds objects.
        """
        num_sequences = self._num_sequences()
        new_columns = {}
        for name in compressed.columns_to_compress(columns, self):
            column = dict.__getitem__(self, name)
            lead = 2 if self.time_major and not _is_per_sequence(name, column, num_sequences) else 1
            new_columns[name] = compressed.compress_column(name, column, bulk, lead)
        dict.update(self, new_columns)
        return self

    def decompress_if_needed(self, columns: Collection[str] = compressed.DEFAULT_COLUMNS) -> SampleBatch:
        """Decompress columns in place, and return self. Tensors are restored on the CPU."""
        names = compressed.columns_to_compress(columns, self)
        new_columns = {name: compressed.decompress_column(name, dict.__getitem__(self, name)) for name in names}
        dict.update(self, new_columns)
        return self

    # ---- files and other libraries -----------------------------------------------------------------------

    @classmethod
    def _marked(cls, columns: Mapping[str, Any], marks: Mapping[str, Any]) -> SampleBatch:
        """Return a batch of columns with the marks of `marks()`. Pickled batches name this method."""
        return cls(columns, **{f"_{name}": value for name, value in marks.items()})

    def to_npz(self, path: str | Path) -> Path:
        """Write all columns to one `.npz` file without loss, and return its path.

        `infos` may hold None, bool, int, float, str, arrays, and dicts, lists and tuples of them.

        Raises:
            TypeError: a column holds another kind of object; names the column.
            OSError: the file cannot be written; names the file.
        """
        return codec.write_npz(Path(path), self, self.marks())

    @classmethod
    def from_npz(cls, path: str | Path) -> SampleBatch:
        """Read a batch from a file of `to_npz`; `ValueError` naming the file if it is damaged or foreign."""
        with codec.naming_damage(Path(path), "SampleBatch file"):
            return cls._marked(*codec.read_npz(Path(path)))

    def to_parquet(self, path: str | Path, *, compression: str = "zstd", row_group_size: int = 65_536) -> Path:
        """Write all columns to one Parquet file without loss (extra `offline`), and return its path.

        Errors are those of `to_npz`.
        """
        return parquet.write_parquet(Path(path), self, self.marks(), compression, row_group_size)

    @classmethod
    def from_parquet(cls, path: str | Path, columns: Sequence[str] | None = None) -> SampleBatch:
        """Read a batch from a file of `to_parquet`, or from a plain table of numbers, bools and text.

        Args:
            path: File to read.
            columns: Columns to read. Defaults to all columns.

        Raises:
            ValueError: the file is damaged or foreign; names the file.
            KeyError: the file lacks a column.
        """
        with codec.naming_damage(Path(path), "Parquet file of a SampleBatch"):
            return cls._marked(*parquet.read_parquet(Path(path), columns))

    def to_tensordict(self) -> Any:
        """Return a `TensorDict` that shares memory with the batch (extra `tensordict`).

        Text and objects are non-tensor data. The batch size is the number of rows; it is empty for sequences.
        """
        num_rows = None if _SEQ_LENS in self or self.time_major or not dict.__len__(self) else len(self)
        return tensordicts.to_tensordict(self, num_rows, self.marks())

    @classmethod
    def from_tensordict(cls, tensordict: Any) -> SampleBatch:
        """Return the batch of a `TensorDict`: one of `to_tensordict`, or any with at most one batch dimension."""
        return cls._marked(*tensordicts.from_tensordict(tensordict))

    # ---- joining -----------------------------------------------------------------------------------------

    def concat(self, other: SampleBatch) -> SampleBatch:
        """Return a batch with the rows of both batches; see `concat_samples`."""
        return concat_samples([self, other])

    @staticmethod
    def concat_samples(batches: Sequence[Any], on_missing: OnMissing = "raise") -> Any:
        """Return a batch with the rows of all batches; see the function `concat_samples`."""
        return concat_samples(batches, on_missing)


def _named_columns(values: Mapping[Any, Any]) -> dict[str, Tree]:
    """Return values as columns; `TypeError` for a name that is not a string, or a value that cannot be a column."""
    columns = {}
    for name, value in values.items():
        if not isinstance(name, str):
            raise TypeError(f"column names are strings, got {name!r} ({type(name).__name__})")
        columns[name] = as_column(name, value)
    return columns


def _is_per_sequence(name: str, column: Tree, num_sequences: int | None) -> bool:
    """Return whether a column has one row for each sequence instead of one for each step."""
    if num_sequences is None:
        return False
    return name == _SEQ_LENS or (is_state_column(name) and column_rows(name, column) == num_sequences)


# ---- joining batches -----------------------------------------------------------------------------------------

_LAYOUT = attrgetter("zero_padded", "time_major", "_max_seq_len")
_GRAD_UPDATES = attrgetter("num_grad_updates")


def concat_samples(batches: Sequence[Any], on_missing: OnMissing = "raise") -> Any:
    """Return one batch with the rows of all batches, with one allocation for each column.

    Empty batches are skipped; an empty list gives an empty batch. `max_seq_len` becomes the largest one, and
    `num_grad_updates` the mean over the rows. If a `MultiAgentBatch` is among the batches, the result is one as well
    (see `concat_samples_into_ma_batch`).

    Args:
        batches: Batches to join.
        on_missing: `"drop"` keeps only the columns that all batches have, `"raise"` refuses others.

    Raises:
        KeyError: a batch lacks a column; names the column and the position of the batch.
        ValueError: the batches have different layouts (padding, padded length, time-major).
    """
    batches = list(batches)
    if set(map(type, batches)) - {SampleBatch} and not all(isinstance(batch, SampleBatch) for batch in batches):
        return concat_samples_into_ma_batch(batches, on_missing)
    check_choice("on_missing", on_missing, ("raise", "drop"))
    if not batches:
        return SampleBatch()

    like = batches[0]
    parts_of_columns = _parts_of_uniform(batches)
    if parts_of_columns is None:
        filled = [(position, batch) for position, batch in enumerate(batches) if len(batch)] or [(0, like)]
        _check_same_layout(filled)
        like = filled[0][1]
        names = common_names([(position, batch.keys()) for position, batch in filled], on_missing)
        parts_of_columns = {name: [dict.__getitem__(batch, name) for _, batch in filled] for name in names}

    seq_lens = dict.get(like, _SEQ_LENS)
    num_sequences = None if seq_lens is None else len(seq_lens)
    joined = {}
    for name, parts in parts_of_columns.items():
        # In a time-major column the second axis counts sequences.
        is_time_major = like.time_major and not _is_per_sequence(name, parts[0], num_sequences)
        joined[name] = concat_trees(parts, name, axis=int(is_time_major))

    result = SampleBatch.trusted(joined, like)
    if _SEQ_LENS in result or result.max_seq_len is not None:
        result.max_seq_len = max(
            (batch.max_seq_len for batch in batches if batch.max_seq_len is not None), default=None
        )
    result.num_grad_updates = _mean_grad_updates(batches)
    return result


def _parts_of_uniform(batches: Sequence[SampleBatch]) -> dict[str, list[Any]] | None:
    """Return the parts of each column if all batches have rows, one layout and the same columns; else None.

    This is the usual case of hundreds of small batches, decided without a line of Python for each of them.
    """
    first = batches[0]
    if not first or len(set(map(_LAYOUT, batches))) > 1 or len(set(map(dict.__len__, batches))) > 1:
        return None
    try:
        parts = {name: list(map(dict.__getitem__, batches, repeat(name))) for name in first}
    except KeyError:
        return None

    # The lengths of the first column say whether every batch has rows.
    leading = next(iter(parts.values()))
    are_arrays = all(type(part) is np.ndarray for part in leading)
    return parts if are_arrays and not first.time_major and all(map(len, leading)) else None


def _mean_grad_updates(batches: Sequence[SampleBatch]) -> float | None:
    """Return the mean of `num_grad_updates` over the rows of the batches that have it; None if no batch has it."""
    if set(map(_GRAD_UPDATES, batches)) <= {None}:
        return None
    known = [(len(batch), value) for batch in batches if (value := batch.num_grad_updates) is not None]
    num_rows = sum(count for count, _ in known)
    return sum(count * value for count, value in known) / num_rows if num_rows else known[0][1]


def _check_same_layout(filled: Sequence[tuple[int, SampleBatch]]) -> None:
    """Raise `ValueError` unless all batches, given with their positions, have the layout of the first."""
    position, first = filled[0]
    for other_position, other in filled[1:]:
        for mark in ("zero_padded", "time_major", *["max_seq_len"] * first.zero_padded):
            if getattr(first, mark) != getattr(other, mark):
                raise ValueError(
                    f"batches of different layout: {mark} is {getattr(first, mark)} at position {position} "
                    f"and {getattr(other, mark)} at position {other_position}; use unpad() or right_zero_pad() first"
                )


class MultiAgentBatch:
    """Batches of several modules by module id, which were collected in `env_steps` environment steps.

    `len(batch)` is the number of environment steps, and `batch[module_id]` the batch of a module. Iteration yields
    module ids.

    Raises:
        TypeError: a module id is not a string, or a value is not a `SampleBatch`.
        ValueError: `env_steps` is negative or not a whole number.
    """

    __slots__ = ("_env_steps", "policy_batches")

    is_by_module: ClassVar[Literal[True]] = True
    """Whether this consists of one batch for each module."""

    def __init__(self, policy_batches: Mapping[str, SampleBatch], env_steps: int) -> None:
        for module_id, batch in policy_batches.items():
            if not isinstance(module_id, str) or not isinstance(batch, SampleBatch):
                raise TypeError(
                    f"module {module_id!r} has a {type(batch).__name__}; each module id, a string, needs a SampleBatch"
                )
        self.policy_batches: dict[str, SampleBatch] = dict(policy_batches)
        self._env_steps = check_whole("env_steps", env_steps, 0)

    def env_steps(self) -> int:
        """Return the number of environment steps in which the rows were collected."""
        return self._env_steps

    def agent_steps(self) -> int:
        """Return the number of rows of all modules together."""
        return sum(batch.agent_steps() for batch in self.policy_batches.values())

    def __len__(self) -> int:
        return self._env_steps

    @property
    def count(self) -> int:
        """Number of environment steps."""
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
        """Return the memory of all leaves of all modules in bytes."""
        return sum(batch.size_bytes() for batch in self.policy_batches.values())

    def copy(self, shallow: bool = False) -> MultiAgentBatch:
        """Return a deep copy, or with `shallow` a new batch of the same arrays."""
        copies = {module_id: batch.copy(shallow) for module_id, batch in self.policy_batches.items()}
        return MultiAgentBatch(copies, self._env_steps)

    def to_device(
        self, device: Device, pin_memory: bool = False, non_blocking: bool = False, *, keep_dtype: bool = False
    ) -> MultiAgentBatch:
        """Turn the columns of every module into tensors on `device`, in place, and return self."""
        for batch in self.policy_batches.values():
            batch.to_device(device, pin_memory, non_blocking, keep_dtype=keep_dtype)
        return self

    def compress(self, bulk: bool = False, columns: Collection[str] = compressed.DEFAULT_COLUMNS) -> MultiAgentBatch:
        """Compress columns of every module in place, and return self. See `SampleBatch.compress`.

        A module may lack a column that another module has. `KeyError` if no module has it.
        """
        for batch, names in self._with_columns(columns):
            batch.compress(bulk, names)
        return self

    def decompress_if_needed(self, columns: Collection[str] = compressed.DEFAULT_COLUMNS) -> MultiAgentBatch:
        """Decompress columns of every module in place, and return self."""
        for batch, names in self._with_columns(columns):
            batch.decompress_if_needed(names)
        return self

    def _with_columns(self, columns: Collection[str]) -> list[tuple[SampleBatch, list[str]]]:
        """Return (batch, names of the given columns that it has) for each module."""
        present: set[str] = set()
        for batch in self.policy_batches.values():
            present.update(batch)

        wanted = compressed.columns_to_compress(columns, present)
        return [(batch, [name for name in wanted if name in batch]) for batch in self.policy_batches.values()]

    def as_multi_agent(self, module_id: str | None = None) -> MultiAgentBatch:
        """Return self. `ValueError` for a `module_id`, since each batch has its module id already."""
        if module_id is not None:
            raise ValueError(
                f"module_id={module_id!r} is not allowed: this batch has the modules {list(self.policy_batches)}"
            )
        return self

    def timeslices(self, k: int) -> list[MultiAgentBatch]:
        """Return batches of `k` environment steps each; the last may have fewer.

        An environment step is one pair `(eps_id, t)` over all modules. Episodes keep the order in which they appear.
        Every row is in exactly one slice, and a slice leaves out modules that have no rows in it.

        With `seq_lens` sequences stay whole: each is in the slice of its last row, and a slice counts the environment
        steps that no earlier slice has.

        Raises:
            ValueError: `k` is below 1.
            KeyError: a module lacks `eps_id` or `t`.
        """
        k = check_whole("k", k, 1)
        filled = {module_id: batch for module_id, batch in self.policy_batches.items() if len(batch)}
        if not filled:
            return []

        steps_of_rows = _number_steps_of_modules(filled)
        num_steps = 1 + max(int(steps.max()) for steps in steps_of_rows.values())
        slices: list[dict[str, SampleBatch]] = [{} for _ in range(-(-num_steps // k))]
        first_slice_of_step = np.full(num_steps, len(slices), dtype=np.int64)

        for module_id, batch in filled.items():
            steps = steps_of_rows[module_id]
            slice_of_row = steps // k
            # Units are what a slice takes whole: rows, or sequences.
            slice_of_unit = slice_of_row
            take: Callable[[Slice | np.ndarray], SampleBatch] = batch.take_rows
            if _SEQ_LENS in batch:
                seq_lens = to_numpy_leaf(batch[_SEQ_LENS])
                not_empty = np.flatnonzero(seq_lens)
                if len(not_empty) < len(seq_lens):
                    batch = batch.take_sequences(not_empty)
                lengths = seq_lens[not_empty]
                slice_of_unit = slice_of_row[np.cumsum(lengths) - 1]
                slice_of_row = np.repeat(slice_of_unit, lengths)
                take = batch.take_sequences

            np.minimum.at(first_slice_of_step, steps, slice_of_row)
            for number, units in _units_by_slice(slice_of_unit, len(slices)):
                slices[number][module_id] = take(units)

        step_counts = np.bincount(first_slice_of_step, minlength=len(slices)).tolist()
        return [MultiAgentBatch(modules, count) for modules, count in zip(slices, step_counts) if modules]

    @staticmethod
    def wrap_as_needed(policy_batches: Mapping[str, SampleBatch], env_steps: int) -> SampleBatch | MultiAgentBatch:
        """Return the `SampleBatch` of the default module if it is the only one, else a `MultiAgentBatch`."""
        if list(policy_batches) == [DEFAULT_MODULE_ID]:
            return policy_batches[DEFAULT_MODULE_ID]
        return MultiAgentBatch(policy_batches, env_steps)

    @staticmethod
    def concat_samples(
        batches: Sequence[SampleBatch | MultiAgentBatch], on_missing: OnMissing = "raise"
    ) -> MultiAgentBatch:
        """Return a batch with all rows by module; see the function `concat_samples_into_ma_batch`."""
        return concat_samples_into_ma_batch(batches, on_missing)

    def __repr__(self) -> str:
        lines = [f"MultiAgentBatch({self._env_steps} env steps, {self.agent_steps()} agent steps)"]
        for module_id, batch in self.policy_batches.items():
            lines += [f"{module_id!r}: {line}" if not i else line for i, line in enumerate(repr(batch).split("\n"))]
        return "\n".join(lines)


def _number_steps_of_modules(batches: Mapping[str, SampleBatch]) -> dict[str, np.ndarray]:
    """Return the number of the environment step of each row, by module; `KeyError` for a missing column."""
    for module_id, batch in batches.items():
        for name in (Columns.EPS_ID, Columns.T):
            if name not in batch:
                raise KeyError(f"module {module_id!r} lacks column {name!r}; timeslices needs 'eps_id' and 't'")
    flat = [batch.flat() for batch in batches.values()]
    episode_ids = [to_numpy_leaf(batch[Columns.EPS_ID]) for batch in flat]
    times = [to_numpy_leaf(batch[Columns.T]) for batch in flat]
    return dict(zip(batches, number_steps(episode_ids, times)))


def _units_by_slice(slice_of_unit: np.ndarray, num_slices: int) -> Iterator[tuple[int, Slice | np.ndarray]]:
    """Iterate over (number of a slice, its units) of the slices that have units.

    Units that are sorted by slice give Python slices, from which batches make views.
    """
    order = np.argsort(slice_of_unit, kind="stable")
    bounds = np.searchsorted(slice_of_unit[order], np.arange(num_slices + 1)).tolist()
    is_sorted = bool(np.all(np.diff(slice_of_unit) >= 0))
    for number, (start, stop) in enumerate(pairwise(bounds)):
        if stop > start:
            yield number, slice(start, stop) if is_sorted else order[start:stop]


def concat_samples_into_ma_batch(
    batches: Sequence[SampleBatch | MultiAgentBatch], on_missing: OnMissing = "raise"
) -> MultiAgentBatch:
    """Return one `MultiAgentBatch` with the rows of all batches by module.

    A `SampleBatch` belongs to the default module. Environment steps add up. Missing columns are treated as in
    `concat_samples`.

    Raises:
        TypeError: a value is not a batch; names its position.
        KeyError, ValueError: as in `concat_samples`.
    """
    parts_of_modules: dict[str, list[SampleBatch]] = {}
    env_steps = 0
    for position, batch in enumerate(batches):
        if not isinstance(batch, SampleBatch | MultiAgentBatch):
            raise TypeError(f"position {position} is a {type(batch).__name__}; a batch is needed")
        by_module = batch.as_multi_agent()
        env_steps += by_module.env_steps()
        for module_id, part in by_module.policy_batches.items():
            parts_of_modules.setdefault(module_id, []).append(part)
    joined = {module_id: concat_samples(parts, on_missing) for module_id, parts in parts_of_modules.items()}
    return MultiAgentBatch(joined, env_steps)


def convert_ma_batch_to_sample_batch(batch: SampleBatch | MultiAgentBatch) -> SampleBatch:
    """Return the `SampleBatch` of the default module; `ValueError` if the batch has other modules."""
    modules = batch.as_multi_agent().policy_batches
    if list(modules) != [DEFAULT_MODULE_ID]:
        raise ValueError(f"the batch has modules {sorted(modules)}; only {DEFAULT_MODULE_ID!r} alone can be converted")
    return modules[DEFAULT_MODULE_ID]
