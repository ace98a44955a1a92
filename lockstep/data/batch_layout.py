"""How the columns of a batch fit together: counting, checking, padding.

These functions take a `SampleBatch` as a mapping with the attributes `zero_padded`, `time_major` and
`max_seq_len`, and treat columns by their layout.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from lockstep.data.columns import Columns, is_state_column
from lockstep.data.sequences import pad_leaf, time_major_to_padded, unpad_leaf
from lockstep.data.trees import map_tree, named_leaves, to_numpy_leaf

_SEQ_LENS = Columns.SEQ_LENS


def seq_lens_of(batch: Any) -> np.ndarray | None:
    """`seq_lens` as a numpy array, or None."""
    seq_lens = dict.get(batch, _SEQ_LENS)
    return None if seq_lens is None else to_numpy_leaf(seq_lens)


def leaf_rows(leaf: Any, time_major: bool) -> int:
    """Rows of one leaf; L * S where time comes first."""
    if time_major and leaf.ndim > 1:
        return int(leaf.shape[0]) * int(leaf.shape[1])
    return int(leaf.shape[0])


def column_rows(name: str, column: Any, time_major: bool = False) -> int | None:
    """Rows of a column, None for an empty tree; `ValueError` where the leaves of a tree differ."""
    if isinstance(column, np.ndarray | torch.Tensor):
        return leaf_rows(column, time_major)
    first: tuple[str, int] | None = None
    for path, leaf in named_leaves(name, column):
        rows = leaf_rows(leaf, time_major)
        if first is None:
            first = path, rows
        elif rows != first[1]:
            raise ValueError(f"columns {first[0]!r} and {path!r} have {first[1]} and {rows} rows")
    return None if first is None else first[1]


def is_per_sequence(batch: Any, name: str, num_sequences: int | None) -> bool:
    """Whether a column has one row for each sequence rather than one for each step."""
    if num_sequences is None:
        return False
    if name == _SEQ_LENS:
        return True
    return is_state_column(name) and column_rows(name, dict.__getitem__(batch, name)) == num_sequences


def num_sequences_of(batch: Any) -> int | None:
    """Number of sequences, or None without `seq_lens`."""
    seq_lens = dict.get(batch, _SEQ_LENS)
    return None if seq_lens is None else int(seq_lens.shape[0])


def count_rows(batch: Any) -> int:
    """Real rows: the sum of `seq_lens`, else the rows of the first column."""
    seq_lens = dict.get(batch, _SEQ_LENS)
    if seq_lens is not None:
        return int(seq_lens.sum())
    for name, column in batch.items():
        rows = column_rows(name, column, batch.time_major and not is_state_column(name))
        if rows is not None:
            return rows
    return 0


def check_rows(batch: Any) -> None:
    """Raises `ValueError` with two column names and their lengths unless all columns fit together."""
    num_sequences = num_sequences_of(batch)
    first: tuple[str, int] | None = None
    for name, column in batch.items():
        if is_per_sequence(batch, name, num_sequences):
            continue
        rows = column_rows(name, column, batch.time_major)
        if rows is None:
            continue
        if first is None:
            first = name, rows
        elif rows != first[1]:
            raise ValueError(f"columns {first[0]!r} and {name!r} have {first[1]} and {rows} rows")
    if num_sequences is not None and first is not None:
        _check_seq_lens(batch, num_sequences, *first)


def _check_seq_lens(batch: Any, num_sequences: int, name: str, rows: int) -> None:
    seq_lens = seq_lens_of(batch)
    if seq_lens is None or seq_lens.ndim != 1 or seq_lens.dtype.kind not in "iu":
        raise ValueError("seq_lens must be one integer for each sequence")
    if num_sequences and int(seq_lens.min()) < 0:
        raise ValueError(f"seq_lens[{int(seq_lens.argmin())}] is {int(seq_lens.min())}; a length cannot be negative")
    longest = int(seq_lens.max()) if num_sequences else 0
    if batch.time_major:
        length = rows // num_sequences if num_sequences else 0
    elif batch.zero_padded:
        length = batch.max_seq_len or 0
    else:
        if int(seq_lens.sum()) != rows:
            raise ValueError(f"columns {name!r} and 'seq_lens' disagree: {rows} rows, seq_lens sum to {seq_lens.sum()}")
        return
    if length * num_sequences != rows or longest > length:
        raise ValueError(
            f"column {name!r} has {rows} rows, which is not {num_sequences} sequences padded to {length} "
            f"(the longest has {longest})"
        )


def check_column(batch: Any, name: str) -> None:
    """The check of one column just set, against the first other column."""
    if _SEQ_LENS in batch:
        check_rows(batch)
        return
    rows = column_rows(name, dict.__getitem__(batch, name), batch.time_major)
    for other, column in batch.items():
        if other == name:
            continue
        expected = column_rows(other, column, batch.time_major)
        if expected is None or rows is None:
            continue
        if rows != expected:
            raise ValueError(f"columns {other!r} and {name!r} have {expected} and {rows} rows")
        return


def right_zero_pad(batch: Any, length: int, exclude_states: bool) -> None:
    """Flat (or padded otherwise) sequences -> padded to `length`, in place."""
    seq_lens = seq_lens_of(batch)
    if seq_lens is None:
        raise ValueError("right_zero_pad needs a column 'seq_lens'; this batch has none")
    if len(seq_lens) and int(seq_lens.max()) > length:
        raise ValueError(f"max_seq_len={length} is less than the longest sequence ({int(seq_lens.max())} rows)")
    if batch.zero_padded or batch.time_major:
        unpad(batch)
    ones = np.ones_like(seq_lens)
    for name, column in list(batch.items()):
        if name == _SEQ_LENS:
            continue
        per_sequence = is_per_sequence(batch, name, len(seq_lens))
        if per_sequence and exclude_states:
            continue
        lengths = ones if per_sequence else seq_lens
        dict.__setitem__(batch, name, map_tree(partial(pad_leaf, seq_lens=lengths, length=length), column))
    batch.zero_padded = True
    batch.max_seq_len = length


def unpad(batch: Any) -> None:
    """Padded or time-major sequences -> flat rows, in place."""
    if not (batch.zero_padded or batch.time_major):
        return
    seq_lens = seq_lens_of(batch)
    columns: dict[str, Any] = {}
    for name, column in batch.items():
        if is_per_sequence(batch, name, None if seq_lens is None else len(seq_lens)):
            columns[name] = column
            continue
        if batch.time_major:
            length = next((int(leaf.shape[0]) for _, leaf in named_leaves(name, column)), 0)
            column = map_tree(time_major_to_padded, column)
        else:
            length = batch.max_seq_len or 0
        if seq_lens is not None:
            lengths = np.ones_like(seq_lens) if is_state_column(name) and not batch.time_major else seq_lens
            column = map_tree(partial(unpad_leaf, seq_lens=lengths, length=length), column)
        columns[name] = column
    dict.update(batch, columns)
    batch.zero_padded = batch.time_major = False
    batch.max_seq_len = None


def as_mapping(given: Any) -> dict[str, Any]:
    """`given` as a dict of columns; `TypeError` for what is none."""
    try:
        return {} if given is None else dict(given)
    except (TypeError, ValueError):
        raise TypeError(
            f"a batch is made from columns, SampleBatch({{'obs': ...}}) or SampleBatch(obs=...), not from {given!r:.80}"
        ) from None


def known_device(device: Any) -> torch.device:
    """`ValueError` for a name that torch does not know."""
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f"device={device!r} is not known; give one such as 'cpu' or 'cuda:0'") from None
