"""Preallocated columns in memory or in memory-mapped files: the form of the rows that go into them, next observations
that are stored once, and the pieces that a checkpoint writes.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from lockstep.data.columns import Columns
from lockstep.data.trees import Tree, is_numeric, leaves, map_named, map_tree, named_leaves, to_numpy_leaf
from lockstep.options.checks import check_choice
from lockstep.replay.ring import Ring
from lockstep.replay.rows import check_columns
from lockstep.state import SealedArrays

RESERVED = (Columns.WEIGHTS, Columns.BATCH_INDEXES, Columns.DISCOUNTS, Columns.NUM_STEPS)
"""columns that drawing adds"""
FLAGS = (Columns.TERMINATEDS, Columns.TRUNCATEDS)
"""columns that the ring keeps"""
PIECE_BYTES = 4 << 20
MAX_PIECES = 256
PIECE = "rows_"


@dataclass(frozen=True)
class Shape:
    """Shape and dtype of a row of a column."""

    shape: tuple[int, ...]
    dtype: np.dtype

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        object.__setattr__(self, "dtype", np.dtype(self.dtype))

    @property
    def nbytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Leaf:
    """One array `[num_rows, ...]` of the column `name`; `path` says where in the column."""

    name: str
    path: str
    array: np.ndarray

    def rows_of(self, value: object, number: int) -> np.ndarray:
        """Return `value` as `number` rows of this array, of its dtype; `ValueError` where it does not fit."""
        shape, dtype = (number, *self.array.shape[1:]), self.array.dtype
        if type(value) is np.ndarray and value.shape == shape and value.dtype == dtype:
            return value
        expected = f"column {self.path!r} expects shape {shape} of {dtype}"
        if isinstance(value, dict | tuple):
            raise ValueError(f"{expected}; got {type(value).__name__}")
        loose = not isinstance(value, np.ndarray | torch.Tensor)
        found = np.asarray(to_numpy_leaf(value))
        if dtype == np.bool_ and found.dtype.kind in "iu" and ((found == 0) | (found == 1)).all():
            found = found.astype(np.bool_)
        if found.shape != shape or not np.can_cast(
            found.dtype, dtype, "same_kind" if dtype.kind in "fc" or loose else "safe"
        ):
            raise ValueError(
                f"{expected}, as the first rows or the spaces said; got shape {found.shape} of {found.dtype}"
            )
        return found.astype(dtype, copy=False)


class ColumnStore:
    """Columns `name -> tree of arrays [num_rows, ...]`, made when the first rows or the spaces are known.

    With `storage="memmap"` each array is a file in `directory` (one of its own, removed with the object, where None);
    files of an earlier store there are replaced.
    """

    def __init__(self, num_rows: int, storage: str = "memory", directory: str | Path | None = None) -> None:
        check_choice("storage", storage, ("memory", "memmap"))
        if storage == "memory" and directory is not None:
            raise ValueError(f"directory={str(directory)!r} is for storage='memmap' only")
        self.num_rows = num_rows
        self.storage = storage
        self.directory: Path | None = None
        if storage == "memmap":
            self.directory = Path(directory or tempfile.mkdtemp(prefix="lockstep-replay-"))
            self.directory.mkdir(parents=True, exist_ok=True)
            if directory is None:
                weakref.finalize(self, shutil.rmtree, str(self.directory), ignore_errors=True)
        self.trees: dict[str, Tree] = {}
        self.leaves: list[Leaf] = []

    def create(self, columns: Mapping[str, Tree]) -> None:
        """Make room for all columns, trees of `Shape`."""
        for name, shapes in columns.items():
            new = [Leaf(name, path, self._allocate(path, shape)) for path, shape in named_leaves(name, shapes)]
            if not new:
                raise ValueError(f"column {name!r} has no arrays in it")
            self.leaves += new
            self.trees[name] = _with_leaves(shapes, iter([leaf.array for leaf in new]))

    def _allocate(self, path: str, row: Shape) -> np.ndarray:
        whole = (self.num_rows, *row.shape)
        if self.directory is None or not math.prod(whole):
            return np.zeros(whole, row.dtype)
        file = self.directory / (path.replace("/", "__") + ".bin")
        file.unlink(missing_ok=True)  # a file of its own: a buffer that is still mapped on an older one keeps its rows
        return np.memmap(file, row.dtype, "w+", shape=whole).view(np.ndarray)

    def nbytes(self) -> int:
        """Return the bytes of all columns."""
        return sum(leaf.array.nbytes for leaf in self.leaves)

    def take(self, name: str, rows: np.ndarray) -> Tree:
        """Return rows `[N]` or `[N, K]` of a column, in one gather."""
        tree = self.trees[name]
        if type(tree) is np.ndarray:
            return tree.take(rows, 0)
        return map_tree(lambda array: array.take(rows, 0), tree)

    def shapes(self) -> dict[str, Tree]:
        """Return the `Shape` of each column, in the columns' nesting."""
        return {name: map_tree(lambda a: Shape(a.shape[1:], a.dtype), tree) for name, tree in self.trees.items()}

    def get_state(self, used: int) -> dict[str, Tree]:
        """Return copies of the first `used` rows."""
        return {name: map_tree(lambda array: array[:used].copy(), tree) for name, tree in self.trees.items()}

    def set_state(self, state: Mapping[str, Tree]) -> None:
        """Go back to what `get_state` gave, making the columns where there are none yet.

        Raises:
            ValueError: the columns are not those of this store; nothing is written then.
        """
        if not self.trees:
            rows = {name: map_tree(lambda a: Shape(a.shape[1:], a.dtype), tree) for name, tree in state.items()}
            self.create(rows)
        found = {path: array for name, tree in state.items() for path, array in named_leaves(name, tree)}
        mine = {leaf.path: leaf.array for leaf in self.leaves}
        if list(state) != list(self.trees) or set(found) != set(mine):
            raise ValueError(f"the state has the columns {sorted(found)}, this buffer {sorted(mine)}")
        for path, array in found.items():
            to = mine[path]
            if array.shape[1:] != to.shape[1:] or array.dtype != to.dtype or len(array) > self.num_rows:
                raise ValueError(
                    f"the state of column {path!r} has rows of shape {array.shape[1:]} and {array.dtype}, "
                    f"this buffer of {to.shape[1:]} and {to.dtype}"
                )
        for path, array in found.items():  # not before all are known to fit
            mine[path][: len(array)] = array


