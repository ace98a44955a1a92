"""The rows of a buffer, read in another way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from lockstep.replay.buffer import ReplayBuffer
from lockstep.replay.reading import Reader
from lockstep.replay.transfer import CHUNK


def with_whole_returns(buffer: ReplayBuffer, gamma: float) -> ReplayBuffer:
    """The same rows, marks and random numbers, where `rewards` are sums up to the end of the episode, discounted with
    `gamma`.

    `new_obs`, `terminateds` and `truncateds` are those of the episode's last stored row, and `discounts` is `gamma` to
    the number of steps up to there: `return = rewards + discounts * ~terminateds * V(new_obs)`. Nothing is copied.
    To be called with a filled buffer. `ValueError` for one that relabels goals: its rewards are known one by one only.
    """
    if buffer.hindsight is not None:
        raise ValueError("a buffer with hindsight has no returns of whole episodes: goals differ from row to row")
    seen = object.__new__(type(buffer))  # `copy.copy` gives a buffer with rows of its own
    vars(seen).update(vars(buffer))
    seen.options = replace(buffer.options, n_step=buffer.options.rows_each, gamma=gamma)
    seen._reader = Reader(seen._ring, seen._store, seen._shared, seen.options, seen.streams)
    return seen


def column_of(buffer: ReplayBuffer, name: str) -> Any:
    """One stored column [len, ...] (or a tree of them), sub-buffer after sub-buffer, oldest first. A copy."""
    return buffer._store.take(name, buffer._ring.in_order())


def pieces_of(buffer: ReplayBuffer) -> Iterator[dict[str, Any]]:
    """The transitions as they are stored, some thousand at a time, in the order of `column_of`."""
    rows = buffer._ring.in_order()
    for start in range(0, len(rows), CHUNK):
        yield buffer._reader.plain(rows[start : start + CHUNK])
