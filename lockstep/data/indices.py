"""Index arithmetic on columns: masks and negative indices, look-back buffers, and variable-length sequences.

`S` sequences are stored in one of three layouts:

- *flat*: one after another, `sum(seq_lens)` rows,
- *padded*: each filled with zeros to `L` rows, `S * L` rows,
- *time-major*: `[L, S, ...]`, filled as well.

A column of an episode has `lookback` items before the first step of the episode. *Positions* count from the first
stored item. *Indices* are the numbers that users pass: they count from the first step of the episode, and negative ones
from the end or back into the lookback.
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
    """Return the rows that a mask or a list of integers selects, as int64 row numbers that are not negative.

    Raises:
        TypeError: `key` is neither a mask nor a list of integers.
        IndexError: a row is out of range, or the mask has another length than `num_rows`.
    """
    if isinstance(key, torch.Tensor):
        key = key.cpu().numpy()
    if isinstance(key, list) and not key:
        key = np.empty(0, dtype=np.int64)  # numpy would make floats of an empty list

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
    """Return the numbers of the rows whose id differs from the id of the row before."""
    words = ids.itemsize // 8
    if ids.dtype.kind in "US" and ids.ndim == 1 and words and ids.itemsize % 8 == 0 and ids.flags.c_contiguous:
        # Strings of whole 64-bit words are compared as numbers, which is three times as fast. A row may differ in
        # several words: only the first of them counts.
        bits = ids.view(np.uint64)
        rows_of_words = np.flatnonzero(bits[words:] != bits[:-words]) // words
        return rows_of_words[np.diff(rows_of_words, prepend=-1) > 0] + 1

    changed = ids[1:] != ids[:-1]
    if changed.ndim > 1:
        changed = changed.any(axis=tuple(range(1, changed.ndim)))
    return np.flatnonzero(changed) + 1


def episode_cuts(columns: Mapping[str, Leaf], key: str | None) -> np.ndarray:
    """Return the rows at which new episodes begin, without row 0; see `SampleBatch.split_by_episode` for `key`.

    Raises:
        KeyError: no column tells the episodes apart.
    """
    if key is None and Columns.EPS_ID not in columns:
        if columns.get(Columns.DONES) is None:
            raise KeyError(
                f"no 'eps_id', 'terminateds' or 'truncateds' tells episodes apart; columns are {sorted(columns)}"
            )
        key = Columns.DONES

    ids = to_numpy_leaf(columns[key or Columns.EPS_ID])
    if key in (Columns.DONES, Columns.TERMINATEDS, Columns.TRUNCATEDS):
        return np.flatnonzero(ids[:-1]) + 1  # a flag marks the last row of an episode
    cuts = changes_in(ids)
    if key is None and Columns.AGENT_ID in columns:
        # Agents of one module share the `eps_id`, and each of them has its own rows.
        cuts = np.union1d(cuts, changes_in(to_numpy_leaf(columns[Columns.AGENT_ID])))
    return cuts


def number_steps(episode_ids: Sequence[np.ndarray], times: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return, for each row of several batches, the number of its environment step.

    Steps are numbered from 0 in order of (episode, t). Episodes are ordered by their first appearance.
    """
    episodes, first, inverse = np.unique(np.concatenate(episode_ids), return_index=True, return_inverse=True)
    # `np.unique` orders episodes by their id: `rank` is the order of their first rows.
    rank = np.empty(len(episodes), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(episodes))

    keys = np.stack([rank[inverse], np.concatenate(times).astype(np.int64)], axis=1)
    _, number = np.unique(keys, axis=0, return_inverse=True)
    ends = np.cumsum([len(ids) for ids in episode_ids])
    return np.split(number.reshape(-1), ends[:-1])


Part = TypeVar("Part")


class Pieces(Sequence[Part]):
    """Sequence of consecutive pieces of a batch. Each piece is made, as views, when it is indexed.

    Args:
        take: Function that returns the rows of a slice.
        bounds: First row of each piece, and the end of the last one.
    """

    __slots__ = ("_bounds", "_take")

    def __init__(self, take: Callable[[slice], Part], bounds: np.ndarray) -> None:
        self._take = take
        self._bounds = bounds

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
    indices: Indices, lookback: int, num_stored: int, neg_index_as_lookback: bool, *, fill: bool, name: str
) -> Positions:
    """Return the positions of a user's indices: an int, a slice inside the column, or an int64 array.

    Args:
        indices: Index, slice or indices; None for all items after the lookback.
        lookback: Number of items before index 0.
        num_stored: Number of stored items, lookback included.
        neg_index_as_lookback: Count negative indices back from index 0 instead of from the end.
        fill: Whether the caller fills positions outside of the column. Then they are returned as they are; without
            `fill`, a slice is clipped like a slice of a list.
        name: Name of the column in errors.

    Raises:
        IndexError: an index is out of range, and `fill` is False.
    """
    if indices is None:
        return slice(lookback, num_stored)
    if isinstance(indices, slice):
        return _slice_positions(indices, lookback, num_stored, neg_index_as_lookback, fill)
    if isinstance(indices, _INTEGERS):
        position = _position(int(indices), lookback, num_stored, neg_index_as_lookback)
        if not fill and not 0 <= position < num_stored:
            raise _out_of_range(int(indices), name, lookback, num_stored)
        return position

    positions = [_position(int(index), lookback, num_stored, neg_index_as_lookback) for index in indices]
    for index, position in zip(indices, positions):
        if not fill and not 0 <= position < num_stored:
            raise _out_of_range(index, name, lookback, num_stored)
    return np.array(positions, dtype=np.int64)