class RowForm:
    """The form of the rows that are added to a store: its columns, next observations, and how episodes end."""

    def __init__(self, store: ColumnStore, next_obs_apart: bool) -> None:
        """Take a store; `next_obs_apart`: no column of the store holds the next observations."""
        new_obs: list[Leaf] = []
        if next_obs_apart:
            paths = [path for path, _ in named_leaves(Columns.NEXT_OBS, store.trees[Columns.OBS])]
            arrays = leaves(store.trees[Columns.OBS])
            new_obs = [Leaf(Columns.NEXT_OBS, path, array) for path, array in zip(paths, arrays)]
        self.leaves = [*store.leaves, *new_obs, *(Leaf(name, name, np.zeros(0, np.bool_)) for name in FLAGS)]
        self.names = {leaf.name for leaf in self.leaves}
        self.num_obs = len(list(leaves(store.trees[Columns.OBS])))
        """the first arrays are those of the observations"""
        self.num_stored = len(store.leaves)
        """so many arrays are columns of the store; those of next observations that are not follow, then the flags"""
        self.reward_at = [leaf.path for leaf in self.leaves].index(Columns.REWARDS)

    def arrays_of(self, batch: Mapping[str, Any], number: int, last_frame: bool) -> list[np.ndarray]:
        """Return `number` rows as arrays in the order of `leaves`.

        With `last_frame` observations are stacks [number, frames, ...], of which the last frame is taken. Errors as
        `ReplayBuffer.add`.
        """
        columns = batch if isinstance(batch, dict) else dict(batch)
        if columns.keys() != self.names:
            missing = [name for name in self.names if name not in columns]
            new = [name for name in columns if name not in self.names]
            raise KeyError(f"the columns of this buffer are {sorted(self.names)}; missing: {missing}, unknown: {new}")
        arrays = []
        for leaf in self.leaves:
            value = columns[leaf.name]
            if leaf.path != leaf.name:
                value = dict(named_leaves(leaf.name, value)).get(leaf.path)
                if value is None:
                    raise ValueError(f"column {leaf.path!r} is missing in the rows given")
            if last_frame and leaf.name in (Columns.OBS, Columns.NEXT_OBS):
                value = to_numpy_leaf(value)[:, -1]
            arrays.append(leaf.rows_of(value, number))
        for position in (self.reward_at, -2, -1):  # read by a kernel, which is compiled for plain arrays
            if not arrays[position].flags.carray:
                arrays[position] = np.array(arrays[position])
        return arrays


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
        """Forget everything."""
        self.slots[:] = -1
        self.free = np.arange(len(next(leaves(self.pool))), dtype=np.int32)

    def before(self, ids: np.ndarray, obs: Sequence[np.ndarray]) -> None:
        """Prepare for rows of different sub-buffers, not placed yet, that begin with `obs` (leaves [n, ...])."""
        ring, reasons = self.ring, np.empty(len(ids), np.uint8)
        same = self._same(self._head_bytes, ids, obs)
        if not ring.kernels.left_behind(ids, same, ring.newest, ring.flags, reasons):
            return
        ring.cut(ids[reasons == 2])
        ids = ids[reasons != 0]
        self._keep(ring.newest[ids], [leaf[ids] for leaf in self._heads])

    def breaks(self, obs: Sequence[np.ndarray], new_obs: Sequence[np.ndarray], ends: np.ndarray) -> np.ndarray:
        """Return which of rows [n] in time order do not lead to the row after them (the last is not judged)."""
        cuts = np.zeros(len(ends), np.bool_)
        led_to = [_bytes_of(leaf) for leaf in new_obs]
        cuts[:-1] = ~self._same(led_to, np.arange(len(ends) - 1), [leaf[1:] for leaf in obs])
        return cuts & ~ends

    def after(self, ids: np.ndarray, rows: np.ndarray, new_obs: Sequence[np.ndarray], ends: np.ndarray | None) -> None:
        """Keep the observations after rows that the ring has placed.

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
        """Return the true next observations of rows [N]."""
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
        """Return which rows `chosen` [n] of `left` (leaves as bytes) have the bits of the rows of `right`, bool [n]."""
        same = np.ones(len(chosen), np.bool_)
        for a, b in zip(left, right):
            self.ring.kernels.same_rows(a, chosen, _bytes_of(b), same)
        return same

    def get_state(self) -> dict[str, Any]:
        """Return copies of everything kept."""
        return {
            "slots": self.slots[: self.ring.used()].copy(),
            "heads": map_tree(np.copy, self.heads),
            "pool": map_tree(np.copy, self.pool),
            "free": self.free.copy(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go back to what `get_state` gave."""
        self.slots[:] = -1
        self.slots[: len(state["slots"])] = state["slots"]
        self.heads, self.pool = map_tree(np.array, state["heads"]), map_tree(np.array, state["pool"])
        self.free = np.array(state["free"])
        self._know_heads()


