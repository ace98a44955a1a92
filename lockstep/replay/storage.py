"""Storage of a replay buffer: preallocated columns in memory or in memory-mapped files.

Beside the columns (`ColumnStore`) there are the layout of the rows that are written to them (`RowLayout`), next
observations if each observation is stored once (`SharedNextObs`), and the pieces in which a checkpoint saves the
columns (`CheckpointPieces`).
"""

from __future__ import annotations

import math
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

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
"""Columns that a sample has in addition to the stored ones. Rows that are added must not have them."""
FLAGS = (Columns.TERMINATEDS, Columns.TRUNCATEDS)
"""Columns that the ring stores as flags of its rows."""
PIECE_BYTES = 4 << 20
"""Size of a piece of a checkpoint, in bytes. Smaller pieces would make many small files."""
MAX_PIECES = 256
"""Number of pieces of a checkpoint at most. A larger buffer has larger pieces."""
PIECE = "rows_"
"""Prefix of the pieces' names in a checkpoint."""


@dataclass(frozen=True)
class Shape:
    """Shape and dtype of one row of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        object.__setattr__(self, "dtype", np.dtype(self.dtype))

    @property
    def nbytes(self) -> int:
        """Memory of one row, in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Leaf:
    """One array of a column, which may be a tree of arrays."""

    name: str
    """Name of the column."""
    path: str
    """Path of the array: the column's name, followed by keys for an array in a tree."""
    array: np.ndarray
    """The array, [num_rows, ...]."""

    def rows_of(self, value: object, number: int) -> np.ndarray:
        """Return `value` as `number` rows with the shape and dtype of this array. `ValueError` if it does not fit."""
        shape = (number, *self.array.shape[1:])
        dtype = self.array.dtype
        # Collectors add such an array at each step; everything below is for other callers.
        if type(value) is np.ndarray and value.shape == shape and value.dtype == dtype:
            return value
        expected = f"column {self.path!r} expects shape {shape} of {dtype}"
        if isinstance(value, dict | tuple):
            raise ValueError(f"{expected}; got {type(value).__name__}")
        array = np.asarray(to_numpy_leaf(value))
        if dtype == np.bool_ and array.dtype.kind in "iu" and ((array == 0) | (array == 1)).all():
            array = array.astype(np.bool_)

        # Lists and numbers have no dtype, and numpy makes int64 or float64 of them, which may be narrowed. The dtype of
        # an array was chosen: if it does not fit into an integer column, the values may not fit either.
        has_dtype = isinstance(value, np.ndarray | torch.Tensor)
        casting: Literal["same_kind", "safe"] = "safe" if has_dtype and dtype.kind not in "fc" else "same_kind"
        if array.shape != shape or not np.can_cast(array.dtype, dtype, casting):
            raise ValueError(
                f"{expected}, as the first rows or the spaces said; got shape {array.shape} of {array.dtype}"
            )
        return array.astype(dtype, copy=False)


