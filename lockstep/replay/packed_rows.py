"""`PackedRows`: the short way out of a buffer for transitions that are given out as they were stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lockstep.data.columns import Columns
from lockstep.replay.ring import Ring
from lockstep.replay.storage import ALIGNMENT, ColumnStore

MAX_BYTES = 4096
"""larger rows are gathered as fast column by column"""


class PackedRows:
    """Gathers the columns of a batch in one compiled call, into one piece of memory.

    What it gives is what a gather of each column would have given.
    """

    def __init__(self, ring: Ring, store: ColumnStore) -> None:
        self._ring, self._kernel, self._memory = ring, ring.kernels.gather, store.memory
        self._layout = store.layout
        self._names = [*store.trees, Columns.TERMINATEDS, Columns.TRUNCATEDS]
        self._rows = [(leaf.dtype, leaf.shape) for leaf in store.leaves] + [(np.dtype(np.bool_), ())] * 2
        self._number = -1
        self._kind, self._places = np.dtype([]), np.zeros(0, np.int64)
        """memory of a batch of `_number` rows, and where in it each column begins"""

    @classmethod
    def of(cls, ring: Ring, store: ColumnStore) -> PackedRows | None:
        """None for files, and for rows that are nested, large or of no bytes."""
        sizes = store.layout[:, 1]
        plain = len(store.memory) and all(len(leaf.keys) == 1 for leaf in store.leaves)
        return cls(ring, store) if plain and sizes.all() and sizes.sum() <= MAX_BYTES else None

    def take(self, rows: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
        """These columns, `terminateds` and `truncateds` among them, of rows int64 [N]."""
        if len(rows) != self._number:
            self._lay_out(len(rows))
        memory = np.empty(self._kind.itemsize, np.uint8)
        self._kernel(rows, self._ring.flags, self._memory, self._layout, self._places, memory)
        batch = np.ndarray((), self._kind, memory)
        return {name: batch[name] for name in names}

    def _lay_out(self, number: int) -> None:
        """For batches of `number` rows."""
        sizes = np.array([dtype.itemsize * int(np.prod(shape)) * number for dtype, shape in self._rows])
        rooms = -(-sizes // ALIGNMENT) * ALIGNMENT
        self._places = np.cumsum(rooms) - rooms
        formats = [(dtype, (number, *shape)) for dtype, shape in self._rows]
        kind: Any = {"names": self._names, "formats": formats, "offsets": self._places, "itemsize": int(rooms.sum())}
        self._kind = np.dtype(kind)
        self._number = number
