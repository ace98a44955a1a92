"""`OfflineRows`: recorded rows without an order in time, drawn in passes over all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from lockstep.data.columns import DEFAULT_MODULE_ID
from lockstep.data.digests import digest_of_rows
from lockstep.data.files.dataset import OfflineDataset
from lockstep.data.row_source import RowSource
from lockstep.data.sample_batch import SampleBatch, concat_samples
from lockstep.state.streams import RandomStreams

ROWS_AT_ONCE = 1 << 16
"""Rows of which a digest is taken in one piece."""


class Rows(Protocol):
    """A `SampleBatch` or an `OfflineDataset`."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: Any) -> Any: ...


class OfflineRows(RowSource):
    """The rows of a `SampleBatch`, or of an `OfflineDataset` on disk, without an order in time and with any columns.

    `sample(n)` gives the next `n` rows of an endless sequence of passes. Each pass is a new permutation of all rows, so
    that every row is seen once before any is seen again. `convert(batch) -> batch` is applied to what is given out.
    """

    def __init__(self, rows: Rows, *, seed: int = 0, convert: Callable[[SampleBatch], SampleBatch] | None = None):
        self.rows = rows
        self.convert = convert
        self.seed = seed
        self.drawn = 0
        """rows given out so far"""
        self._pass = (seed, -1)
        """seed and number of the pass that `_order` is of; -1: none yet"""
        self._order = np.empty(0, np.int64)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def __repr__(self) -> str:
        return f"OfflineRows({self.rows!r})"

    def digest(self) -> str:
        """Return the SHA-256 of every row; of rows on disk that of their files, which is kept beside them."""
        if isinstance(self.rows, OfflineDataset):
            return self.rows.digest()
        starts = range(0, len(self), ROWS_AT_ONCE)
        return digest_of_rows(self.rows[start : start + ROWS_AT_ONCE] for start in starts)

    def sample(self, n: int) -> SampleBatch:
        """Return the next `n` rows. `ValueError` for n < 1 or where there is no row."""
        if n < 1 or not len(self):
            raise ValueError(f"{n} rows cannot be drawn of {len(self)}")
        pieces = []
        position = self.drawn
        self.drawn += n
        while n:
            number, start = divmod(position, len(self))
            taken = min(n, len(self) - start)
            pieces.append(self[self._permutation(number)[start : start + taken]])
            position += taken
            n -= taken
        return pieces[0] if len(pieces) == 1 else concat_samples(pieces)

    def draw(self, n: int) -> dict[str, SampleBatch]:
        return {DEFAULT_MODULE_ID: self.sample(n) if n else self[self.permutation()]}

    def seed_streams(self, seed: int) -> None:
        self.seed = RandomStreams(seed).seed("replay")

    def permutation(self) -> np.ndarray:
        """Return the numbers of all rows in the order of the next pass, int64 [len]; the pass counts as given out."""
        number = -(-self.drawn // len(self))
        self.drawn = (number + 1) * len(self)
        return self._permutation(number)

    def indices(self) -> np.ndarray:
        """Return the numbers of all rows in their order, int64 [len]."""
        return np.arange(len(self))

    def __getitem__(self, index: np.ndarray) -> SampleBatch:
        """Return rows by number, int [N]."""
        batch: SampleBatch = self.rows[index]
        return batch if self.convert is None else self.convert(batch)

    def _permutation(self, number: int) -> np.ndarray:
        if (self.seed, number) != self._pass:
            self._pass = (self.seed, number)
            self._order = np.random.default_rng(self._pass).permutation(len(self))
        return self._order

    def get_state(self) -> dict[str, Any]:
        """Return where the sequence stands."""
        return {"drawn": self.drawn, "seed": self.seed, "num_rows": len(self)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on as from where the state was taken. `ValueError` for a state of other rows or another seed."""
        for name, mine in (("seed", self.seed), ("num_rows", len(self))):
            if int(state[name]) != mine:
                raise ValueError(f"the state was taken with {name}={state[name]}; here it is {mine}")
        self.drawn = int(state["drawn"])

    drawing_state = get_state
    set_drawing_state = set_state