class ColumnStore:
    """Columns of rows, `name -> tree of arrays [num_rows, ...]`.

    They are created when the spaces are known or the first rows arrive.

    Args:
        num_rows: number of rows of each array.
        storage: "memory", or "memmap" for one file for each array.
        directory: folder of these files; files of an earlier store there are replaced. None: a temporary folder, which
            is removed with this object.
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
        """Columns by name; empty before they are created."""
        self.leaves: list[Leaf] = []
        """All arrays of the columns, in the order of the columns."""

    def create(self, columns: Mapping[str, Tree]) -> None:
        """Allocate all columns, given as trees of `Shape`."""
        for name, shapes in columns.items():
            new = [Leaf(name, path, self._allocate(path, shape)) for path, shape in named_leaves(name, shapes)]
            if not new:
                raise ValueError(f"column {name!r} has no arrays in it")
            self.leaves += new
            self.trees[name] = _with_leaves(shapes, iter([leaf.array for leaf in new]))

    def _allocate(self, path: str, row: Shape) -> np.ndarray:
        """Return an array of zeros for rows of this shape, in memory or mapped to a file."""
        whole = (self.num_rows, *row.shape)
        if self.directory is None or not math.prod(whole):
            return np.zeros(whole, row.dtype)
        file = self.directory / (path.replace("/", "__") + ".bin")
        # Unlink instead of truncating: another buffer that is still mapped to the old file keeps its rows.
        file.unlink(missing_ok=True)
        return np.memmap(file, row.dtype, "w+", shape=whole).view(np.ndarray)

    def nbytes(self) -> int:
        """Return the memory of all columns, in bytes."""
        return sum(leaf.array.nbytes for leaf in self.leaves)

    def take(self, name: str, rows: np.ndarray) -> Tree:
        """Return the rows `[N]` or `[N, K]` of a column as copies `[N, ...]` or `[N, K, ...]`."""
        tree = self.trees[name]
        # One gather; the walk over a tree costs more than a small gather, so plain arrays go without it.
        if type(tree) is np.ndarray:
            return tree.take(rows, 0)
        return map_tree(lambda array: array.take(rows, 0), tree)

    def shapes(self) -> dict[str, Tree]:
        """Return the `Shape` of each column, as trees with the columns' structure."""
        return {name: map_tree(lambda a: Shape(a.shape[1:], a.dtype), tree) for name, tree in self.trees.items()}

    def get_state(self, used: int) -> dict[str, Tree]:
        """Return copies of the first `used` rows of all columns."""
        return {name: map_tree(lambda array: array[:used].copy(), tree) for name, tree in self.trees.items()}

    def set_state(self, state: Mapping[str, Tree]) -> None:
        """Restore a state of `get_state`, and create the columns if there are none yet.

        Raises:
            ValueError: the columns differ from those of this store. Nothing is written in that case.
        """
        if not self.trees:
            shapes = {name: map_tree(lambda a: Shape(a.shape[1:], a.dtype), tree) for name, tree in state.items()}
            self.create(shapes)

        saved: dict[str, np.ndarray] = {}
        for name, tree in state.items():
            saved.update(named_leaves(name, tree))
        stored = {leaf.path: leaf.array for leaf in self.leaves}
        if list(state) != list(self.trees) or set(saved) != set(stored):
            raise ValueError(f"the state has the columns {sorted(saved)}, this buffer {sorted(stored)}")

        # All arrays are checked before the first one is written.
        for path, array in saved.items():
            target = stored[path]
            if array.shape[1:] != target.shape[1:] or array.dtype != target.dtype or len(array) > self.num_rows:
                raise ValueError(
                    f"the state of column {path!r} has rows of shape {array.shape[1:]} and {array.dtype}, "
                    f"this buffer of {target.shape[1:]} and {target.dtype}"
                )
        for path, array in saved.items():
            stored[path][: len(array)] = array


