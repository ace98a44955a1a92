"""Where the observation after a transition is found: in a column of its own, or as the next row's observation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lockstep.data.columns import Columns
from lockstep.data.trees import leaves, map_tree
from lockstep.replay.ring import Ring
from lockstep.replay.storage import ColumnStore

Tree = Any


class SharedNextObs:
    """`ignore_obs_next`: each observation is stored once.

    The observation after a row is that of the next row; what no next row holds is kept here: after each sub-buffer's
    newest row (`heads` [B, ...]) and after rows that end an episode (a pool that grows with the number of stored
    episodes, `slots` [num_rows] says where, -1 nowhere).

    A row whose observation is not the one that the row before led to begins a new episode, and the row before is
    marked as cut. So rows that were never neighbours do not become it.
    """

    def __init__(self, store: ColumnStore, ring: Ring) -> None:
        self.store, self.ring = store, ring
        self.slots = np.full(ring.num_rows, -1, np.int32)
        self.heads = map_tree(lambda a: np.zeros((ring.num_buffers, *a.shape[1:]), a.dtype), store.trees[Columns.OBS])
        self.pool = map_tree(lambda a: np.zeros((16, *a.shape[1:]), a.dtype), store.trees[Columns.OBS])
        self.free = np.arange(16, dtype=np.int32)
        self._know_heads()

    def _know_heads(self) -> None:
        self._heads = list(leaves(self.heads))
        self._head_bytes = [_bytes_of(leaf) for leaf in self._heads]

    def clear(self) -> None:
        """Forgets everything."""
        self.slots[:] = -1
        self.free = np.arange(len(next(leaves(self.pool))), dtype=np.int32)

    def before(self, ids: np.ndarray, obs: Sequence[np.ndarray]) -> None:
        """To be called before the ring places rows that begin with `obs` (leaves [n, ...]) in different sub-buffers."""
        ring, reasons = self.ring, np.empty(len(ids), np.uint8)
        same = self._same(self._head_bytes, ids, obs)
        if not ring.kernels.left_behind(ids, same, ring.newest, ring.flags, reasons):
            return
        ring.cut(ids[reasons == 2])
        ids = ids[reasons != 0]
        self._keep(ring.newest[ids], [leaf[ids] for leaf in self._heads])

    def breaks(self, obs: Sequence[np.ndarray], new_obs: Sequence[np.ndarray], ends: np.ndarray) -> np.ndarray:
        """Of rows [n] in time order: which do not lead to the row after them (the last is not judged)."""
        cuts = np.zeros(len(ends), np.bool_)
        led_to = [_bytes_of(leaf) for leaf in new_obs]
        cuts[:-1] = ~self._same(led_to, np.arange(len(ends) - 1), [leaf[1:] for leaf in obs])
        return cuts & ~ends

    def after(self, ids: np.ndarray, rows: np.ndarray, new_obs: Sequence[np.ndarray], ends: np.ndarray | None) -> None:
        """To be called when the rows are placed.

        `ends` None: rows of different sub-buffers; else rows in time order of the one sub-buffer `ids[0]`, with what
        ends an episode.
        """
        if self.ring.kernels.num_taken(rows, self.slots):
            taken = self.slots[rows]
            self.free = np.concatenate([self.free, taken[taken >= 0]])
            self.slots[rows] = -1
        if ends is not None:
            inside = np.flatnonzero(ends[:-1])
            self._keep(rows[inside], [leaf[inside] for leaf in new_obs])
            ids, new_obs = ids[-1:], [leaf[-1:] for leaf in new_obs]
        for head, leaf in zip(self._heads, new_obs):
            head[ids] = leaf

    def take(self, rows: np.ndarray) -> Tree:
        """The true next observations of rows [N]."""
        obs = self.store.take(Columns.OBS, self.ring.next(rows))
        buffers = rows % self.ring.num_buffers
        is_newest = rows == self.ring.newest[buffers]
        at_head, slots = np.flatnonzero(is_newest), self.slots[rows]
        at_pool = np.flatnonzero((slots >= 0) & ~is_newest)
        for target, head, pool in zip(leaves(obs), leaves(self.heads), leaves(self.pool)):
            target[at_head] = head[buffers[at_head]]
            target[at_pool] = pool[slots[at_pool]]
        return obs

    def _keep(self, rows: np.ndarray, obs: list[np.ndarray]) -> None:
        if len(self.free) < len(rows):
            size = len(next(leaves(self.pool)))
            new = max(2 * size, size + len(rows))
            self.pool = map_tree(
                lambda a: np.concatenate([a, np.zeros((new - size, *a.shape[1:]), a.dtype)]), self.pool
            )
            self.free = np.concatenate([self.free, np.arange(size, new, dtype=np.int32)])
        slots, self.free = self.free[: len(rows)], self.free[len(rows) :]
        self.slots[rows] = slots
        for target, leaf in zip(leaves(self.pool), obs):
            target[slots] = leaf

    def _same(self, left: list[np.ndarray], chosen: np.ndarray, right: Sequence[np.ndarray]) -> np.ndarray:
        """Which rows `chosen` [n] of `left` (leaves as bytes) have the bits of the rows of `right`, bool [n]."""
        same = np.ones(len(chosen), np.bool_)
        for a, b in zip(left, right):
            self.ring.kernels.same_rows(a, chosen, _bytes_of(b), same)
        return same

    def get_state(self) -> dict[str, Any]:
        """Copies of everything kept."""
        return {
            "slots": self.slots[: self.ring.used()].copy(),
            "heads": map_tree(np.copy, self.heads),
            "pool": map_tree(np.copy, self.pool),
            "free": self.free.copy(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes back to what `get_state` gave."""
        self.slots[:] = -1
        self.slots[: len(state["slots"])] = state["slots"]
        self.heads, self.pool = map_tree(np.array, state["heads"]), map_tree(np.array, state["pool"])
        self.free = np.array(state["free"])
        self._know_heads()


def _bytes_of(leaf: np.ndarray) -> np.ndarray:
    """Rows [n, ...] as uint8 [n, bytes of one row]; a view where they lie side by side."""
    return np.ascontiguousarray(leaf).reshape(len(leaf), math.prod(leaf.shape[1:])).view(np.uint8)
