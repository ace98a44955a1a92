"""`PackedRows`: the short way out of a buffer for transitions that are given out as they were stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lockstep.data.columns import Columns
from lockstep.replay.ring import Ring
from lockstep.replay.storage import ALIGNMENT, ColumnStore

MAX_BYTES, MAX_BATCH_BYTES = 4096, 1 << 28
"""larger rows, and larger batches, are gathered as fast column by column"""


class PackedRows:
    """Gathers the columns of a batch in one compiled call, into one piece of memory.

    What it gives is what a gather of each column would have given.
    """

    def __init__(self, ring: Ring, store: ColumnStore) -> None:
        self._ring, self._kernel, self._memory = ring, ring.kernels.gather, store.memory
        self._layout = store.layout
        self._names = [*store.trees, Columns.TERMINATEDS, Columns.TRUNCATEDS]
        self._rows = [(leaf.dtype, leaf.shape) for leaf in store.leaves] + [(np.dtype(np.bool_), ())] * 2
        self.most_rows = MAX_BATCH_BYTES // MAX_BYTES
        self._plan = self._laid_out(0)
        """number of rows of a batch, its memory, and where in it each column begins (one tuple: buffers may be read by
        several threads)"""

    @classmethod
    def of(cls, ring: Ring, store: ColumnStore) -> PackedRows | None:
        """None for files, and for rows that are nested, large or of no bytes."""
        sizes = store.layout[:, 1]
        plain = len(store.memory) and all(len(leaf.keys) == 1 for leaf in store.leaves)
        return cls(ring, store) if plain and sizes.all() and sizes.sum() <= MAX_BYTES else None

    def take(self, rows: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
        """These columns, `terminateds` and `truncateds` among them, of at most `most_rows` rows, int64 [N]."""
        plan = self._plan
        if len(rows) != plan[0]:
            plan = self._plan = self._laid_out(len(rows))
        _, kind, places = plan
        memory = np.empty(kind.itemsize, np.uint8)
        self._kernel(rows, self._ring.flags, self._memory, self._layout, places, memory)
        batch = np.ndarray((), kind, memory)
        return {name: batch[name] for name in names}

    def _laid_out(self, number: int) -> tuple[int, np.dtype[Any], np.ndarray]:
        """For batches of `number` rows."""
        sizes = np.array([dtype.itemsize * int(np.prod(shape)) * number for dtype, shape in self._rows])
        rooms = -(-sizes // ALIGNMENT) * ALIGNMENT
        places = np.cumsum(rooms) - rooms
        formats = [(dtype, (number, *shape)) for dtype, shape in self._rows]
        kind: Any = {"names": self._names, "formats": formats, "offsets": places, "itemsize": int(rooms.sum())}
        return number, np.dtype(kind), places
