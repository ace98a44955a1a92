"""Index arithmetic on columns: masks and negative indices, look-back buffers, and variable-length sequences.

Three layouts hold `S` sequences: *flat* (one after another, `sum(seq_lens)` rows), *padded* (each filled with
zeros to `L` rows, `S * L` rows) and *time-major* (`[L, S, ...]`).

A column of an episode has `lookback` items before the episode's first. *Positions* count from the very first stored
item, *indices* are what the user gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal, TypeVar, overload

import numpy as np
import torch

from lockstep.data.columns import Columns
from lockstep.data.trees import Leaf, index_leaf, tensor_index, to_numpy_leaf
from lockstep.options.checks import check_whole

Indices = int | slice | Sequence[int] | np.ndarray | None
Positions = int | slice | np.ndarray
_INTEGERS = (int, np.integer)


def row_numbers(key: object, num_rows: int) -> np.ndarray:
    """Return the rows that a mask or a list of integers picks, as int64 without negative numbers.

    Raises:
        TypeError: `key` is neither.
        IndexError: a row is outside, or the mask has another length.
    """
    if isinstance(key, torch.Tensor):
        key = key.cpu().numpy()
    if isinstance(key, list) and not key:
        key = np.empty(0, dtype=np.int64)
    index = np.asarray(key) if isinstance(key, list | tuple | np.ndarray) else None
    if index is None or index.ndim != 1 or index.dtype.kind not in "biu":
        raise TypeError(f"rows are picked by a column name, a slice, a mask or a list of integers, not by {key!r}")
    if index.dtype.kind == "b":
        if len(index) != num_rows:
            raise IndexError(f"the mask has {len(index)} entries for {num_rows} rows")
        return np.flatnonzero(index)
    index = index.astype(np.int64)
    outside = (index >= num_rows) | (index < -num_rows)
    if outside.any():
        raise IndexError(f"row {int(index[outside][0])} is outside of {num_rows} rows")
    return np.where(index < 0, index + num_rows, index)


def changes_in(ids: np.ndarray) -> np.ndarray:
    """Return the rows whose id differs from the row before."""
    words = ids.itemsize // 8
    if ids.dtype.kind in "US" and ids.ndim == 1 and words and ids.itemsize % 8 == 0 and ids.flags.c_contiguous:
        bits = ids.view(np.uint64)  # strings compare as numbers: three times as fast
        different = np.flatnonzero(bits[words:] != bits[:-words]) // words
        return different[np.diff(different, prepend=-1) > 0] + 1
    changed = ids[1:] != ids[:-1]
    return np.flatnonzero(changed if changed.ndim == 1 else changed.any(axis=tuple(range(1, changed.ndim)))) + 1


def episode_cuts(columns: Mapping[str, Leaf], key: str | None) -> np.ndarray:
    """Return the rows at which new episodes begin; see `SampleBatch.split_by_episode`."""
    if key is None and Columns.EPS_ID not in columns:
        if columns.get(Columns.DONES) is None:
            raise KeyError(
                f"no 'eps_id', 'terminateds' or 'truncateds' tells episodes apart; columns are {sorted(columns)}"
            )
        key = Columns.DONES
    ids = to_numpy_leaf(columns[key or Columns.EPS_ID])
    if key in (Columns.DONES, Columns.TERMINATEDS, Columns.TRUNCATEDS):
        return np.flatnonzero(ids[:-1]) + 1
    cuts = changes_in(ids)
    if key is None and Columns.AGENT_ID in columns:  # agents of one module share `eps_id`
        cuts = np.union1d(cuts, changes_in(to_numpy_leaf(columns[Columns.AGENT_ID])))
    return cuts


def number_steps(episode_ids: Sequence[np.ndarray], times: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the number of the environment step of each row of several batches, in order of (episode, t).

    Episodes have the order in which they appear.
    """
    episodes, first, inverse = np.unique(np.concatenate(episode_ids), return_index=True, return_inverse=True)
    rank = np.empty(len(episodes), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(episodes))
    keys = np.stack([rank[inverse], np.concatenate(times).astype(np.int64)], axis=1)
    _, number = np.unique(keys, axis=0, return_inverse=True)
    return np.split(number.reshape(-1), np.cumsum([len(ids) for ids in episode_ids])[:-1])


Part = TypeVar("Part")


class Pieces(Sequence[Part]):
    """Consecutive pieces of something; each is made, as views, when it is asked for.

    It reads like a list; `list(pieces)` makes all of them.
    """

    __slots__ = ("_bounds", "_take")

    def __init__(self, take: Callable[[slice], Part], bounds: np.ndarray) -> None:
        self._take, self._bounds = take, bounds

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @overload
    def __getitem__(self, index: int) -> Part: ...
    @overload
    def __getitem__(self, index: slice) -> list[Part]: ...
    def __getitem__(self, index: int | slice) -> Part | list[Part]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        index = range(len(self))[index]
        return self._take(slice(int(self._bounds[index]), int(self._bounds[index + 1])))

    def __iter__(self) -> Iterator[Part]:
        take = self._take
        return (take(slice(start, stop)) for start, stop in pairwise(self._bounds.tolist()))

    def __repr__(self) -> str:
        return f"Pieces({len(self)})"