def position_array(
    indices: Indices, lookback: int, num_stored: int, neg_index_as_lookback: bool, *, fill: bool, name: str
) -> np.ndarray:
    """Return the positions of `positions_of` as an int64 array."""
    positions = positions_of(indices, lookback, num_stored, neg_index_as_lookback, fill=fill, name=name)
    if isinstance(positions, slice):
        return np.arange(num_stored)[positions]
    return np.atleast_1d(np.asarray(positions, dtype=np.int64))


def _position(index: int, lookback: int, num_stored: int, neg_index_as_lookback: bool) -> int:
    return (lookback if index >= 0 or neg_index_as_lookback else num_stored) + index


def _out_of_range(index: int, name: str, lookback: int, num_stored: int) -> IndexError:
    return IndexError(
        f"index {index} of {name} is out of range: {num_stored - lookback} items and {lookback} before them as "
        "lookback; give `fill` to read past the ends"
    )


def _slice_positions(
    key: slice, lookback: int, num_stored: int, neg_index_as_lookback: bool, fill: bool
) -> slice | np.ndarray:
    """Return the positions of a slice. An end that is left open stops at the lookback."""
    step = 1 if key.step is None else key.indices(num_stored)[2]
    start, stop = (lookback, num_stored) if step > 0 else (num_stored - 1, lookback - 1)
    if key.start is not None:
        start = _position(int(key.start), lookback, num_stored, neg_index_as_lookback)
    if key.stop is not None:
        stop = _position(int(key.stop), lookback, num_stored, neg_index_as_lookback)

    if fill:
        positions = np.arange(start, stop, step, dtype=np.int64)
        if not len(positions):
            return slice(0, 0)  # slice(start, stop) might not be empty: a negative stop counts from the end
        is_inside = positions.min() >= 0 and positions.max() < num_stored
        return slice(start, stop) if is_inside and step == 1 else positions

    # Clipped by hand, since Python would read a negative position as one from the end.
    if step > 0:
        return slice(max(start, 0), min(max(stop, 0), num_stored), step)
    return np.arange(min(start, num_stored - 1), max(stop, -1), step, dtype=np.int64)


def lookback_steps(len_lookback_buffer: int | Literal["auto"], num_steps: int) -> int:
    """Return the number of lookback steps among the first `num_steps` steps of an episode; all of them for `"auto"`.

    Raises:
        ValueError: `len_lookback_buffer` is negative, or larger than `num_steps`.
    """
    lookback = num_steps if len_lookback_buffer == "auto" else len_lookback_buffer
    if not isinstance(lookback, int) or not 0 <= lookback <= num_steps:
        raise ValueError(f"len_lookback_buffer={len_lookback_buffer!r}; allowed are 'auto' and 0 to {num_steps}")
    return lookback


def run_of_steps(key: int | slice, num_steps: int) -> tuple[int, int]:
    """Return `(start, stop)` of the steps that a slice of an episode selects. An int selects one step.

    Raises:
        IndexError: the int is out of range.
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
    """Return the first row of each sequence in the flat layout, followed by the number of all rows; int64 `[S + 1]`."""
    starts = np.zeros(len(seq_lens) + 1, dtype=np.int64)
    np.cumsum(seq_lens, out=starts[1:])
    return starts


def check_seq_lens(
    seq_lens: np.ndarray, name: str, rows: int, time_major: bool, zero_padded: bool, max_seq_len: int | None
) -> None:
    """Raise `ValueError` unless sequences of these lengths fit the `rows` rows of the column `name`."""
    if seq_lens.ndim != 1 or seq_lens.dtype.kind not in "iu" or (len(seq_lens) and int(seq_lens.min()) < 0):
        raise ValueError(f"seq_lens must be one length, an integer from 0, for each sequence; got {seq_lens}")

    if not time_major and not zero_padded:
        if int(seq_lens.sum()) != rows:
            raise ValueError(f"columns {name!r} and 'seq_lens' disagree: {rows} rows, seq_lens sum to {seq_lens.sum()}")
        return

    count = len(seq_lens)
    longest = int(seq_lens.max()) if count else 0
    length = longest if max_seq_len is None else max_seq_len
    if time_major:
        # The first axis gives the length, whatever `max_seq_len` says.
        length = rows // count if count else 0
    if length * count != rows or longest > length:
        raise ValueError(
            f"column {name!r} has {rows} rows, which is not {count} sequences padded to {length} "
            f"(the longest has {longest})"
        )


def rows_of_sequences(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the row numbers of the pieces `starts[i] : starts[i] + lengths[i]`, one after another; int64."""
    lengths = np.asarray(lengths, dtype=np.int64)
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    # In the output, piece i begins at ends[i] - lengths[i]: the difference to its start is added to each of its rows.
    offsets = np.asarray(starts, np.int64) - (ends - lengths)
    return np.arange(total) + np.repeat(offsets, lengths)


