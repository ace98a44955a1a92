"""Functions on rows that arrive as a batch or a table: their columns, episodes and missing values."""

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
"""Columns that every transition has."""


@dataclass(frozen=True)
class TableFormat:
    """File format for tables of transitions."""

    read: Callable[[str | Path], SampleBatch]
    write: Callable[[SampleBatch, str | Path], Path]


TABLE_FORMATS: Mapping[str, TableFormat] = {
    ".npz": TableFormat(SampleBatch.from_npz, SampleBatch.to_npz),
    ".parquet": TableFormat(SampleBatch.from_parquet, SampleBatch.to_parquet),
}
"""Table format by the suffix of the file name."""


def check_columns(batch: Mapping[str, Any]) -> None:
    """Check that a batch has all columns of a transition. `KeyError` for the first one that is missing."""
    for name in REQUIRED:
        if name not in batch:
            raise KeyError(f"column {name!r} is missing; given are {sorted(batch)}, needed {sorted(REQUIRED)}")


def table_format(path: str | Path) -> TableFormat:
    """Return the table format that belongs to a file name. `ValueError` for a suffix not in `TABLE_FORMATS`."""
    suffix = Path(path).suffix
    if suffix not in TABLE_FORMATS:
        raise ValueError(f"{Path(path).name}: the name must end in one of {', '.join(TABLE_FORMATS)}")
    return TABLE_FORMATS[suffix]


def read_table(path: str | Path) -> SampleBatch:
    """Return the batch stored in a table file. `ValueError` for a suffix not in `TABLE_FORMATS`."""
    return table_format(path).read(path)


def episodes_in(batch: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Find the episodes in a batch of rows in time order.

    Returns:
        The number of rows of each episode, int64 [episodes]; and bool [n], True for a row after which its episode is
        left although it neither terminated nor was truncated.
    """
    done = np.asarray(batch[Columns.TERMINATEDS], bool) | np.asarray(batch[Columns.TRUNCATEDS], bool)
    last = done.copy()
    last[-1:] = True

    for name in (Columns.EPS_ID, Columns.AGENT_ID):
        if name in batch:
            ids = np.asarray(batch[name])
            last[:-1] |= ids[1:] != ids[:-1]

    # Joined batches may use the same id for two episodes. Within one episode `t` always increases.
    if Columns.T in batch:
        times = np.asarray(batch[Columns.T])
        last[:-1] |= times[1:] <= times[:-1]

    lengths = np.diff(np.flatnonzero(last), prepend=-1)
    return lengths, last & ~done


def unpadded(batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the batch without the padding rows of its sequences."""
    if isinstance(batch, SampleBatch) and (batch.zero_padded or batch.time_major):
        return batch.copy(shallow=True).unpad()
    return batch


def vector_steps_as_rows(column: npt.ArrayLike | torch.Tensor) -> np.ndarray | torch.Tensor:
    """Return a column [T, B, ...] of vector steps as rows [T * B, ...]."""
    column = column if isinstance(column, np.ndarray | torch.Tensor) else np.asarray(column)
    return column.reshape(column.shape[0] * column.shape[1], *column.shape[2:])


def has_nan(columns: Mapping[str, Tree]) -> np.ndarray:
    """Return for each row whether any of its columns holds a NaN, bool [N]."""
    result = np.zeros(len(columns[Columns.REWARDS]), bool)
    for column in columns.values():
        for leaf in leaves(column):
            if leaf.dtype.kind in "fc":
                result |= np.isnan(leaf.reshape(len(leaf), -1)).any(axis=1)
    return result


def assign_sub_buffers(lengths: np.ndarray, num_stored: np.ndarray) -> np.ndarray:
    """Assign each episode to the sub-buffer that has the fewest rows at that point.

    Args:
        lengths: number of rows of each episode, [episodes].
        num_stored: number of rows that each sub-buffer holds already, [B].

    Returns:
        The sub-buffer of each episode, int64 [episodes].
    """
    load = num_stored.astype(np.int64)
    assigned = np.empty(len(lengths), np.int64)
    for episode, length in enumerate(lengths.tolist()):
        b = int(load.argmin())
        assigned[episode] = b
        load[b] += length
    return assigned
