"""Parts of a batch: slices, sequences, episodes, rows. All take and give a `SampleBatch`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch

from lockstep.data.batch_layout import is_per_sequence, num_sequences_of, seq_lens_of
from lockstep.data.columns import Columns
from lockstep.data.sequences import rows_of_sequences, sequence_starts
from lockstep.data.trees import index_leaf, map_tree, row_of, tensor_index, to_numpy_leaf, whole

if TYPE_CHECKING:
    from lockstep.data.sample_batch import SampleBatch


def select(batch: SampleBatch, key: Any) -> SampleBatch:
    """`batch[slice]` (views) and `batch[mask or indices]` (a gather)."""
    if isinstance(key, slice):
        return _select_slice(batch, key)
    index = _as_index(key, len(batch))
    if Columns.SEQ_LENS in batch or batch.time_major:
        raise ValueError("rows of sequences cannot be picked one by one; use take_sequences(numbers), or unpad() first")
    return take_rows(batch, index)


def _as_index(key: Any, num_rows: int) -> np.ndarray:
    if isinstance(key, torch.Tensor):
        key = to_numpy_leaf(key)
    if isinstance(key, list) and not key:
        key = np.empty(0, dtype=np.int64)
    index = np.asarray(key) if isinstance(key, list | np.ndarray) else None
    if index is None or index.ndim != 1 or index.dtype.kind not in "biu":
        raise TypeError(f"a batch is indexed by a column name, a slice, a mask or a list of integers, not by {key!r}")
    if index.dtype.kind == "b":
        if len(index) != num_rows:
            raise IndexError(f"the mask has {len(index)} entries, the batch {num_rows} rows")
        return np.flatnonzero(index)
    index = index.astype(np.int64)
    outside = (index >= num_rows) | (index < -num_rows)
    if outside.any():
        raise IndexError(f"row {int(index[outside][0])} is outside a batch of {num_rows} rows")
    return np.where(index < 0, index + num_rows, index)


def take_rows(batch: SampleBatch, index: slice | np.ndarray) -> SampleBatch:
    """Rows of every column of a batch without sequences."""
    columns: dict[str, Any] = {}
    for name, column in batch.items():
        if type(column) is np.ndarray:
            columns[name] = column[index] if isinstance(index, slice) else column.take(index, axis=0)
        else:
            columns[name] = map_tree(lambda leaf: index_leaf(leaf, index), column)
    return batch._trusted(columns, batch)


def _select_slice(batch: SampleBatch, key: slice) -> SampleBatch:
    seq_lens = seq_lens_of(batch)
    if seq_lens is None:
        if batch.time_major:
            raise ValueError("a time-major batch without 'seq_lens' cannot be cut by rows; use unpad() first")
        return take_rows(batch, key)
    starts = sequence_starts(seq_lens)
    start, stop, step = key.indices(int(starts[-1]))
    if step == 1:
        return take_sequences(batch, slice(_sequence_at(starts, start), _sequence_at(starts, stop)))
    chosen = np.zeros(int(starts[-1]), dtype=bool)
    chosen[key] = True
    real = np.flatnonzero(seq_lens > 0)
    sequences = real[chosen[starts[real]]]
    return take_sequences(batch, sequences if step > 0 else sequences[::-1])


def _sequence_at(starts: np.ndarray, row: int) -> int:
    """Number of the sequence that holds `row`; at the end, the number of all sequences."""
    if row <= 0 or row >= starts[-1]:
        return 0 if row <= 0 else len(starts) - 1
    return int(np.searchsorted(starts[1:], row, side="right"))


def select_sequence_range(
    batch: SampleBatch, start: int, end: int, state_start: int | None, state_end: int | None
) -> SampleBatch:
    """Sequences `state_start:state_end`, checked to be rows `start:end`."""
    seq_lens = seq_lens_of(batch)
    if seq_lens is None:
        raise ValueError("state_start and state_end name sequences; this batch has no 'seq_lens'")
    first, last, _ = slice(state_start, state_end).indices(len(seq_lens))
    starts = sequence_starts(seq_lens)
    rows = (int(starts[first]), int(starts[max(first, last)]))
    if slice(start, end).indices(int(starts[-1]))[:2] != rows:
        raise ValueError(f"sequences {first}:{last} are rows {rows[0]}:{rows[1]}, not {start}:{end}")
    return take_sequences(batch, slice(first, last))


def take_sequences(batch: SampleBatch, sequences: slice | np.ndarray) -> SampleBatch:
    """Whole sequences, in the given order."""
    seq_lens = seq_lens_of(batch)
    if seq_lens is None:
        raise ValueError("this batch has no 'seq_lens'")
    if isinstance(sequences, slice) and sequences.step not in (None, 1):
        sequences = np.arange(len(seq_lens))[sequences]
    if not isinstance(sequences, slice):
        sequences = _as_index(sequences, len(seq_lens))
    rows = None if batch.time_major else _rows_of(batch, seq_lens, sequences)
    columns: dict[str, Any] = {}
    for name, column in batch.items():
        if is_per_sequence(batch, name, len(seq_lens)):
            columns[name] = map_tree(lambda leaf: index_leaf(leaf, sequences), column)
        elif rows is None:
            columns[name] = map_tree(lambda leaf: _index_second(leaf, sequences), column)
        else:
            columns[name] = map_tree(lambda leaf: index_leaf(leaf, rows), column)
    return batch._trusted(columns, batch)


def _rows_of(batch: SampleBatch, seq_lens: np.ndarray, sequences: slice | np.ndarray) -> slice | np.ndarray:
    if batch.zero_padded:
        length = batch.max_seq_len or 0
        starts = np.arange(len(seq_lens) + 1, dtype=np.int64) * length
        lengths = np.full(len(seq_lens), length, dtype=np.int64)
    else:
        starts, lengths = sequence_starts(seq_lens), seq_lens
    if isinstance(sequences, slice):
        first, last, _ = sequences.indices(len(seq_lens))
        return slice(int(starts[first]), int(starts[max(first, last)]))
    return rows_of_sequences(starts[:-1][sequences], lengths[sequences])


def _index_second(leaf: Any, sequences: slice | np.ndarray) -> Any:
    if isinstance(leaf, torch.Tensor) and not isinstance(sequences, slice):
        return leaf.index_select(1, tensor_index(sequences, leaf))
    return leaf[:, sequences]


class BatchPieces(Sequence["SampleBatch"]):
    """Consecutive pieces of one batch; each is made, as views, when it is asked for.

    It reads like a list; `list(pieces)` makes all of them. Later changes of the batch's columns do not show.
    """

    __slots__ = ("_batch", "_bounds", "_take")

    def __init__(
        self, batch: SampleBatch, bounds: np.ndarray, take: Callable[[SampleBatch, slice], SampleBatch]
    ) -> None:
        self._batch, self._bounds, self._take = batch._trusted(batch, batch), bounds, take

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @overload
    def __getitem__(self, index: int) -> SampleBatch: ...
    @overload
    def __getitem__(self, index: slice) -> list[SampleBatch]: ...
    def __getitem__(self, index: int | slice) -> SampleBatch | list[SampleBatch]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        if not -len(self) <= index < len(self):
            raise IndexError(f"piece {index} is out of range of {len(self)} pieces")
        index %= len(self)
        return self._take(self._batch, slice(int(self._bounds[index]), int(self._bounds[index + 1])))

    def __iter__(self) -> Iterator[SampleBatch]:
        take, batch = self._take, self._batch
        return (take(batch, slice(start, stop)) for start, stop in pairwise(self._bounds.tolist()))

    def __repr__(self) -> str:
        return f"BatchPieces({len(self)} pieces of {len(self._batch)} rows)"


_END_FLAGS = (Columns.DONES, Columns.TERMINATEDS, Columns.TRUNCATEDS)


def split_by_episode(batch: SampleBatch, key: str | None) -> Sequence[SampleBatch]:
    """One piece for each episode, views."""
    batch = batch._flat()
    num_rows = len(batch)
    name = key if key is not None else Columns.EPS_ID
    if key in _END_FLAGS:
        cuts = _after_set(batch, name)
    elif key is not None or name in batch:
        cuts = _changes(to_numpy_leaf(batch[name]))
        if key is None and Columns.AGENT_ID in batch:  # agents of one module share `eps_id`
            cuts = np.union1d(cuts, _changes(to_numpy_leaf(batch[Columns.AGENT_ID])))
    elif batch.get(Columns.DONES) is not None:
        cuts = _after_set(batch, Columns.DONES)
    elif num_rows:
        raise KeyError(f"no 'eps_id', 'terminateds' or 'truncateds' tells episodes apart; columns are {sorted(batch)}")
    else:
        cuts = np.empty(0, dtype=np.int64)
    if not num_rows:
        return []
    bounds = np.concatenate([[0], cuts, [num_rows]])
    seq_lens = seq_lens_of(batch)
    if seq_lens is None:
        return BatchPieces(batch, bounds, take_rows)
    starts = sequence_starts(seq_lens)
    inside = np.setdiff1d(cuts, starts)
    if len(inside):
        raise ValueError(f"a sequence crosses the episode boundary at row {int(inside[0])}")
    numbers = np.searchsorted(starts, bounds)
    numbers[-1] = len(seq_lens)
    return BatchPieces(batch, numbers, take_sequences)


def _after_set(batch: SampleBatch, name: str) -> np.ndarray:
    """Rows whose row before has the flag."""
    return np.flatnonzero(to_numpy_leaf(batch[name])[:-1]) + 1


def _changes(ids: np.ndarray) -> np.ndarray:
    """Rows whose id differs from the row before."""
    words = ids.itemsize // 8
    if ids.dtype.kind in "US" and ids.ndim == 1 and words and ids.itemsize % 8 == 0 and ids.flags.c_contiguous:
        bits = ids.view(np.uint64)  # strings compare as numbers: three times as fast
        different = np.flatnonzero(bits[words:] != bits[:-words]) // words
        return different[np.diff(different, prepend=-1) > 0] + 1
    changed = ids[1:] != ids[:-1]
    return np.flatnonzero(changed if changed.ndim == 1 else changed.any(axis=tuple(range(1, changed.ndim)))) + 1


def timeslices(batch: SampleBatch, size: int | None, num_slices: int | None) -> list[SampleBatch]:
    """Consecutive slices; see `SampleBatch.timeslices`."""
    if (size is None) == (num_slices is None):
        raise ValueError(f"exactly one of size and num_slices is needed, got size={size}, num_slices={num_slices}")
    total = len(batch)
    if size is not None:
        size = whole("size", size, 1)
        slices = [batch[start : start + size] for start in range(0, total, size)]
        return [part for part in slices if len(part)]
    count = whole("num_slices", num_slices, 1)
    share, longer = divmod(total, count)
    bounds = [share * i + max(0, i - count + longer) for i in range(count + 1)]
    return [batch[a:b] for a, b in pairwise(bounds)]


def split(
    batch: SampleBatch, size: int, shuffle: bool, generator: np.random.Generator | int | None
) -> Iterator[SampleBatch]:
    """Batches of `size` rows (with sequences: slices that snap), in random order with `shuffle`."""
    source = batch._trusted(permuted(batch, generator), batch) if shuffle else batch
    return iter(timeslices(source, size, None))


def permuted(batch: SampleBatch, generator: np.random.Generator | int | None) -> dict[str, Any]:
    """All columns under one random permutation of rows, or of whole sequences."""
    rng = np.random.default_rng(generator)
    sequences = num_sequences_of(batch)
    if sequences is not None:
        return dict(take_sequences(batch, rng.permutation(sequences)))
    if batch.time_major:
        raise ValueError("a time-major batch without 'seq_lens' cannot be shuffled by rows; use unpad() first")
    return dict(take_rows(batch, rng.permutation(len(batch))))


def iterate_rows(batch: SampleBatch) -> Iterator[dict[str, Any]]:
    """Each real row as a dict."""
    flat = batch._flat()
    sequences = num_sequences_of(flat)
    columns = {name: column for name, column in flat.items() if not is_per_sequence(flat, name, sequences)}
    alone = {} if sequences is None else {Columns.SEQ_LENS: 1}
    for row in range(len(flat)):
        yield {name: row_of(column, row) for name, column in columns.items()} | alone


def is_single_trajectory(batch: SampleBatch) -> bool:
    """Whether only the last row may end an episode and all have one `eps_id` (and one `agent_id`)."""
    if batch.get(Columns.DONES) is not None and bool(batch[Columns.DONES][:-1].any()):
        return False
    if Columns.EPS_ID in batch:
        names = [name for name in (Columns.EPS_ID, Columns.AGENT_ID) if name in batch]
        return not any(len(_changes(to_numpy_leaf(batch[name]))) for name in names)
    return True


_AFTER_LAST = {
    Columns.OBS: Columns.NEXT_OBS,
    Columns.PREV_ACTIONS: Columns.ACTIONS,
    Columns.PREV_REWARDS: Columns.REWARDS,
}


def single_step_input(batch: SampleBatch, requirements: Mapping[str, Any] | None, index: int | str) -> dict[str, Any]:
    """One row [1, ...] of each wanted column, and `seq_lens` [1]; see `SampleBatch.get_single_step_input_dict`."""
    batch = batch._flat()
    last = index == "last"
    if not last and (not isinstance(index, int) or not -len(batch) <= index < len(batch)):
        raise IndexError(f"index={index!r}; allowed are 'last' and rows of a batch with {len(batch)}")
    if not len(batch):
        raise IndexError("an empty batch has no row")
    row = len(batch) - 1 if last else int(index) % len(batch)
    result: dict[str, Any] = {}
    for wanted, source in _wanted_columns(batch, requirements).items():
        name = source
        if last:
            after = _AFTER_LAST.get(source, source.replace(Columns.STATE_IN, Columns.STATE_OUT, 1))
            if after in batch:
                name = after
        result[wanted] = _one_row(batch, name, row)
    return {**result, Columns.SEQ_LENS: np.ones(1, dtype=np.int32)}


def _wanted_columns(batch: SampleBatch, requirements: Mapping[str, Any] | None) -> dict[str, str]:
    if requirements is None:
        inputs = (Columns.OBS, Columns.PREV_ACTIONS, Columns.PREV_REWARDS)
        states = [name for name in batch if name.startswith(Columns.STATE_IN)]
        return {name: name for name in [*(name for name in inputs if name in batch), *states]}
    wanted = {}
    for name, source in requirements.items():
        if getattr(source, "shift_from", None) is not None:
            raise ValueError(f"{name!r} wants several rows (shift_from={source.shift_from}); one row can be given")
        if getattr(source, "used_for_compute_actions", True):
            wanted[name] = (source if isinstance(source, str) else getattr(source, "data_col", None)) or name
    return wanted


def _one_row(batch: SampleBatch, name: str, row: int) -> Any:
    column = batch[name]
    seq_lens = seq_lens_of(batch)
    if seq_lens is not None and is_per_sequence(batch, name, len(seq_lens)):
        row = int(np.searchsorted(sequence_starts(seq_lens)[1:], row, side="right"))
    return map_tree(lambda leaf: leaf[row : row + 1], column)
