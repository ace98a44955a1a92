"""`Segments`: the columns of a ring in pieces, of which a checkpoint writes only those that have changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.replay.ring import Ring
from lockstep.replay.storage import ColumnStore
from lockstep.state import SealedArrays

MIN_BYTES = 4 << 20
MAX_SEGMENTS = 256
PREFIX = "rows_"


class Segments:
    """Stretches of positions, each about `MIN_BYTES` or more, at most `MAX_SEGMENTS` of them.

    A stretch in which no row was written since it was last given out comes as the same object, views on the columns,
    which the checkpoint before lends its file (`SealedArrays`).
    """

    def __init__(self, store: ColumnStore, ring: Ring) -> None:
        self.store, self.ring = store, ring
        each = max(1, sum(leaf.array[:1].nbytes for leaf in store.leaves) * ring.num_buffers)
        self.length = max(1, MIN_BYTES // each, -(-ring.size // MAX_SEGMENTS))
        """positions in one stretch"""
        self._given: dict[int, SealedArrays] = {}
        self._generation = -1
        self._written = ring.written.copy()
        self._next = np.zeros(ring.num_buffers, np.int64)

    def give(self) -> dict[str, SealedArrays]:
        """The stored rows in pieces by name, valid until the buffer changes."""
        ring = self.ring
        self._forget_changed()
        used = int(ring.count.max(initial=0))
        pieces = {}
        for number, start in enumerate(range(0, used, self.length)):
            stop = min(start + self.length, used)
            if number not in self._given:
                rows = slice(start * ring.num_buffers, stop * ring.num_buffers)
                self._given[number] = SealedArrays({leaf.path: leaf.array[rows] for leaf in self.store.leaves})
            pieces[f"{PREFIX}{number:05d}"] = self._given[number]
        return pieces

    def _forget_changed(self) -> None:
        ring = self.ring
        new = ring.written - self._written
        if self._generation != ring.generation or (new >= ring.size).any():
            self._given.clear()
        else:
            for b in np.flatnonzero(new):
                positions = np.arange(self._next[b], self._next[b] + new[b]) % ring.size
                for number in np.unique(positions // self.length).tolist():
                    self._given.pop(number, None)
        self._generation, self._written = ring.generation, ring.written.copy()
        self._next = np.where(ring.newest < 0, 0, (ring.newest // ring.num_buffers + 1) % ring.size)

    @staticmethod
    def join(state: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
        """The whole columns, as `ColumnStore.get_state` gives them, from the pieces in a state."""
        pieces = [state[name] for name in sorted(name for name in state if name.startswith(PREFIX))]

        def build(path: str, tree: Any) -> Any:
            if isinstance(tree, dict):
                return {key: build(f"{path}/{key}", part) for key, part in tree.items()}
            if isinstance(tree, tuple):
                return tuple(build(f"{path}/{i}", part) for i, part in enumerate(tree))
            shape, dtype = tree
            if not pieces:
                return np.zeros((0, *shape), dtype)
            return pieces[0][path] if len(pieces) == 1 else np.concatenate([piece[path] for piece in pieces])

        return {name: build(name, tree) for name, tree in schema.items()}
