"""`ColumnStore`: preallocated columns in memory or in memory-mapped files, and the check of what goes into them."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from lockstep.data.trees import is_numeric, leaves, map_tree, named_leaves, to_numpy_leaf

Tree = Any
ALIGNMENT = 64
"""bytes of a line of the processor's cache"""


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


class Leaf:
    """One array `[num_rows, ...]`, where its rows stand in a batch, and what a row must be."""

    __slots__ = ("array", "dtype", "keys", "path", "shape")

    def __init__(self, path: str, keys: tuple[Any, ...], array: np.ndarray) -> None:
        self.path = path
        self.keys = keys
        self.array = array
        self.shape = array.shape[1:]
        self.dtype = array.dtype

    def conform(self, value: Any, num_rows: int) -> np.ndarray:
        """`value` as rows of this array, of its dtype; `ValueError` with expected and given where it does not fit."""
        loose = not isinstance(value, np.ndarray | torch.Tensor)
        if isinstance(value, dict | tuple):
            raise ValueError(f"column {self.path!r} expects {self._expected(num_rows)}; got {type(value).__name__}")
        found = np.asarray(to_numpy_leaf(value))
        casting: Any = "same_kind" if self.dtype.kind in "fc" or loose else "safe"
        if self.dtype == np.bool_ and found.dtype.kind in "iu" and ((found == 0) | (found == 1)).all():
            found = found.astype(np.bool_)
        if found.shape != (num_rows, *self.shape) or not np.can_cast(found.dtype, self.dtype, casting):
            raise ValueError(
                f"column {self.path!r} expects {self._expected(num_rows)}, as the first rows or the spaces said; "
                f"got shape {found.shape} of {found.dtype}"
            )
        return found if found.dtype == self.dtype else found.astype(self.dtype)

    def _expected(self, num_rows: int) -> str:
        return f"shape {(num_rows, *self.shape)} of {self.dtype}"


