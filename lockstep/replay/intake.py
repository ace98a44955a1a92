"""What is checked of rows before they are stored, and the schema that first rows ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.data.columns import Columns
from lockstep.data.trees import map_tree, to_numpy_leaf
from lockstep.replay.reading import NEXT_OBS, OBS, REQUIRED, REWARDS, TERMINATEDS, TRUNCATEDS
from lockstep.replay.storage import ColumnStore, Leaf, Shape, shapes_of_rows

RESERVED = (Columns.WEIGHTS, Columns.BATCH_INDEXES, Columns.DISCOUNTS)
Tree = Any
_kind = attrgetter("shape", "dtype", "strides")


def check_columns(batch: Mapping[str, Any]) -> None:
    """Raises `KeyError` where a column of a transition is missing."""
    for name in REQUIRED:
        if name not in batch:
            raise KeyError(f"column {name!r} is missing; given are {sorted(batch)}, needed {sorted(REQUIRED)}")


def schema_of(batch: Mapping[str, Any], last_frame: bool) -> dict[str, Tree]:
    """The stored columns that first rows ask for; with `last_frame` observations are stacks [n, frames, ...].

    Raises:
        KeyError: a column is missing; ValueError, TypeError: one that cannot be stored.
    """
    check_columns(batch)
    for name in RESERVED:
        if name in batch:
            raise ValueError(f"column {name!r} is one that drawing adds; call it something else")
    elsewhere = (TERMINATEDS, TRUNCATEDS, NEXT_OBS)
    shapes = {name: shapes_of_rows(name, column) for name, column in batch.items() if name not in elsewhere}
    if last_frame:
        shapes[OBS] = map_tree(lambda shape: Shape(shape.shape[1:], shape.dtype), shapes[OBS])
    reward = shapes[REWARDS]
    if not isinstance(reward, Shape) or len(reward.shape) > 1:
        raise ValueError("rewards must be one number for each row, or one for each agent")
    if reward.dtype.kind != "f":
        shapes[REWARDS] = Shape(reward.shape, np.dtype(np.float32))
    return shapes


def checked_ids(buffer_ids: npt.ArrayLike, buffer_num: int) -> np.ndarray:
    """Sub-buffers, int64 [n]; `ValueError` for those that there are not, and for one twice."""
    ids = np.atleast_1d(np.asarray(buffer_ids))
    if ids.dtype.kind not in "iu" or ids.ndim != 1 or len(set(ids.tolist())) != len(ids):
        raise ValueError(f"buffer_ids must be different whole numbers, got {ids.tolist()}")
    if len(ids) and (ids.min() < 0 or ids.max() >= buffer_num):
        raise ValueError(f"buffer_ids={ids.tolist()}: there are {buffer_num} sub-buffers, counted from 0")
    return ids.astype(np.int64)


class Intake:
    """Checks rows against the columns of a store.

    `conform` gives a list of arrays: the leaves of the store in their order, then (with `shared`) those of the next
    observations, which no column holds, then `terminateds` and `truncateds`.
    """

    def __init__(self, store: ColumnStore, num_buffers: int, shared: bool) -> None:
        elsewhere: list[Leaf] = []
        if shared:
            elsewhere = [
                Leaf(NEXT_OBS + leaf.path[len(OBS) :], (NEXT_OBS, *leaf.keys[1:]), leaf.array)
                for leaf in store.leaves
                if leaf.keys[0] == OBS
            ]
        flags = [Leaf(name, (name,), np.zeros((store.num_rows,), np.bool_)) for name in (TERMINATEDS, TRUNCATEDS)]
        self.leaves = [*store.leaves, *elsewhere, *flags]
        self.names = list(dict.fromkeys(leaf.keys[0] for leaf in self.leaves))
        self.num_obs = sum(leaf.keys[0] == OBS for leaf in store.leaves)
        self.reward_at = next(i for i, leaf in enumerate(store.leaves) if leaf.keys[0] == REWARDS)
        self.num_buffers = num_buffers
        self._flat = all(len(leaf.keys) == 1 for leaf in self.leaves)
        self._get = itemgetter(*(leaf.keys[0] for leaf in self.leaves))
        self._kinds = [_kind(np.empty((num_buffers, *leaf.shape), leaf.dtype)) for leaf in self.leaves]
        self.lines = [
            leaf.array.reshape(store.num_rows // num_buffers, num_buffers, *leaf.shape) for leaf in store.leaves
        ]
        """the columns, [positions, buffers, ...]"""

    def conform(self, batch: Mapping[str, Any], number: int, last_frame: bool) -> Sequence[np.ndarray]:
        """`number` rows as arrays of the right shape; errors as `ReplayBuffer.add`."""
        columns = batch if isinstance(batch, dict) else dict(batch)
        if self._flat and number == self.num_buffers and dict.__len__(columns) == len(self.names):
            try:  # what a collector gives, step after step: whole arrays that fit as they are
                values = self._get(columns)
                if list(map(_kind, values)) == self._kinds:
                    return values
            except (KeyError, AttributeError, TypeError):
                pass  # found out by name below
        return self._conform_any(columns, number, last_frame)

    def _conform_any(self, columns: Mapping[str, Any], number: int, last_frame: bool) -> list[np.ndarray]:
        if set(columns) != set(self.names):
            missing = [name for name in self.names if name not in columns]
            new = [name for name in columns if name not in self.names]
            raise KeyError(f"the columns of this buffer are {sorted(self.names)}; missing: {missing}, unknown: {new}")
        values = []
        for leaf in self.leaves:
            value: Any = columns[leaf.keys[0]]
            try:
                for key in leaf.keys[1:]:
                    value = value[key]
            except (KeyError, IndexError, TypeError):
                raise ValueError(f"column {leaf.path!r} is missing in the rows given") from None
            if last_frame and leaf.keys[0] in (OBS, NEXT_OBS):
                value = to_numpy_leaf(value)[:, -1]
            values.append(leaf.conform(value, number))
        for position in (self.reward_at, -2, -1):
            if not values[position].flags.carray:
                values[position] = np.array(values[position])
        return values