def pad_leaf(leaf: Leaf, seq_lens: np.ndarray, length: int) -> Leaf:
    """Return flat rows `[sum(seq_lens), ...]` as padded rows `[S * length, ...]`.

    Sequences are filled on the right with zeros, or with None for objects.
    """
    rows = rows_of_sequences(np.arange(len(seq_lens)) * length, seq_lens)
    shape = (len(seq_lens) * length, *leaf.shape[1:])
    if isinstance(leaf, torch.Tensor):
        # Out of place, so that gradients flow through the padding.
        zeros = leaf.new_zeros(shape)
        return zeros.index_copy(0, torch.from_numpy(rows).to(leaf.device), leaf)

    padded = np.full(shape, None, dtype=object) if leaf.dtype == object else np.zeros(shape, dtype=leaf.dtype)
    padded[rows] = leaf
    return padded


def unpad_leaf(leaf: Leaf, seq_lens: np.ndarray, length: int) -> Leaf:
    """Return padded rows `[S * length, ...]` as flat rows `[sum(seq_lens), ...]`."""
    return index_leaf(leaf, rows_of_sequences(np.arange(len(seq_lens)) * length, seq_lens))


def time_major_to_padded(leaf: Leaf) -> Leaf:
    """Return a time-major leaf `[L, S, ...]` as padded rows `[S * L, ...]`."""
    swapped = leaf.transpose(0, 1) if isinstance(leaf, torch.Tensor) else leaf.swapaxes(0, 1)
    return swapped.reshape((-1, *leaf.shape[2:]))


def sequence_at(starts: np.ndarray, row: int) -> int:
    """Return the number of the sequence that holds `row`; S if `row` is the number of all rows.

    `starts` are those of `sequence_starts`.
    """
    return int(np.searchsorted(starts[1:], row, side="right")) if row else 0


def index_second(leaf: Leaf, sequences: slice | np.ndarray) -> Leaf:
    """Return the given sequences of a time-major leaf `[L, S, ...]`: a view for a slice, else a gather."""
    if isinstance(leaf, torch.Tensor) and not isinstance(sequences, slice):
        return leaf.index_select(1, tensor_index(sequences, leaf))
    return leaf[:, sequences]


def cut_into_sequences(starts: np.ndarray, max_seq_len: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut the environment columns of time-major data into sequences of at most `max_seq_len` rows.

    Args:
        starts: Rows that begin a piece, bool `[T, B]`. The first row of each environment begins one as well. A
            sequence never crosses the start of a piece. Each piece is cut from its beginning, so that only its last
            sequence is shorter.
        max_seq_len: Largest length of a sequence.

    Returns:
        Three int64 arrays `[S]` for the S sequences, environment by environment in order of time:

        - first: flat row `t * B + b` of the first step of the sequence. The next steps follow in distances of B.
        - lengths: number of steps.
        - number: position of the sequence in its piece; 0 for the one that begins the piece.

    Raises:
        ValueError: `max_seq_len` is below 1.
    """
    check_whole("max_seq_len", max_seq_len, 1)
    num_steps, num_envs = starts.shape
    marks = starts.T.copy()  # environment-major, so that a piece is a run of the flattened marks
    marks[:, :1] = True

    piece_begins = np.flatnonzero(marks)
    piece_lengths = np.diff(np.append(piece_begins, marks.size))
    num_sequences = -(-piece_lengths // max_seq_len)  # of each piece, rounded up

    number = rows_of_sequences(np.zeros_like(num_sequences), num_sequences)
    offset = number * max_seq_len  # of each sequence in its piece
    lengths = np.minimum(np.repeat(piece_lengths, num_sequences) - offset, max_seq_len)
    env, t = np.divmod(np.repeat(piece_begins, num_sequences) + offset, max(num_steps, 1))
    return t * num_envs + env, lengths, number