# ---- look-back buffers ---------------------------------------------------------------------------------------


def positions_of(
    indices: Indices, lookback: int, stored: int, neg_index_as_lookback: bool, *, fill: bool, name: str
) -> Positions:
    """Return the positions to read or write: an int, a slice inside the column, or an int64 array.

    Negative indices count from the end, or with `neg_index_as_lookback` back from index 0. Without `fill` a slice is
    clipped as Python clips it. With `fill` positions outside stay and mean "filled in".

    Raises:
        IndexError: an int or an item of a list is outside, without `fill`.
    """
    if indices is None:
        return slice(lookback, stored)
    if isinstance(indices, slice):
        return _slice_positions(indices, lookback, stored, neg_index_as_lookback, fill)
    if isinstance(indices, _INTEGERS):
        position = _position(int(indices), lookback, stored, neg_index_as_lookback)
        if not fill and not 0 <= position < stored:
            raise _outside(int(indices), name, lookback, stored)
        return position
    found = [_position(int(index), lookback, stored, neg_index_as_lookback) for index in indices]
    for index, position in zip(indices, found):
        if not fill and not 0 <= position < stored:
            raise _outside(index, name, lookback, stored)
    return np.array(found, dtype=np.int64)


def position_array(
    indices: Indices, lookback: int, stored: int, neg_index_as_lookback: bool, *, fill: bool, name: str
) -> np.ndarray:
    """Return `positions_of` as an int64 array."""
    where = positions_of(indices, lookback, stored, neg_index_as_lookback, fill=fill, name=name)
    return np.arange(stored)[where] if isinstance(where, slice) else np.atleast_1d(np.asarray(where, dtype=np.int64))


def _position(index: int, lookback: int, stored: int, neg_index_as_lookback: bool) -> int:
    return (lookback if index >= 0 or neg_index_as_lookback else stored) + index


def _outside(index: int, name: str, lookback: int, stored: int) -> IndexError:
    return IndexError(
        f"index {index} of {name} is out of range: {stored - lookback} items and {lookback} before them as lookback; "
        "give `fill` to read past the ends"
    )


def _slice_positions(key: slice, lookback: int, stored: int, neg_index_as_lookback: bool, fill: bool) -> Positions:
    """Return the positions of a slice; its open ends stop at the lookback."""
    step = 1 if key.step is None else key.indices(stored)[2]
    first, last = (lookback, stored) if step > 0 else (stored - 1, lookback - 1)
    start = first if key.start is None else _position(int(key.start), lookback, stored, neg_index_as_lookback)
    stop = last if key.stop is None else _position(int(key.stop), lookback, stored, neg_index_as_lookback)
    if fill:
        positions = np.arange(start, stop, step, dtype=np.int64)
        if not len(positions):
            return slice(0, 0)  # a stop before the first item would count from the end
        inside = positions.min() >= 0 and positions.max() < stored
        return slice(start, stop) if inside and step == 1 else positions
    if step > 0:
        return slice(max(start, 0), min(max(stop, 0), stored), step)
    return np.arange(min(start, stored - 1), max(stop, -1), step, dtype=np.int64)


def lookback_steps(len_lookback_buffer: int | Literal["auto"], num_steps: int) -> int:
    """Return how many of the given steps are lookback; `"auto"`: all of them."""
    lookback = num_steps if len_lookback_buffer == "auto" else len_lookback_buffer
    if not isinstance(lookback, int) or not 0 <= lookback <= num_steps:
        raise ValueError(f"len_lookback_buffer={len_lookback_buffer!r}; allowed are 'auto' and 0 to {num_steps}")
    return lookback


def run_of_steps(key: int | slice, num_steps: int) -> tuple[int, int]:
    """Return the first step of a slice and the one after its last; an int is a run of one step.

    Raises:
        IndexError: an int is out of range.
        ValueError: the slice has another step than 1.
    """
    if not isinstance(key, slice):
        if not -num_steps <= key < num_steps:
            raise IndexError(f"step {key} is out of range of an episode of {num_steps} steps")
        start = key % num_steps
        return start, start + 1
    start, stop, step = key.indices(num_steps)
    if step != 1:
        raise ValueError(f"an episode is a run of steps; slice step {step} is not allowed")
    return start, stop


# ---- sequences -----------------------------------------------------------------------------------------------


