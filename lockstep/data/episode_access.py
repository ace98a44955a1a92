"""Index arithmetic and storage of an episode's columns, with a lookback before index 0.

A stored column has `lookback` items before the episode's first; *positions* count from the very first stored item,
*indices* are what the user gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lockstep.data.trees import copy_leaf, index_leaf, leaves, map_tree, row_of, stack_rows, zip_trees

Tree = Any
Indices = int | slice | Sequence[int] | np.ndarray | None


def position_of(index: int, lookback: int, stored: int, neg_index_as_lookback: bool) -> int:
    """Position of one index; may lie outside `0 .. stored`, which the caller must check."""
    if index >= 0 or neg_index_as_lookback:
        return lookback + index
    return stored + index


def slice_bounds(key: slice, lookback: int, stored: int, neg_index_as_lookback: bool) -> tuple[int, int, int]:
    """Positions `(start, stop, step)` of a slice, not clipped. Open ends stop at the lookback."""
    step = 1 if key.step is None else int(key.step)
    if step == 0:
        raise ValueError("a slice step cannot be zero")
    start = (lookback if step > 0 else stored - 1) if key.start is None else None
    stop = (stored if step > 0 else lookback - 1) if key.stop is None else None
    if start is None:
        start = position_of(int(key.start), lookback, stored, neg_index_as_lookback)
    if stop is None:
        stop = position_of(int(key.stop), lookback, stored, neg_index_as_lookback)
    return start, stop, step


def positions_of(
    indices: Indices, lookback: int, stored: int, neg_index_as_lookback: bool, *, fill: bool, what: str
) -> int | slice | np.ndarray:
    """Positions to read or write: an int, a slice inside the column, or an int64 array.

    Without `fill` a slice is clipped as Python clips it, and an int or list outside raises `IndexError`. With
    `fill` positions outside stay and mean "filled in".
    """
    if indices is None:
        return slice(lookback, stored)
    if isinstance(indices, slice):
        start, stop, step = slice_bounds(indices, lookback, stored, neg_index_as_lookback)
        if fill:
            positions = np.arange(start, stop, step, dtype=np.int64)
            if not len(positions):
                return slice(0, 0)  # a stop before the first item would count from the end
            inside = positions.min() >= 0 and positions.max() < stored
            return slice(start, stop) if inside and step == 1 else positions
        if step > 0:
            return slice(max(start, 0), min(max(stop, 0), stored), step)
        start = min(start, stored - 1)
        return np.arange(start, max(stop, -1), step, dtype=np.int64)
    if isinstance(indices, int | np.integer):
        position = position_of(int(indices), lookback, stored, neg_index_as_lookback)
        if not fill and not 0 <= position < stored:
            raise _outside(int(indices), what, lookback, stored)
        return position
    given = [int(index) for index in indices]
    positions = np.array([position_of(i, lookback, stored, neg_index_as_lookback) for i in given], dtype=np.int64)
    if not fill:
        for index, position in zip(given, positions.tolist()):
            if not 0 <= position < stored:
                raise _outside(index, what, lookback, stored)
    return positions


def _outside(index: int, what: str, lookback: int, stored: int) -> IndexError:
    return IndexError(
        f"index {index} of {what} is out of range: {stored - lookback} items and {lookback} before them as lookback; "
        "give `fill` to read past the ends"
    )


def read_tree(tree: Tree, where: int | slice | np.ndarray, fill: Any, stored: int) -> Tree:
    """Items of a stored column (a tree of arrays) at positions; positions outside give `fill`."""
    if fill is not None:
        _check_fill(tree, fill)
    if fill is not None and not isinstance(where, slice):
        positions = np.atleast_1d(np.asarray(where))
        outside = (positions < 0) | (positions >= stored)
        if outside.any():
            filled = _fill_in(tree, np.where(outside, 0, positions), outside, fill)
            return map_tree(lambda leaf: leaf[0], filled) if isinstance(where, int) else filled
    if type(tree) is np.ndarray:
        return tree[where]
    if isinstance(where, int):
        return map_tree(lambda leaf: leaf[where], tree)
    return map_tree(lambda leaf: index_leaf(leaf, where), tree)


def _check_fill(tree: Tree, fill: Any) -> None:
    """Raise `ValueError` where a leaf cannot hold its fill value, also where nothing is filled in this time."""
    if isinstance(fill, dict | tuple):
        zip_trees(lambda pair: _check_held(pair[0].dtype, pair[1]), [tree, map_tree(np.asarray, fill)], "fill")
    else:
        map_tree(lambda leaf: _check_held(leaf.dtype, np.asarray(fill)), tree)


def _check_held(dtype: np.dtype, value: np.ndarray) -> None:
    try:
        with np.errstate(all="ignore"):
            stored = value.astype(dtype, casting="safe" if value.dtype.kind == "c" else "unsafe")
        if dtype.kind in "fc" and value.dtype.kind in "biuf":  # rounding is no loss, infinity is
            held = bool(np.array_equal(np.isfinite(stored), np.isfinite(value)))
        else:
            held = bool(np.array_equal(stored, value))
    except (TypeError, ValueError, OverflowError):
        held = False
    if not held:
        raise ValueError(f"fill={value.tolist()!r} does not fit a column of {dtype}; give one that it can hold")


def _fill_in(tree: Tree, positions: np.ndarray, outside: np.ndarray, fill: Any) -> Tree:
    if isinstance(fill, dict | tuple):
        return zip_trees(
            lambda pair: _filled_leaf(pair[0], positions, outside, pair[1]),
            [tree, map_tree(np.asarray, fill)],
            "fill",
        )
    return map_tree(lambda leaf: _filled_leaf(leaf, positions, outside, fill), tree)


def _filled_leaf(leaf: np.ndarray, positions: np.ndarray, outside: np.ndarray, fill: Any) -> np.ndarray:
    if len(leaf):
        result = leaf.take(positions, axis=0)
    else:
        result = np.empty((len(positions), *leaf.shape[1:]), dtype=leaf.dtype)
    result[outside] = fill
    return result


def read_list(items: list[Any], where: int | slice | np.ndarray, fill: Any) -> Any:
    """Items of a list of infos at positions."""
    if isinstance(where, slice):
        return items[where]
    if isinstance(where, int):
        return items[where] if 0 <= where < len(items) else fill
    return [items[i] if 0 <= i < len(items) else fill for i in where.tolist()]


def append_rows(current: Tree, spare: Tree, rows: Sequence[Any], name: str) -> tuple[Tree, Tree]:
    """`current` with `rows` after it, and the larger column it is now a view of (None after the first packing).

    Columns that are read and written in turn double their room, so that n appends copy O(n) rows.
    """
    new = stack_rows(name, rows)
    if current is None:
        return new, None
    if spare is not None and (current_room := num_items(spare)) >= num_items(current) + len(rows):
        grown = spare
    else:
        current_room = 2 * (num_items(current) + len(rows))
        grown = zip_trees(lambda pair: _grow(pair[0], pair[1], current_room, name), [current, new], name)
    start = num_items(current)

    def write(parts: list[np.ndarray]) -> np.ndarray:
        target, source = parts
        if source.shape[1:] != target.shape[1:]:
            raise ValueError(f"{name} have shape {source.shape[1:]}, the ones before {target.shape[1:]}")
        if not np.can_cast(source.dtype, target.dtype):
            wider = target.astype(np.result_type(target, source))
            wider[start : start + len(rows)] = source
            return wider
        target[start : start + len(rows)] = source
        return target

    grown = zip_trees(write, [grown, new], name)
    return map_tree(lambda leaf: leaf[: start + len(rows)], grown), grown


def _grow(leaf: np.ndarray, new: np.ndarray, room: int, name: str) -> np.ndarray:
    if leaf.shape[1:] != new.shape[1:]:
        raise ValueError(f"{name} have shape {new.shape[1:]}, the ones before {leaf.shape[1:]}")
    grown = np.empty((room, *leaf.shape[1:]), dtype=np.result_type(leaf, new))
    grown[: len(leaf)] = leaf
    return grown


def num_items(tree: Tree) -> int:
    """Rows of a column that may be nested."""
    return len(tree) if isinstance(tree, np.ndarray) else len(next(iter(leaves(tree)), ()))


def written(tree: Tree, where: slice | np.ndarray, rows: Tree, name: str) -> Tree:
    """A copy of the column with `rows` at the positions; `IndexError` where the lengths differ."""
    stored = num_items(tree)
    target = np.arange(stored)[where] if isinstance(where, slice) else where
    if num_items(rows) != len(target):
        raise IndexError(f"new {name} have {num_items(rows)} items for {len(target)} places")
    whole = isinstance(where, slice) and len(target) == stored

    def put(parts: list[np.ndarray]) -> np.ndarray:
        old, new = parts
        if whole:
            return new.copy()
        if new.shape[1:] != old.shape[1:]:
            raise ValueError(f"new {name} have shape {new.shape[1:]}, the stored ones {old.shape[1:]}")
        result = old.astype(np.result_type(old, new))
        result[target] = new
        return result

    return zip_trees(put, [tree, rows], name)


def as_rows(values: Any, name: str) -> Tree:
    """A list of rows as a column; trees of arrays and arrays stay."""
    return stack_rows(name, values) if isinstance(values, list) else map_tree(np.asarray, values)


def one_hot(tree: Tree, space: Any, name: str) -> Tree:
    """Discrete and MultiDiscrete parts as float32 one-hot vectors; other parts as they are."""
    if space is None:
        raise ValueError(f"one_hot_discrete=True needs the space of the {name}, and this episode has none")
    inner: Any = getattr(space, "spaces", None)
    if isinstance(inner, dict):
        return {key: one_hot(tree[key], inner[key], name) for key in tree}
    if inner is not None:
        return tuple(one_hot(part, sub, name) for part, sub in zip(tree, inner))
    if hasattr(space, "nvec"):
        start = np.asarray(getattr(space, "start", 0))
        index = np.asarray(tree) - start
        sizes = np.asarray(space.nvec).reshape(-1)
        flat = index.reshape(*index.shape[: index.ndim - np.ndim(space.nvec)], -1)
        return np.concatenate([_hot(flat[..., i], int(size)) for i, size in enumerate(sizes)], axis=-1)
    if hasattr(space, "n") and tuple(getattr(space, "shape", ()) or ()) == ():
        return _hot(np.asarray(tree) - int(getattr(space, "start", 0)), int(space.n))
    return tree


def _hot(index: np.ndarray, size: int) -> np.ndarray:
    return (np.asarray(index)[..., None] == np.arange(size)).astype(np.float32)


def check_in_space(tree: Tree, space: Any, name: str) -> None:
    """`ValueError` naming the first row that does not lie in `space` (nothing without a space)."""
    if space is None:
        return
    for row in range(num_items(tree)):
        value = row_of(tree, row)
        if not space.contains(value):
            raise ValueError(f"{name}[{row}] = {value!r} does not lie in the space {space}")


def trees_equal(first: Tree, second: Tree) -> bool:
    """Whether two trees have the same structure and values (NaN equals NaN)."""
    if isinstance(first, dict) or isinstance(second, dict):
        return (
            isinstance(first, dict)
            and isinstance(second, dict)
            and first.keys() == second.keys()
            and all(trees_equal(first[key], second[key]) for key in first)
        )
    if isinstance(first, tuple | list) or isinstance(second, tuple | list):
        return (
            isinstance(first, tuple | list)
            and isinstance(second, tuple | list)
            and len(first) == len(second)
            and all(trees_equal(a, b) for a, b in zip(first, second))
        )
    a, b = np.asarray(first), np.asarray(second)
    return a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f" and b.dtype.kind == "f"))


def copied(tree: Tree) -> Tree:
    """An independent copy of a column."""
    return map_tree(copy_leaf, tree)
