"""Columns may be nested (dicts and tuples of arrays); these functions walk them.

A *leaf* is a numpy array or a torch tensor whose first axis counts rows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch

from lockstep.data.columns import Columns

Tree = Any


def whole(name: str, value: Any, least: int) -> int:
    """`value` as an int; `TypeError` or `ValueError` naming it unless it is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}={value!r}; it must be a whole number, at least {least}")
    if value < least:
        raise ValueError(f"{name}={value}; it must be at least {least}")
    return int(value)


def map_tree(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """The same tree with `function(leaf)` in place of each leaf."""
    if isinstance(tree, dict):  # of columns mostly, which are mostly leaves
        return {
            key: map_tree(function, value) if isinstance(value, (dict, tuple)) else function(value)
            for key, value in tree.items()
        }
    if isinstance(tree, tuple):
        return _same_tuple(tree, [map_tree(function, value) for value in tree])
    return function(tree)


def zip_trees(function: Callable[[list[Any]], Any], trees: Sequence[Tree], name: str) -> Tree:
    """One tree whose leaves are `function([leaf of each tree])`.

    Raises `ValueError`, naming `name` and the position, when the trees are not built alike.
    """
    first = trees[0]
    if isinstance(first, dict):
        for position, tree in enumerate(trees):
            if not isinstance(tree, dict) or tree.keys() != first.keys():
                raise ValueError(_unlike(name, position, first, tree))
        return {key: zip_trees(function, [tree[key] for tree in trees], f"{name}/{key}") for key in first}
    if isinstance(first, tuple):
        for position, tree in enumerate(trees):
            if not isinstance(tree, tuple) or len(tree) != len(first):
                raise ValueError(_unlike(name, position, first, tree))
        parts = [zip_trees(function, list(part), f"{name}/{i}") for i, part in enumerate(zip(*trees))]
        return _same_tuple(first, parts)
    for position, tree in enumerate(trees):
        if isinstance(tree, dict | tuple):
            raise ValueError(_unlike(name, position, first, tree))
    return function(list(trees))


def leaves(tree: Tree) -> Iterator[Any]:
    """The leaves of a tree, in order."""
    if isinstance(tree, dict):
        for value in tree.values():
            yield from leaves(value)
    elif isinstance(tree, tuple):
        for value in tree:
            yield from leaves(value)
    else:
        yield tree


def named_leaves(name: str, tree: Tree) -> Iterator[tuple[str, Any]]:
    """The leaves with their paths, `"obs/camera"`, `"obs/0"`."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from named_leaves(f"{name}/{key}", value)
    elif isinstance(tree, tuple):
        for index, value in enumerate(tree):
            yield from named_leaves(f"{name}/{index}", value)
    else:
        yield name, tree


def as_column(name: str, value: Any) -> Tree:
    """What a batch stores for `value`: arrays and tensors as they are, lists and numbers as arrays.

    Raises `TypeError` for a value that is no column, `ValueError` for a list with rows of different shapes.
    """
    if isinstance(value, np.ndarray | torch.Tensor):
        return value if value.ndim else value.reshape(1)
    if isinstance(value, dict):
        return {key: as_column(f"{name}/{key}", part) for key, part in value.items()}
    if isinstance(value, tuple):
        return _same_tuple(value, [as_column(f"{name}/{i}", part) for i, part in enumerate(value)])
    if isinstance(value, list):
        return _object_array(value) if name == Columns.INFOS else _checked(name, stack_rows(name, value), value)
    if isinstance(value, bool | int | float | complex | str | np.generic):
        return np.asarray([value])
    raise TypeError(
        f"column {name!r} is a {type(value).__name__}; allowed are numpy arrays, torch tensors, lists, "
        "numbers, and dicts or tuples of them"
    )


def _checked(name: str, column: Tree, rows: list[Any]) -> Tree:
    """`TypeError` where numpy made objects of a list, or text of numbers among texts."""
    if isinstance(column, np.ndarray) and column.dtype.kind in "OUS":
        for number, row in enumerate(rows):
            if column.dtype.kind == "O" or not isinstance(row, str | bytes | list | np.ndarray | np.generic):
                raise TypeError(
                    f"column {name!r}, row {number}: {row!r} does not go with the others into one column of numbers or "
                    "of text; only infos may hold objects (give them as an array of dtype object)"
                )
    return column


def stack_rows(name: str, rows: Sequence[Any]) -> Tree:
    """Rows (numbers, arrays, tensors, or dicts and tuples of arrays) stacked along a new first axis.

    Raises `ValueError` naming the column when the rows differ in shape or structure.
    """
    first = rows[0] if len(rows) else None
    if isinstance(first, dict | tuple):
        return _stack_trees(name, rows)
    try:
        if isinstance(first, torch.Tensor):
            return torch.stack(list(rows))
        return np.array(rows)
    except (ValueError, RuntimeError, TypeError) as error:
        raise ValueError(f"the rows of {name!r} cannot be stacked: {_odd_row(rows) or error}") from None


def _stack_trees(name: str, rows: Sequence[Any]) -> Tree:
    """As `stack_rows`, of dicts or tuples: each leaf is named by its path."""
    paths = iter([path for path, _ in named_leaves(name, rows[0])])
    return zip_trees(lambda parts: stack_rows(next(paths), parts), rows, name)


def _odd_row(rows: Sequence[Any]) -> str | None:
    """Words for the first row whose shape is not that of row 0; None where that is not the reason."""
    try:
        shapes = [tuple(row.shape) if hasattr(row, "shape") else np.shape(row) for row in rows]
    except ValueError:  # a row that is ragged itself
        return None
    odd = next((number for number, shape in enumerate(shapes) if shape != shapes[0]), None)
    return None if odd is None else f"row {odd} has shape {shapes[odd]}, row 0 has {shapes[0]}"


def index_leaf(leaf: Any, index: slice | np.ndarray) -> Any:
    """Rows of a leaf: a view for a slice, one gather for an int64 array without negative entries."""
    if isinstance(index, slice):
        if isinstance(leaf, torch.Tensor) and index.step is not None and index.step < 0:
            return leaf.index_select(0, tensor_index(np.arange(len(leaf))[index], leaf))
        return leaf[index]
    if isinstance(leaf, np.ndarray):
        return leaf.take(index, axis=0)
    return leaf.index_select(0, tensor_index(index, leaf))


def tensor_index(index: np.ndarray, leaf: torch.Tensor) -> torch.Tensor:
    """An int64 array as an index on the tensor's device (torch takes no negative strides)."""
    return torch.from_numpy(index if index.strides[0] > 0 else index.copy()).to(leaf.device)


def concat_leaves(parts: list[Any], name: str, axis: int = 0) -> Any:
    """Leaves one after another, in one allocation."""
    kinds = set(map(type, parts))
    tensors = {issubclass(kind, torch.Tensor) for kind in kinds}
    if len(tensors) == 2:
        where = [i for i, part in enumerate(parts) if isinstance(part, torch.Tensor)]
        raise TypeError(
            f"column {name!r} is a torch tensor in the batches at {where} and a numpy array in the others; "
            "bring all to one kind with to_torch() or to_numpy()"
        )
    if len(kinds) > 1 and any(issubclass(kind, dict | tuple) for kind in kinds):
        position = next(i for i, part in enumerate(parts) if isinstance(part, dict | tuple))
        raise ValueError(_unlike(name, position, parts[0], parts[position]))
    try:
        return torch.cat(parts, dim=axis) if tensors == {True} else np.concatenate(parts, axis=axis)
    except (ValueError, RuntimeError, TypeError) as error:
        shapes = [tuple(part.shape) for part in parts[:8]]
        raise ValueError(f"column {name!r} cannot be joined; shapes are {shapes}: {error}") from None


def copy_leaf(leaf: Any) -> Any:
    """An independent copy, also of the objects in an object array."""
    if isinstance(leaf, torch.Tensor):
        return leaf.clone()
    return deepcopy(leaf) if leaf.dtype == object else leaf.copy()


def to_numpy_leaf(leaf: Any) -> np.ndarray:
    """A numpy array, sharing memory where the tensor lies on the CPU (bfloat16 becomes float32)."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    leaf = leaf.detach().cpu()
    return (leaf.float() if leaf.dtype == torch.bfloat16 else leaf).numpy()


def is_numeric(leaf: Any) -> bool:
    """Whether a leaf can be a tensor (strings and objects cannot)."""
    return isinstance(leaf, torch.Tensor) or leaf.dtype.kind in "biufc"


def to_torch_leaf(leaf: Any) -> Any:
    """A tensor sharing memory where numpy allows it; strings and objects stay arrays."""
    if isinstance(leaf, torch.Tensor) or not is_numeric(leaf):
        return leaf
    shareable = leaf.flags.writeable and all(stride >= 0 for stride in leaf.strides)
    return torch.from_numpy(leaf if shareable and leaf.dtype.isnative else leaf.astype(leaf.dtype.newbyteorder("=")))


def row_of(tree: Tree, row: int) -> Tree:
    """One row of a column."""
    return map_tree(lambda leaf: leaf[row], tree)


def leaf_bytes(leaf: Any) -> int:
    """Bytes of a leaf, with the objects of an object array."""
    if isinstance(leaf, np.ndarray) and leaf.dtype == object:
        return int(leaf.nbytes) + sum(_object_bytes(item) for item in leaf.flat)
    return int(leaf.nbytes)


def _object_bytes(item: Any) -> int:
    if isinstance(item, dict):
        inside = sum(_object_bytes(key) + _object_bytes(value) for key, value in item.items())
    elif isinstance(item, list | tuple):
        inside = sum(_object_bytes(value) for value in item)
    elif isinstance(item, torch.Tensor):
        inside = int(item.nbytes)
    else:
        inside = 0
    return sys.getsizeof(item) + inside


def _object_array(rows: list[Any]) -> np.ndarray:
    column = np.empty(len(rows), dtype=object)
    for index, row in enumerate(rows):
        column[index] = row
    return column


def _same_tuple(like: tuple[Any, ...], parts: list[Any]) -> tuple[Any, ...]:
    return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)


def _unlike(name: str, position: int, first: Any, other: Any) -> str:
    def build(tree: Any) -> str:
        if isinstance(tree, dict):
            return f"a dict with {sorted(map(str, tree))}"
        return f"a tuple of {len(tree)}" if isinstance(tree, tuple) else f"a {type(tree).__name__}"

    return f"column {name!r} is {build(first)} at position 0 but {build(other)} at position {position}"
