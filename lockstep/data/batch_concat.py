"""Batches one after another: one allocation for each column, and no look at each batch where all are alike."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any

import numpy as np

from lockstep.data.batch_layout import is_per_sequence, num_sequences_of
from lockstep.data.columns import Columns
from lockstep.data.trees import concat_leaves, zip_trees

_LAYOUT = attrgetter("zero_padded", "time_major", "_max_seq_len")
_GRAD_UPDATES = attrgetter("num_grad_updates")


def concat(batches: Sequence[Any], on_missing: str) -> tuple[dict[str, Any], Any]:
    """Joined columns, and the batch whose layout they have: the first one that has rows, or the first of all."""
    if not batches:
        return {}, None
    gathered = _gather_alike(batches)
    if gathered is not None:
        return {name: _join(batches[0], name, parts) for name, parts in gathered.items()}, batches[0]
    filled = [(position, batch) for position, batch in enumerate(batches) if len(batch)]
    if not filled:
        return dict(batches[0]), batches[0]
    _check_same_layout(filled)
    first = filled[0][1]
    columns = {
        name: _join(first, name, [dict.__getitem__(batch, name) for _, batch in filled])
        for name in _common_names(filled, on_missing)
    }
    return columns, first


def _gather_alike(batches: Sequence[Any]) -> dict[str, list[Any]] | None:
    """Parts by column where all batches have rows, one layout and the same columns; None where a closer look is due."""
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


def _join(like: Any, name: str, parts: list[Any]) -> Any:
    """One column of all batches, which lie side by side (axis 1) where time comes first."""
    axis = int(like.time_major and not is_per_sequence(like, name, num_sequences_of(like)))
    if isinstance(parts[0], dict | tuple):
        return zip_trees(lambda leaves: concat_leaves(leaves, name, axis), parts, name)
    return concat_leaves(parts, name, axis)


def max_seq_len_of(batches: Sequence[Any], joined: Any) -> int | None:
    """The largest `max_seq_len` of the batches, None where there are no sequences."""
    if Columns.SEQ_LENS not in joined and joined._max_seq_len is None:
        return None
    return max((batch.max_seq_len for batch in batches if batch.max_seq_len is not None), default=None)


def mean_grad_updates(batches: Sequence[Any]) -> float | None:
    """The mean of `num_grad_updates` over the rows of the batches that know it, None where none does."""
    if set(map(_GRAD_UPDATES, batches)) <= {None}:
        return None
    known = [(len(batch), batch.num_grad_updates) for batch in batches if batch.num_grad_updates is not None]
    rows = sum(count for count, _ in known)
    return sum(count * value for count, value in known) / rows if rows else known[0][1]


def _check_same_layout(filled: Sequence[tuple[int, Any]]) -> None:
    position, first = filled[0]
    marks = ["zero_padded", "time_major", *["max_seq_len"] * first.zero_padded]
    for other_position, other in filled[1:]:
        for mark in marks:
            if getattr(first, mark) != getattr(other, mark):
                raise ValueError(
                    f"batches of different layout: {mark} is {getattr(first, mark)} at position {position} "
                    f"and {getattr(other, mark)} at position {other_position}; use unpad() or right_zero_pad() first"
                )


def _common_names(filled: Sequence[tuple[int, Any]], on_missing: str) -> list[str]:
    first = filled[0][1]
    if all(batch.keys() == first.keys() for _, batch in filled):
        return list(first)
    every = list(dict.fromkeys(name for _, batch in filled for name in batch))
    if on_missing == "drop":
        return [name for name in every if all(name in batch for _, batch in filled)]
    for name in every:
        for position, batch in filled:
            if name not in batch:
                raise KeyError(
                    f"column {name!r} is missing in the batch at position {position}, which has {sorted(batch)}; "
                    "on_missing='drop' keeps the common columns"
                )
    return every
