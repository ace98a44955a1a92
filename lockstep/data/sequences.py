"""Arithmetic of variable-length sequences: where they lie, gathering, padding, unpadding.

Three layouts hold `S` sequences: *flat* (one after another, `sum(seq_lens)` rows), *padded* (each filled with
zeros to `L` rows, `S * L` rows) and *time-major* (`[L, S, ...]`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lockstep.data.trees import index_leaf


def sequence_starts(seq_lens: np.ndarray) -> np.ndarray:
    """First row of each sequence in the flat layout, and the number of all rows last: int64 [S + 1]."""
    starts = np.zeros(len(seq_lens) + 1, dtype=np.int64)
    np.cumsum(seq_lens, out=starts[1:])
    return starts


def rows_of_sequences(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Row numbers of the pieces `starts[i] : starts[i] + lengths[i]`, one after another."""
    lengths = np.asarray(lengths, dtype=np.int64)
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(np.asarray(starts, np.int64) - (ends - lengths), lengths)


def pad_leaf(leaf: Any, seq_lens: np.ndarray, length: int) -> Any:
    """Flat rows [sum(seq_lens), ...] -> padded rows [S * length, ...], zeros (None for objects) on the right."""
    rows = padded_rows(seq_lens, length)
    shape = (len(seq_lens) * length, *leaf.shape[1:])
    if isinstance(leaf, torch.Tensor):
        padded = leaf.new_zeros(shape)
        return padded.index_copy(0, torch.from_numpy(rows).to(leaf.device), leaf)
    out = np.full(shape, None, dtype=object) if leaf.dtype == object else np.zeros(shape, dtype=leaf.dtype)
    out[rows] = leaf
    return out


def padded_rows(seq_lens: np.ndarray, length: int) -> np.ndarray:
    """Numbers of the real rows in the padded layout, in order."""
    return rows_of_sequences(np.arange(len(seq_lens), dtype=np.int64) * length, seq_lens)


def unpad_leaf(leaf: Any, seq_lens: np.ndarray, length: int) -> Any:
    """Padded rows [S * length, ...] -> flat rows [sum(seq_lens), ...]."""
    return index_leaf(leaf, padded_rows(seq_lens, length))


def time_major_to_padded(leaf: Any) -> Any:
    """[L, S, ...] -> [S * L, ...]."""
    swapped = leaf.transpose(0, 1) if isinstance(leaf, torch.Tensor) else leaf.swapaxes(0, 1)
    return swapped.reshape((-1, *leaf.shape[2:]))


def cut_into_sequences(starts: np.ndarray, max_seq_len: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cuts the columns of time-major data into sequences of at most `max_seq_len` rows that cross no start.

    `starts` `[T, B]` bool marks rows that begin a piece; so does the first row of every column. Each piece is cut
    from its beginning, so that only its last sequence is shorter. Returns for the S sequences, column by column in
    the order of time:

        first     [S] int64 flat row (`t * B + b`) of the first time step; the next ones follow at a distance of B
        lengths   [S] int64
        number    [S] int64 position in its piece, 0 for the sequence that begins it

    Raises `ValueError` for `max_seq_len < 1`.
    """
    if max_seq_len < 1:
        raise ValueError(f"max_seq_len={max_seq_len}; a sequence has at least 1 row")
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