class CheckpointPieces:
    """The rows of a ring in stretches of about `PIECE_BYTES` or more, at most `MAX_PIECES` of them.

    A stretch in which no row was written since it was last given out comes as the same object, views on the columns,
    to which the checkpoint before lends its file (`SealedArrays`).
    """

    def __init__(self, store: ColumnStore, ring: Ring) -> None:
        self.store, self.ring = store, ring
        each = max(1, sum(leaf.array[:1].nbytes for leaf in store.leaves) * ring.num_buffers)
        self.length = max(1, PIECE_BYTES // each, -(-ring.size // MAX_PIECES))
        """positions in one stretch"""
        self._pieces: dict[int, SealedArrays] = {}
        self._generation = -1
        self._written = ring.written.copy()
        self._next = np.zeros(ring.num_buffers, np.int64)

    def by_name(self) -> dict[str, SealedArrays]:
        """Return the stored rows in pieces, valid until the buffer changes."""
        ring = self.ring
        self._forget_changed()
        used = int(ring.count.max(initial=0))
        pieces = {}
        for number, start in enumerate(range(0, used, self.length)):
            stop = min(start + self.length, used)
            if number not in self._pieces:
                rows = slice(start * ring.num_buffers, stop * ring.num_buffers)
                self._pieces[number] = SealedArrays({leaf.path: leaf.array[rows] for leaf in self.store.leaves})
            pieces[f"{PIECE}{number:05d}"] = self._pieces[number]
        return pieces

    def _forget_changed(self) -> None:
        ring = self.ring
        new = ring.written - self._written
        if self._generation != ring.generation or (new >= ring.size).any():
            self._pieces.clear()
        else:
            for b in np.flatnonzero(new):
                positions = np.arange(self._next[b], self._next[b] + new[b]) % ring.size
                for number in np.unique(positions // self.length).tolist():
                    self._pieces.pop(number, None)
        self._generation, self._written = ring.generation, ring.written.copy()
        self._next = np.where(ring.newest < 0, 0, (ring.newest // ring.num_buffers + 1) % ring.size)

    @staticmethod
    def join(state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the whole columns, as `ColumnStore.get_state` gives them, from the pieces in a state."""
        pieces = [state[name] for name in sorted(name for name in state if name.startswith(PIECE))]

        def whole(path: str, form: Sequence[Any]) -> np.ndarray:
            if not pieces:
                shape, dtype = form
                return np.zeros((0, *shape), dtype)
            if len(pieces) == 1:
                return pieces[0][path]
            return np.concatenate([piece[path] for piece in pieces])

        return {name: map_named(whole, name, tree) for name, tree in state["schema"].items()}


def _bytes_of(leaf: np.ndarray) -> np.ndarray:
    """Return rows [n, ...] as uint8 [n, bytes of a row]; a view where they lie side by side."""
    return np.ascontiguousarray(leaf).reshape(len(leaf), math.prod(leaf.shape[1:])).view(np.uint8)


def _with_leaves(tree: Tree, new: Iterator[Any]) -> Tree:
    return map_tree(lambda _: next(new), tree)


def schema_of(batch: Mapping[str, Any], last_frame: bool) -> dict[str, Tree]:
    """Return the stored columns that first rows ask for; with `last_frame` observations are stacks [n, frames, ...].

    Raises:
        KeyError: a column is missing; ValueError, TypeError: one that cannot be stored.
    """
    check_columns(batch)
    for name in RESERVED:
        if name in batch:
            raise ValueError(f"column {name!r} is one that drawing adds; call it something else")
    elsewhere = (*FLAGS, Columns.NEXT_OBS)
    shapes = {name: shapes_of_rows(name, column) for name, column in batch.items() if name not in elsewhere}
    if last_frame:
        shapes[Columns.OBS] = frame_shapes(shapes[Columns.OBS])
    reward = shapes[Columns.REWARDS]
    if not isinstance(reward, Shape) or len(reward.shape) > 1:
        raise ValueError("rewards must be one number for each row, or one for each agent")
    if reward.dtype.kind != "f":
        shapes[Columns.REWARDS] = Shape(reward.shape, np.dtype(np.float32))
    return shapes


def shapes_of_rows(name: str, tree: Tree) -> Tree:
    """Return the shapes that a column of first rows asks for.

    Raises:
        TypeError: a leaf that holds no numbers; ValueError: one that is a single number.
    """

    def shape(leaf: object) -> Shape:
        if not isinstance(leaf, np.ndarray | torch.Tensor):
            leaf = np.asarray(leaf)
        if not is_numeric(leaf):
            raise TypeError(f"column {name!r} holds {leaf.dtype} values; a buffer stores numbers only: leave it out")
        if leaf.ndim == 0:
            raise ValueError(f"column {name!r} is one number; give one row for each environment")
        found = to_numpy_leaf(leaf[:0])
        return Shape(found.shape[1:], found.dtype)

    return map_tree(shape, tree)


def shapes_of_space(space: spaces.Space[Any]) -> Tree:
    """Return the shapes of rows of a space. `ValueError` for a space without a fixed shape."""
    if isinstance(space, spaces.Dict):
        return {key: shapes_of_space(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(shapes_of_space(part) for part in space.spaces)
    if space.shape is None or space.dtype is None or space.dtype.kind not in "biuf":
        raise ValueError(f"the space {space} has no fixed shape of numbers and cannot be stored in columns")
    return Shape(space.shape, space.dtype)


def frame_shapes(shapes: Tree) -> Tree:
    """Return the shapes of one frame of stacks [frames, ...]."""
    return map_tree(lambda shape: Shape(shape.shape[1:], shape.dtype), shapes)


def row_nbytes(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], ignore_obs_next: bool, num_frames: int = 1
) -> int:
    """Return the bytes of a transition's columns; of stacks of `num_frames` one frame is stored."""
    obs, action = (
        sum(shape.nbytes for shape in leaves(shapes_of_space(space))) for space in (observation_space, action_space)
    )
    return obs // num_frames * (1 if ignore_obs_next else 2) + action + np.dtype(np.float32).itemsize


def machine_memory() -> int:
    """Return the bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