class RowLayout:
    """Order of the arrays in which rows are written to a buffer.

    First come the columns of the store, beginning with the observations. Next come the next observations, if each
    observation is stored once and they are not a column of the store. Last come `terminateds` and `truncateds`, which
    the ring stores.
    """

    def __init__(self, store: ColumnStore, shares_next_obs: bool) -> None:
        """Make the layout for a store; with `shares_next_obs` each observation is stored once."""
        new_obs: list[Leaf] = []
        if shares_next_obs:
            paths = [path for path, _ in named_leaves(Columns.NEXT_OBS, store.trees[Columns.OBS])]
            arrays = leaves(store.trees[Columns.OBS])
            new_obs = [Leaf(Columns.NEXT_OBS, path, array) for path, array in zip(paths, arrays)]
        flags = [Leaf(name, name, np.zeros(0, np.bool_)) for name in FLAGS]

        self.leaves = [*store.leaves, *new_obs, *flags]
        """Shapes and dtypes of all arrays, in their order."""
        self.names = {leaf.name for leaf in self.leaves}
        """Names of the columns that rows must have."""
        self.num_obs = len(list(leaves(store.trees[Columns.OBS])))
        """Number of arrays of the observations, which come first."""
        self.num_stored = len(store.leaves)
        """Number of arrays that are columns of the store."""
        self.reward_at = [leaf.path for leaf in self.leaves].index(Columns.REWARDS)
        """Position of the rewards."""

    def arrays_of(self, batch: Mapping[str, Any], number: int, last_frame: bool) -> list[np.ndarray]:
        """Return the columns of `number` rows as arrays in this layout.

        With `last_frame` observations are stacks [number, frames, ...], and their last frames are taken. Errors are the
        same as in `ReplayBuffer.add`.
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

        # The kernel `place` reads rewards and flags, and is compiled for contiguous, writable arrays only.
        for position in (self.reward_at, -2, -1):
            if not arrays[position].flags.carray:
                arrays[position] = np.array(arrays[position])
        return arrays


class SharedNextObs:
    """Next observations for `ignore_obs_next`, where each observation is stored once.

    The next observation of a row is the observation of the next row of its episode. Two kinds of rows have no such row,
    and their next observations are stored here:

    - the newest row of each sub-buffer, in `heads` [B, ...];
    - a row that ends its episode, in `pool`, at the entry `slots[row]`. For all other rows `slots` is -1. The pool
      grows with the number of episodes that are stored at the same time; `free` lists its unused entries.

    When a row is added, the one that was newest until then either continues (its next observation is the new row's
    observation, bit for bit) or its entry in `heads` moves to the pool. A row that does not begin with the observation
    that the row before led to begins another episode, and the row before is cut. Without this, rows that were never
    neighbours would become neighbours, for instance after a reset that nobody reported.
    """

    def __init__(self, store: ColumnStore, ring: Ring) -> None:
        self.store = store
        self.ring = ring
        obs = store.trees[Columns.OBS]
        self.slots = np.full(ring.num_rows, -1, np.int32)
        self.heads = map_tree(lambda a: np.zeros((ring.num_buffers, *a.shape[1:]), a.dtype), obs)
        self.pool = map_tree(lambda a: np.zeros((16, *a.shape[1:]), a.dtype), obs)
        self.free = np.arange(16, dtype=np.int32)
        self._list_heads()

    def _list_heads(self) -> None:
        """List the arrays of `heads`, and views on their bytes, which each write needs."""
        self._head_leaves = list(leaves(self.heads))
        self._head_bytes = [_bytes_of(leaf) for leaf in self._head_leaves]

    def clear(self) -> None:
        """Forget all observations."""
        self.slots[:] = -1
        self.free = np.arange(len(next(leaves(self.pool))), dtype=np.int32)

    def before_write(self, ids: np.ndarray, obs: Sequence[np.ndarray]) -> None:
        """Prepare for new rows of different sub-buffers before the ring places them.

        The newest row of a sub-buffer is cut if the new row does not continue its episode. If its episode ends, its
        next observation moves from `heads` to the pool.

        Args:
            ids: sub-buffer of each row, [n].
            obs: arrays of the new rows' observations, [n, ...] each.
        """
        ring = self.ring
        endings = np.empty(len(ids), np.uint8)
        same = self._same_bits(self._head_bytes, ids, obs)
        if not ring.kernels.newest_endings(ids, same, ring.newest, ring.flags, endings):
            return  # the usual case: all episodes continue

        ring.cut(ids[endings == 2])
        ids = ids[endings != 0]
        self._move_to_pool(ring.newest[ids], [leaf[ids] for leaf in self._head_leaves])

    def find_breaks(self, obs: Sequence[np.ndarray], new_obs: Sequence[np.ndarray], ends: np.ndarray) -> np.ndarray:
        """Return which rows in time order do not lead to the observation of the row after them.

        Args:
            obs: arrays of observations, [n, ...] each.
            new_obs: arrays of next observations, [n, ...] each.
            ends: whether each row ends its episode anyway, bool [n].

        Returns:
            bool [n]; False for rows that end their episodes, and for the last row, whose successor is not known.
        """
        cuts = np.zeros(len(ends), np.bool_)
        new_bytes = [_bytes_of(leaf) for leaf in new_obs]
        cuts[:-1] = ~self._same_bits(new_bytes, np.arange(len(ends) - 1), [leaf[1:] for leaf in obs])
        return cuts & ~ends

    def after_write(
        self, ids: np.ndarray, rows: np.ndarray, new_obs: Sequence[np.ndarray], ends: np.ndarray | None
    ) -> None:
        """Store the next observations of rows that the ring has placed.

        Args:
            ids: sub-buffer of each row, [n].
            rows: rows that the ring has given them, [n].
            new_obs: arrays of next observations, [n, ...] each.
            ends: None for rows of different sub-buffers. For rows in time order of the one sub-buffer `ids[0]`, whether
                each ends its episode, bool [n].
        """
        # Rows that were overwritten give their entries back before new ones are taken, so that the pool stays small.
        if self.ring.kernels.num_with_slot(rows, self.slots):
            old = self.slots[rows]
            self.free = np.concatenate([self.free, old[old >= 0]])
            self.slots[rows] = -1

        if ends is not None:
            # Rows with a successor among these go to the pool now; the last one is the sub-buffer's newest.
            inside = np.flatnonzero(ends[:-1])
            self._move_to_pool(rows[inside], [leaf[inside] for leaf in new_obs])
            ids = ids[-1:]
            new_obs = [leaf[-1:] for leaf in new_obs]
        for head, leaf in zip(self._head_leaves, new_obs):
            head[ids] = leaf

    def take(self, rows: np.ndarray) -> Tree:
        """Return the true next observations of rows [N]."""
        # For the newest row and rows that end an episode `next` is the row itself: these are replaced below.
        obs = self.store.take(Columns.OBS, self.ring.next(rows))
        buffers = rows % self.ring.num_buffers
        is_newest = rows == self.ring.newest[buffers]
        slots = self.slots[rows]
        from_head = np.flatnonzero(is_newest)
        from_pool = np.flatnonzero((slots >= 0) & ~is_newest)
        for target, head, pool in zip(leaves(obs), leaves(self.heads), leaves(self.pool)):
            target[from_head] = head[buffers[from_head]]
            target[from_pool] = pool[slots[from_pool]]
        return obs

    def _move_to_pool(self, rows: np.ndarray, obs: list[np.ndarray]) -> None:
        """Store the next observations of rows that end their episodes in the pool, which grows if it is full."""
        if len(self.free) < len(rows):
            size = len(next(leaves(self.pool)))
            new_size = max(2 * size, size + len(rows))
            self.pool = map_tree(
                lambda a: np.concatenate([a, np.zeros((new_size - size, *a.shape[1:]), a.dtype)]), self.pool
            )
            self.free = np.concatenate([self.free, np.arange(size, new_size, dtype=np.int32)])

        slots = self.free[: len(rows)]
        self.free = self.free[len(rows) :]
        self.slots[rows] = slots
        for target, leaf in zip(leaves(self.pool), obs):
            target[slots] = leaf

    def _same_bits(self, left: list[np.ndarray], chosen: np.ndarray, right: Sequence[np.ndarray]) -> np.ndarray:
        """Return whether the rows `chosen` [n] of `left` (arrays as bytes) equal the rows of `right`, bool [n]."""
        same = np.ones(len(chosen), np.bool_)
        for left_bytes, leaf in zip(left, right):
            self.ring.kernels.same_rows(left_bytes, chosen, _bytes_of(leaf), same)
        return same

    def get_state(self) -> dict[str, Any]:
        """Return copies of all stored next observations and of the places they have."""
        return {
            "slots": self.slots[: self.ring.used()].copy(),
            "heads": map_tree(np.copy, self.heads),
            "pool": map_tree(np.copy, self.pool),
            "free": self.free.copy(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""
        self.slots[:] = -1
        self.slots[: len(state["slots"])] = state["slots"]
        self.heads = map_tree(np.array, state["heads"])
        self.pool = map_tree(np.array, state["pool"])
        self.free = np.array(state["free"])
        self._list_heads()


class CheckpointPieces:
    """Pieces of the rows of a ring, in which checkpoints save them.

    A piece has about `PIECE_BYTES` or more, and there are at most `MAX_PIECES`. As long as no row of a piece is
    written, `by_name` returns the same `SealedArrays` object for it. A checkpoint recognises an object that the
    checkpoint before has saved and links to its file instead of writing it again, so that saving a large buffer costs
    as much as the rows that are new.
    """

    def __init__(self, store: ColumnStore, ring: Ring) -> None:
        self.store = store
        self.ring = ring
        bytes_of_position = max(1, sum(leaf.array[:1].nbytes for leaf in store.leaves) * ring.num_buffers)
        self.length = max(1, PIECE_BYTES // bytes_of_position, -(-ring.size // MAX_PIECES))
        """Number of ring positions in a piece."""
        self._pieces: dict[int, SealedArrays] = {}
        """Pieces without changes since `by_name` returned them, by their number."""

        # State of the ring at the last call of `by_name`. The next call compares it with the present state.
        self._generation = -1
        self._written = ring.written.copy()
        self._next = np.zeros(ring.num_buffers, np.int64)
        """Position of each sub-buffer that is written next."""

    def by_name(self) -> dict[str, SealedArrays]:
        """Return the stored rows in pieces, by name. They are views, valid until the buffer changes."""
        ring = self.ring
        self._drop_changed()
        used = int(ring.count.max(initial=0))
        pieces = {}
        for number, start in enumerate(range(0, used, self.length)):
            stop = min(start + self.length, used)
            if number not in self._pieces:
                rows = slice(start * ring.num_buffers, stop * ring.num_buffers)
                self._pieces[number] = SealedArrays({leaf.path: leaf.array[rows] for leaf in self.store.leaves})
            pieces[f"{PIECE}{number:05d}"] = self._pieces[number]
        return pieces

    def _drop_changed(self) -> None:
        """Drop the pieces in which rows were written since the last call, and remember the ring's state."""
        ring = self.ring
        num_new = ring.written - self._written
        if self._generation != ring.generation or (num_new >= ring.size).any():
            self._pieces.clear()
        else:
            for b in np.flatnonzero(num_new):
                positions = np.arange(self._next[b], self._next[b] + num_new[b]) % ring.size
                for number in np.unique(positions // self.length).tolist():
                    self._pieces.pop(number, None)
        self._generation = ring.generation
        self._written = ring.written.copy()
        self._next = np.where(ring.newest < 0, 0, (ring.newest // ring.num_buffers + 1) % ring.size)

    @staticmethod
    def join(state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the whole columns of a state that has them in pieces, in the form of `ColumnStore.get_state`."""
        pieces = [state[name] for name in sorted(name for name in state if name.startswith(PIECE))]

        def whole(path: str, shape_and_dtype: Sequence[Any]) -> np.ndarray:
            if not pieces:
                shape, dtype = shape_and_dtype
                return np.zeros((0, *shape), dtype)
            if len(pieces) == 1:
                return pieces[0][path]
            return np.concatenate([piece[path] for piece in pieces])

        return {name: map_named(whole, name, tree) for name, tree in state["schema"].items()}


def _bytes_of(leaf: np.ndarray) -> np.ndarray:
    """Return rows [n, ...] as uint8 [n, bytes of a row]: a view if the array is contiguous, otherwise a copy."""
    return np.ascontiguousarray(leaf).reshape(len(leaf), math.prod(leaf.shape[1:])).view(np.uint8)


def _with_leaves(tree: Tree, new: Iterator[Any]) -> Tree:
    """Return a tree of the same structure with other leaves, in the order of `leaves`."""
    return map_tree(lambda _: next(new), tree)


def schema_of(batch: Mapping[str, Any], last_frame: bool) -> dict[str, Tree]:
    """Return the shapes of the columns that are needed to store the rows of a batch.

    Next observations and flags are not among them. With `last_frame` observations are stacks [n, frames, ...], of which
    single frames are stored.

    Raises:
        KeyError: a column of a transition is missing.
        ValueError: a column has a reserved name or a shape that cannot be stored.
        TypeError: a column does not hold numbers.
    """
    check_columns(batch)
    for name in RESERVED:
        if name in batch:
            raise ValueError(f"column {name!r} is one that drawing adds; call it something else")
    not_stored_here = (*FLAGS, Columns.NEXT_OBS)
    shapes = {name: shapes_of_rows(name, column) for name, column in batch.items() if name not in not_stored_here}
    if last_frame:
        shapes[Columns.OBS] = frame_shapes(shapes[Columns.OBS])
    reward = shapes[Columns.REWARDS]
    if not isinstance(reward, Shape) or len(reward.shape) > 1:
        raise ValueError("rewards must be one number for each row, or one for each agent")
    if reward.dtype.kind != "f":  # the first rewards may be integers by chance, later ones fractions
        shapes[Columns.REWARDS] = Shape(reward.shape, np.dtype(np.float32))
    return shapes


def shapes_of_rows(name: str, tree: Tree) -> Tree:
    """Return the tree of `Shape` of one row of a column.

    Raises:
        TypeError: a leaf does not hold numbers.
        ValueError: a leaf is a single number, and not one row for each environment.
    """

    def shape(leaf: object) -> Shape:
        if not isinstance(leaf, np.ndarray | torch.Tensor):
            leaf = np.asarray(leaf)
        if not is_numeric(leaf):
            raise TypeError(f"column {name!r} holds {leaf.dtype} values; a buffer stores numbers only: leave it out")
        if leaf.ndim == 0:
            raise ValueError(f"column {name!r} is one number; give one row for each environment")
        empty = to_numpy_leaf(leaf[:0])  # moves no rows of a tensor to the host
        return Shape(empty.shape[1:], empty.dtype)

    return map_tree(shape, tree)


def shapes_of_space(space: spaces.Space[Any]) -> Tree:
    """Return the tree of `Shape` of one row of a space. `ValueError` for a space without a fixed shape."""
    if isinstance(space, spaces.Dict):
        return {key: shapes_of_space(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(shapes_of_space(part) for part in space.spaces)
    if space.shape is None or space.dtype is None or space.dtype.kind not in "biuf":
        raise ValueError(f"the space {space} has no fixed shape of numbers and cannot be stored in columns")
    return Shape(space.shape, space.dtype)


def frame_shapes(shapes: Tree) -> Tree:
    """Return the shapes of single frames, for shapes of stacks [frames, ...]."""
    return map_tree(lambda shape: Shape(shape.shape[1:], shape.dtype), shapes)


def row_nbytes(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], ignore_obs_next: bool, num_frames: int = 1
) -> int:
    """Return the memory of the columns of one transition, in bytes. Of a stack of `num_frames` one frame is stored."""
    obs = sum(shape.nbytes for shape in leaves(shapes_of_space(observation_space)))
    action = sum(shape.nbytes for shape in leaves(shapes_of_space(action_space)))
    reward = np.dtype(np.float32).itemsize
    num_stored_obs = 1 if ignore_obs_next else 2
    return obs // num_frames * num_stored_obs + action + reward
