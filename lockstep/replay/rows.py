"""Rows that come as a batch or a table: what is asked of them, where their episodes end, and `OfflineRows`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from lockstep.data.columns import Columns
from lockstep.data.digests import digest_of_rows
from lockstep.data.files.dataset import OfflineDataset
from lockstep.data.sample_batch import SampleBatch, concat_samples
from lockstep.data.trees import Tree, leaves

REQUIRED = (
    Columns.OBS,
    Columns.ACTIONS,
    Columns.REWARDS,
    Columns.TERMINATEDS,
    Columns.TRUNCATEDS,
    Columns.NEXT_OBS,
)
"""the columns of a transition"""
TABLE_FORMATS = (".npz", ".parquet")
ROWS_AT_ONCE = 1 << 16
"""Rows of which a digest is taken in one piece."""


def check_columns(batch: Mapping[str, Any]) -> None:
    """Raise `KeyError` where a column of a transition is missing."""
    for name in REQUIRED:
        if name not in batch:
            raise KeyError(f"column {name!r} is missing; given are {sorted(batch)}, needed {sorted(REQUIRED)}")


def table_format(path: str | Path) -> str:
    """Return the ending of a table's name; `ValueError` for one that is not among `TABLE_FORMATS`."""
    suffix = Path(path).suffix
    if suffix not in TABLE_FORMATS:
        raise ValueError(f"{Path(path).name}: the name must end in one of {', '.join(TABLE_FORMATS)}")
    return suffix


def read_table(path: str | Path) -> SampleBatch:
    """Return the batch in an `.npz` or `.parquet` file; `ValueError` for another ending."""
    return SampleBatch.from_npz(path) if table_format(path) == ".npz" else SampleBatch.from_parquet(path)


def episodes_in(batch: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths of the episodes of a batch, and bool [n], where an episode is left without being done."""
    ends = np.asarray(batch[Columns.TERMINATEDS], bool) | np.asarray(batch[Columns.TRUNCATEDS], bool)
    breaks = ends.copy()
    breaks[-1:] = True
    for name in (Columns.EPS_ID, Columns.AGENT_ID):
        if name in batch:
            ids = np.asarray(batch[name])
            breaks[:-1] |= ids[1:] != ids[:-1]
    if Columns.T in batch:  # ids may repeat where batches were joined
        times = np.asarray(batch[Columns.T])
        breaks[:-1] |= times[1:] <= times[:-1]
    return np.diff(np.flatnonzero(breaks), prepend=-1), breaks & ~ends


def unpadded(batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the batch without rows that only fill up its sequences."""
    if isinstance(batch, SampleBatch) and (batch.zero_padded or batch.time_major):
        return batch.copy(shallow=True).unpad()
    return batch


def vector_steps_as_rows(column: Any) -> Any:
    """Return [T, B, ...] as [T * B, ...]."""
    column = column if isinstance(column, np.ndarray | torch.Tensor) else np.asarray(column)
    return column.reshape(column.shape[0] * column.shape[1], *column.shape[2:])


def null_rows(columns: Mapping[str, Tree]) -> np.ndarray:
    """Return bool [N]: is there a NaN in any column of a transition?"""
    found = np.zeros(len(columns[Columns.REWARDS]), bool)
    for column in columns.values():
        for leaf in leaves(column):
            if leaf.dtype.kind in "fc":
                found |= np.isnan(leaf.reshape(len(leaf), -1)).any(axis=1)
    return found


def spread(lengths: np.ndarray, filled: np.ndarray) -> np.ndarray:
    """Return the sub-buffer of each episode: the one with the fewest rows by then, of which `filled` [B] has some."""
    load = filled.astype(np.int64)
    owner = np.empty(len(lengths), np.int64)
    for k, length in enumerate(lengths.tolist()):
        owner[k] = b = int(load.argmin())
        load[b] += length
    return owner


class Rows(Protocol):
    """A `SampleBatch` or an `OfflineDataset`."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: Any) -> Any: ...


class OfflineRows:
    """The rows of a `SampleBatch`, or of an `OfflineDataset` on disk, without an order in time and with any columns.

    `sample(n)` gives the next `n` rows of an endless sequence of passes. Each pass is a new permutation of all rows, so
    that every row is seen once before any is seen again. `convert(batch) -> batch` is applied to what is given out.
    """

    priorities = None

    def __init__(self, rows: Rows, *, seed: int = 0, convert: Callable[[SampleBatch], SampleBatch] | None = None):
        self.rows, self.convert, self.seed = rows, convert, seed
        self.drawn = 0
        """rows given out so far"""
        self._pass, self._order = (seed, -1), np.empty(0, np.int64)

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
        pieces, position = [], self.drawn
        self.drawn += n
        while n:
            number, start = divmod(position, len(self))
            taken = min(n, len(self) - start)
            pieces.append(self[self._permutation(number)[start : start + taken]])
            position, n = position + taken, n - taken
        return pieces[0] if len(pieces) == 1 else concat_samples(pieces)

    def permutation(self) -> np.ndarray:
        """Return the numbers of all rows in the order of the next pass, int64 [len]; the pass counts as given out."""
        number = -(-self.drawn // len(self))
        self.drawn = (number + 1) * len(self)
        return self._permutation(number)

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
