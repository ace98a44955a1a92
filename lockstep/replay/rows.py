"""Rows that come as a batch or a table: the columns that they need, and where their episodes end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lockstep.data.columns import Columns
from lockstep.data.sample_batch import SampleBatch
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


@dataclass(frozen=True)
class TableFormat:
    """A file format for tables of transitions."""

    read: Callable[[str | Path], SampleBatch]
    write: Callable[[SampleBatch, str | Path], Path]


TABLE_FORMATS: Mapping[str, TableFormat] = {
    ".npz": TableFormat(SampleBatch.from_npz, SampleBatch.to_npz),
    ".parquet": TableFormat(SampleBatch.from_parquet, SampleBatch.to_parquet),
}
"""The formats by the ending of a file's name."""


def check_columns(batch: Mapping[str, Any]) -> None:
    """Raise `KeyError` where a column of a transition is missing."""
    for name in REQUIRED:
        if name not in batch:
            raise KeyError(f"column {name!r} is missing; given are {sorted(batch)}, needed {sorted(REQUIRED)}")


def table_format(path: str | Path) -> TableFormat:
    """Return the format of a table by its name; `ValueError` for an ending that is not in `TABLE_FORMATS`."""
    suffix = Path(path).suffix
    if suffix not in TABLE_FORMATS:
        raise ValueError(f"{Path(path).name}: the name must end in one of {', '.join(TABLE_FORMATS)}")
    return TABLE_FORMATS[suffix]


def read_table(path: str | Path) -> SampleBatch:
    """Return the batch in a table of one of `TABLE_FORMATS`; `ValueError` for another ending."""
    return table_format(path).read(path)


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


def vector_steps_as_rows(column: npt.ArrayLike | torch.Tensor) -> np.ndarray | torch.Tensor:
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