def sequence_starts(seq_lens: np.ndarray) -> np.ndarray:
    """Return the first row of each sequence in the flat layout, and the number of all rows last: int64 [S + 1]."""
    starts = np.zeros(len(seq_lens) + 1, dtype=np.int64)
    np.cumsum(seq_lens, out=starts[1:])
    return starts


def check_seq_lens(
    seq_lens: np.ndarray, name: str, rows: int, time_major: bool, zero_padded: bool, max_seq_len: int | None
) -> None:
    """Raise `ValueError` unless sequences of these lengths have the `rows` of the column `name`."""
    if seq_lens.ndim != 1 or seq_lens.dtype.kind not in "iu" or (len(seq_lens) and int(seq_lens.min()) < 0):
        raise ValueError(f"seq_lens must be one length, an integer from 0, for each sequence; got {seq_lens}")
    count, longest = len(seq_lens), int(seq_lens.max()) if len(seq_lens) else 0
    if not time_major and not zero_padded:
        if int(seq_lens.sum()) != rows:
            raise ValueError(f"columns {name!r} and 'seq_lens' disagree: {rows} rows, seq_lens sum to {seq_lens.sum()}")
        return
    length = longest if max_seq_len is None else max_seq_len
    if time_major:
        length = rows // count if count else 0
    if length * count != rows or longest > length:
        raise ValueError(
            f"column {name!r} has {rows} rows, which is not {count} sequences padded to {length} "
            f"(the longest has {longest})"
        )


def rows_of_sequences(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the row numbers of the pieces `starts[i] : starts[i] + lengths[i]`, one after another."""
    lengths = np.asarray(lengths, dtype=np.int64)
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(np.asarray(starts, np.int64) - (ends - lengths), lengths)


def pad_leaf(leaf: Leaf, seq_lens: np.ndarray, length: int) -> Leaf:
    """Pad flat rows [sum(seq_lens), ...] to rows [S * length, ...], zeros (None for objects) on the right."""
    rows = rows_of_sequences(np.arange(len(seq_lens)) * length, seq_lens)
    shape = (len(seq_lens) * length, *leaf.shape[1:])
    if isinstance(leaf, torch.Tensor):
        padded = leaf.new_zeros(shape)
        return padded.index_copy(0, torch.from_numpy(rows).to(leaf.device), leaf)
    out = np.full(shape, None, dtype=object) if leaf.dtype == object else np.zeros(shape, dtype=leaf.dtype)
    out[rows] = leaf
    return out


def unpad_leaf(leaf: Leaf, seq_lens: np.ndarray, length: int) -> Leaf:
    """Bring padded rows [S * length, ...] to flat rows [sum(seq_lens), ...]."""
    return index_leaf(leaf, rows_of_sequences(np.arange(len(seq_lens)) * length, seq_lens))


def time_major_to_padded(leaf: Leaf) -> Leaf:
    """Bring [L, S, ...] to [S * L, ...]."""
    swapped = leaf.transpose(0, 1) if isinstance(leaf, torch.Tensor) else leaf.swapaxes(0, 1)
    return swapped.reshape((-1, *leaf.shape[2:]))


def sequence_at(starts: np.ndarray, row: int) -> int:
    """Return the number of the sequence that holds `row`; at the end, the number of all sequences."""
    return int(np.searchsorted(starts[1:], row, side="right")) if row else 0


def index_second(leaf: Leaf, sequences: slice | np.ndarray) -> Leaf:
    """Return sequences of a time-major leaf [L, S, ...]."""
    if isinstance(leaf, torch.Tensor) and not isinstance(sequences, slice):
        return leaf.index_select(1, tensor_index(sequences, leaf))
    return leaf[:, sequences]


def cut_into_sequences(starts: np.ndarray, max_seq_len: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut the columns of time-major data into sequences of at most `max_seq_len` rows that cross no start.

    `starts` `[T, B]` bool marks rows that begin a piece; so does the first row of every column. Each piece is cut
    from its beginning, so that only its last sequence is shorter. Returns for the S sequences, column by column in
    the order of time:

        first     [S] int64 flat row (`t * B + b`) of the first time step; the next ones follow at a distance of B
        lengths   [S] int64
        number    [S] int64 position in its piece, 0 for the sequence that begins it

    Raises `ValueError` for `max_seq_len < 1`.
    """
    check_whole("max_seq_len", max_seq_len, 1)
    num_steps, num_columns = starts.shape
    marks = starts.T.copy()
    marks[:, :1] = True
    begins = np.flatnonzero(marks)
    sizes = np.diff(np.append(begins, marks.size))
    counts = -(-sizes // max_seq_len)
    number = rows_of_sequences(np.zeros_like(counts), counts)
    done = number * max_seq_len
    lengths = np.minimum(np.repeat(sizes, counts) - done, max_seq_len)
    column, t = np.divmod(np.repeat(begins, counts) + done, max(num_steps, 1))
    return t * num_columns + column, lengths, number
