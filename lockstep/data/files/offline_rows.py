"""`OfflineRows`: recorded rows in any order, sampled in passes over all of them."""

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
"""Number of rows that enter a digest as one piece. Another number gives other digests."""


class Rows(Protocol):
    """Protocol of the rows behind `OfflineRows`: a `SampleBatch` or an `OfflineDataset`."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: Any) -> Any: ...


class OfflineRows(RowSource):
    """Recorded rows with any columns to sample from, in memory or on disk.

    `sample(n)` returns the next `n` rows of an endless sequence of passes. Each pass is a new permutation of all rows,
    so that every row is sampled once before any is sampled again.

    Args:
        rows: `SampleBatch` or `OfflineDataset`.
        seed: Seed of the permutations.
        convert: Function that maps each batch before it is returned.
    """

    def __init__(self, rows: Rows, *, seed: int = 0, convert: Callable[[SampleBatch], SampleBatch] | None = None):
        self.rows = rows
        self.convert = convert
        self.seed = seed
        self.drawn = 0
        """Number of rows that have been returned so far."""
        self._pass = (seed, -1)
        """Seed and number of the pass whose permutation is in `_order`; -1 before the first."""
        self._order = np.empty(0, np.int64)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def __repr__(self) -> str:
        return f"OfflineRows({self.rows!r})"

    def digest(self) -> str:
        """Return the SHA-256 of all rows. For rows on disk it is that of their files, which is cached."""
        if isinstance(self.rows, OfflineDataset):
            return self.rows.digest()
        starts = range(0, len(self), ROWS_AT_ONCE)
        return digest_of_rows(self.rows[start : start + ROWS_AT_ONCE] for start in starts)

    def sample(self, n: int) -> SampleBatch:
        """Return the next `n` rows. `ValueError` if `n` is below 1 or there are no rows."""
        if n < 1 or not len(self):
            raise ValueError(f"{n} rows cannot be drawn of {len(self)}")
        pieces = []  # one for each pass that the sample touches
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
        """Return the numbers of all rows in the order of the next whole pass, int64 `[len]`, and count it as drawn."""
        number = -(-self.drawn // len(self))
        self.drawn = (number + 1) * len(self)
        return self._permutation(number)

    def indices(self) -> np.ndarray:
        """Return the numbers of all rows in their own order, int64 `[len]`."""
        return np.arange(len(self))

    def __getitem__(self, index: np.ndarray) -> SampleBatch:
        """Return a batch of the rows with the numbers `index`, int `[N]`."""
        batch: SampleBatch = self.rows[index]
        return batch if self.convert is None else self.convert(batch)

    def _permutation(self, number: int) -> np.ndarray:
        """Return the permutation of pass `number`. It depends on seed and number alone: a state needs no generator."""
        if (self.seed, number) != self._pass:
            self._pass = (self.seed, number)
            self._order = np.random.default_rng(self._pass).permutation(len(self))
        return self._order

    def get_state(self) -> dict[str, Any]:
        """Return the position in the sequence of passes, the seed, and the number of rows."""
        return {"drawn": self.drawn, "seed": self.seed, "num_rows": len(self)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of a state. `ValueError` if it has another seed or number of rows."""
        for name, setting in (("seed", self.seed), ("num_rows", len(self))):
            if int(state[name]) != setting:
                raise ValueError(f"the state was taken with {name}={state[name]}; here it is {setting}")
        self.drawn = int(state["drawn"])

    drawing_state = get_state
    set_drawing_state = set_state