class ColumnStore:
    """Columns `name -> tree of arrays [num_rows, ...]`, made when the first rows or the spaces are known.

    With `storage="memmap"` each array is a file in `directory` (one of its own, removed with the object, where None);
    files of an earlier store there are replaced.
    """

    def __init__(self, num_rows: int, storage: str = "memory", directory: str | Path | None = None) -> None:
        if storage not in ("memory", "memmap"):
            raise ValueError(f"storage={storage!r}; allowed are 'memory' and 'memmap'")
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
        self.memory = np.zeros(0, np.uint8)
        """the bytes of all columns, which are views on it; none where they are files"""
        self.layout = np.zeros((0, 2), np.int64)
        """for each leaf where it begins in `memory`, and the bytes of a row"""

    def create(self, columns: Mapping[str, Tree]) -> None:
        """Room for all columns, trees of `Shape`."""
        sizes = np.array([shape.nbytes for tree in columns.values() for shape in leaves(tree)], np.int64)
        rooms = -(-sizes * self.num_rows // ALIGNMENT) * ALIGNMENT
        self.layout = np.stack([np.cumsum(rooms) - rooms, sizes], axis=1)
        if self.directory is None:
            self.memory = np.zeros(rooms.sum(), np.uint8)
        starts = iter(self.layout[:, 0].tolist())
        for name, shapes in columns.items():
            tree = _build(name, shapes, (), lambda path, shape: self._allocate(path, shape, next(starts)))
            found = [Leaf(path, keys, a) for (path, a), keys in zip(named_leaves(name, tree), _keys(tree, (name,)))]
            if not found:
                raise ValueError(f"column {name!r} has no arrays in it")
            self.trees[name] = tree
            self.leaves += found

    def _allocate(self, path: str, row: Shape, start: int) -> np.ndarray:
        whole, dtype = (self.num_rows, *row.shape), row.dtype
        if self.directory is None:
            return self.memory[start : start + self.num_rows * row.nbytes].view(dtype).reshape(whole)
        file = self.directory / (path.replace("/", "__") + ".bin")
        if not np.prod(whole):
            return np.zeros(whole, dtype)
        file.unlink(missing_ok=True)  # a file of its own: a buffer that is still mapped on an older one keeps its rows
        return np.memmap(file, dtype, "w+", shape=whole).view(np.ndarray)

    def nbytes(self) -> int:
        """Bytes of all columns."""
        return sum(leaf.array.nbytes for leaf in self.leaves)

    def take(self, name: str, rows: np.ndarray) -> Tree:
        """One gather: rows `[N]` or `[N, K]` of a column."""
        tree = self.trees[name]
        if type(tree) is np.ndarray:
            return tree.take(rows, 0)
        return map_tree(lambda array: array.take(rows, 0), tree)

    def shapes(self) -> dict[str, Tree]:
        """Shape and dtype of a row of each column, in the columns' nesting."""
        return {name: map_tree(lambda a: Shape(a.shape[1:], a.dtype), tree) for name, tree in self.trees.items()}

    def get_state(self, used: int) -> dict[str, Tree]:
        """Copies of the first `used` rows."""
        return {name: map_tree(lambda array: array[:used].copy(), tree) for name, tree in self.trees.items()}

    def set_state(self, state: Mapping[str, Tree]) -> None:
        """Goes back to what `get_state` gave, making the columns where there are none yet.

        Raises:
            ValueError: the columns are others than those of this store; nothing is written then.
        """
        if not self.trees:
            rows = {name: map_tree(lambda a: Shape(a.shape[1:], a.dtype), tree) for name, tree in state.items()}
            self.create(rows)
        if list(state) != list(self.trees):
            raise ValueError(f"the state has the columns {sorted(state)}, this buffer {sorted(self.trees)}")
        found = {path: array for name, tree in state.items() for path, array in named_leaves(name, tree)}
        own = {leaf.path: leaf for leaf in self.leaves}
        if set(found) != set(own):
            raise ValueError(f"the state has the columns {sorted(found)}, this buffer {sorted(own)}")
        for path, array in found.items():
            leaf = own[path]
            if array.shape[1:] != leaf.shape or array.dtype != leaf.dtype or len(array) > self.num_rows:
                raise ValueError(
                    f"the state of column {path!r} has rows of shape {array.shape[1:]} and {array.dtype}, "
                    f"this buffer of {leaf.shape} and {leaf.dtype}"
                )
        for path, array in found.items():  # not before all are known to fit
            own[path].array[: len(array)] = array


def shapes_of_rows(name: str, tree: Tree) -> Tree:
    """The schema that a column of first rows asks for.

    Raises:
        TypeError: a leaf that holds no numbers.
    """

    def shape(leaf: Any) -> Shape:
        if not isinstance(leaf, np.ndarray | torch.Tensor):
            leaf = np.asarray(leaf)
        if not is_numeric(leaf):
            raise TypeError(f"column {name!r} holds {leaf.dtype} values; a buffer stores numbers only: leave it out")
        if leaf.ndim == 0:
            raise ValueError(f"column {name!r} is one number; give one row for each environment")
        found = to_numpy_leaf(leaf[:0])
        return Shape(found.shape[1:], found.dtype)

    return map_tree(shape, tree)


def row_nbytes(observation_space: spaces.Space[Any], action_space: spaces.Space[Any], ignore_obs_next: bool) -> int:
    """Return the bytes of a transition's columns."""
    obs, action = (
        sum(shape.nbytes for shape in leaves(shapes_of_space(space))) for space in (observation_space, action_space)
    )
    return obs * (1 if ignore_obs_next else 2) + action + np.dtype(np.float32).itemsize


def machine_memory() -> int:
    """Return the bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def shapes_of_space(space: spaces.Space[Any]) -> Tree:
    """The schema of rows of a space. `ValueError` for a space without a fixed shape."""
    if isinstance(space, spaces.Dict):
        return {key: shapes_of_space(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(shapes_of_space(part) for part in space.spaces)
    if space.shape is None or space.dtype is None or space.dtype.kind not in "biuf":
        raise ValueError(f"the space {space} has no fixed shape of numbers and cannot be stored in columns")
    return Shape(space.shape, space.dtype)


def _build(path: str, shapes: Tree, keys: tuple[Any, ...], allocate: Any) -> Tree:
    if isinstance(shapes, dict):
        return {key: _build(f"{path}/{key}", part, (*keys, key), allocate) for key, part in shapes.items()}
    if isinstance(shapes, tuple):
        return tuple(_build(f"{path}/{i}", part, (*keys, i), allocate) for i, part in enumerate(shapes))
    return allocate(path, shapes)


def _keys(tree: Tree, keys: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The keys that lead to each array of a tree."""
    if isinstance(tree, dict):
        return [found for key, part in tree.items() for found in _keys(part, (*keys, key))]
    if isinstance(tree, tuple):
        return [found for i, part in enumerate(tree) for found in _keys(part, (*keys, i))]
    return [keys]
