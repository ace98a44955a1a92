"""Functions on trees of arrays: mapping, stacking, joining, reading and writing their rows.

A *tree* is a leaf, or a dict or tuple of trees; dicts keep the order of their keys. A *leaf* is a numpy array or a
torch tensor whose first axis counts rows. Columns, observations and actions are trees.

All code that walks nested arrays is in this module, so that dicts, tuples and named tuples work the same way in all
places.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from types import EllipsisType
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from lockstep.data.columns import Columns

_SHOWN_ITEMS = 3
"""Number of rows that a description of text or objects shows."""

Tree = Any
"""A leaf, or a dict or tuple of trees."""
Leaf = Any
"""A numpy array or a torch tensor."""
RowIndex = int | slice | list[int] | np.ndarray | torch.Tensor | EllipsisType | tuple[int | slice | np.ndarray, ...]
"""Rows of a leaf: one row, a range, row numbers or a mask. `...` means all rows; a tuple indexes `[T, B]` columns."""
NUMBERS = "biufc"
"""Kinds of numpy dtypes that torch has as well."""


def map_tree(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """Return a tree of the same structure with `function(leaf)` in place of each leaf."""
    if isinstance(tree, dict):
        # Most dicts are batches, whose values are leaves: calling the function here saves a Python call for each.
        return {
            key: map_tree(function, value) if isinstance(value, (dict, tuple)) else function(value)
            for key, value in tree.items()
        }
    if isinstance(tree, tuple):
        return _same_tuple(tree, [map_tree(function, value) for value in tree])
    return function(tree)


def map_named(function: Callable[[str, Any], Any], name: str, tree: Tree) -> Tree:
    """Return a tree of the same structure with `function(path, leaf)` in place of each leaf.

    Paths are those of `named_leaves`.
    """
    if isinstance(tree, dict):
        return {key: map_named(function, f"{name}/{key}", value) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return _same_tuple(tree, [map_named(function, f"{name}/{index}", value) for index, value in enumerate(tree)])
    return function(name, tree)


def map_pair(function: Callable[[Any, Any], Any], tree: Tree, other: Tree) -> Tree:
    """Return a tree like `tree` with `function(leaf, part)`, where `part` is at the place of the leaf in `other`.

    Parts that only `other` has are ignored. A `part` may be a tree itself.

    Raises:
        KeyError: `other` lacks a key of `tree`.
        ValueError: a tuple of `other` has another length.
    """
    if isinstance(tree, dict):
        return {key: map_pair(function, value, other[key]) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return _same_tuple(tree, [map_pair(function, *pair) for pair in zip(tree, other, strict=True)])
    return function(tree, other)


def completed(tree: Tree, whole: Tree) -> Tree:
    """Return `tree` with the entries of dicts that only `whole` has, in the order of `whole`."""
    if not isinstance(tree, dict) or not isinstance(whole, dict):
        return tree
    return {key: completed(tree[key], part) if key in tree else part for key, part in whole.items()}


def zip_trees(function: Callable[[list[Any]], Any], trees: Sequence[Tree], name: str) -> Tree:
    """Return one tree whose leaves are `function([leaf of each tree])`.

    Raises:
        ValueError: the trees differ in structure; names the column `name` and the position of the tree.
    """
    first = trees[0]
    keys = _keys(first)
    for position, tree in enumerate(trees):
        if _keys(tree) != keys:
            raise ValueError(
                f"column {name!r} is {_structure(first)} at position 0 but {_structure(tree)} at position {position}"
            )

    if isinstance(first, dict):
        return {key: zip_trees(function, [tree[key] for tree in trees], f"{name}/{key}") for key in first}
    if isinstance(first, tuple):
        parts = [zip_trees(function, list(part), f"{name}/{i}") for i, part in enumerate(zip(*trees))]
        return _same_tuple(first, parts)
    return function(list(trees))


def _keys(tree: Tree) -> Collection[Any] | int | None:
    """Return the keys of a dict, the length of a tuple, or None for a leaf. Trees of one structure have equal ones."""
    if isinstance(tree, dict):
        return tree.keys()
    return len(tree) if isinstance(tree, tuple) else None


def _structure(tree: Tree) -> str:
    """Return words for messages that say how a tree is built."""
    if isinstance(tree, dict):
        return f"a dict with {sorted(map(str, tree))}"
    return f"a tuple of {len(tree)}" if isinstance(tree, tuple) else f"a {type(tree).__name__}"


def copy_into(target: Tree, source: Tree) -> None:
    """Copy the values of each tensor of `source` into the tensor at its place in `target`, which keeps its memory."""
    map_pair(torch.Tensor.copy_, target, source)


def split_rows(tree: Tree, size: int) -> Iterator[Tree]:
    """Iterate over consecutive parts of `size` rows of a tree of tensors, as views. The last part may be smaller."""
    for parts in zip(*[leaf.split(size) for leaf in leaves(tree)]):
        yield with_leaves(tree, parts)


def with_leaves(tree: Tree, values: Iterable[Leaf]) -> Tree:
    """Return a tree of the structure of `tree` whose leaves are `values`, in the order of `leaves`."""
    following = iter(values)
    return map_tree(lambda _: next(following), tree)


def leaves(tree: Tree) -> Iterator[Any]:
    """Iterate over the leaves of a tree, in the order of keys and positions."""
    if isinstance(tree, dict):
        for value in tree.values():
            yield from leaves(value)
    elif isinstance(tree, tuple):
        for value in tree:
            yield from leaves(value)
    else:
        yield tree


def named_leaves(name: str, tree: Tree) -> Iterator[tuple[str, Any]]:
    """Iterate over (path, leaf) of a tree; paths are like `"obs/camera"` and `"obs/0"`."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from named_leaves(f"{name}/{key}", value)
    elif isinstance(tree, tuple):
        for index, value in enumerate(tree):
            yield from named_leaves(f"{name}/{index}", value)
    else:
        yield name, tree


def as_column(name: str, value: object) -> Tree:
    """Return `value` as the column `name` of a batch. Arrays and tensors stay; lists and numbers become arrays.

    Raises:
        TypeError: the value cannot be a column.
        ValueError: the rows of a list have different shapes.
    """
    if isinstance(value, np.ndarray | torch.Tensor):
        return value if value.ndim else value.reshape(1)
    if isinstance(value, dict):
        return {key: as_column(f"{name}/{key}", part) for key, part in value.items()}
    if isinstance(value, tuple):
        return _same_tuple(value, [as_column(f"{name}/{i}", part) for i, part in enumerate(value)])
    if isinstance(value, list):
        if name == Columns.INFOS:
            return object_rows(value)
        return _check_plain(name, stack_rows(name, value), value)
    if isinstance(value, bool | int | float | complex | str | np.generic):
        return np.asarray([value])
    raise TypeError(
        f"column {name!r} is a {type(value).__name__}; allowed are numpy arrays, torch tensors, lists, "
        "numbers, and dicts or tuples of them"
    )


def _check_plain(name: str, column: Tree, rows: list[Any]) -> Tree:
    """Return `column`, which numpy made of the list `rows`.

    Raises:
        TypeError: numpy turned the rows into objects, or numbers among text into text.
    """
    if isinstance(column, np.ndarray) and column.dtype.kind in "OUS":
        for number, row in enumerate(rows):
            if column.dtype.kind == "O" or not isinstance(row, str | bytes | list | np.ndarray | np.generic):
                raise TypeError(
                    f"column {name!r}, row {number}: {row!r} does not go with the others into one column of numbers or "
                    "of text; only infos may hold objects (give them as an array of dtype object)"
                )
    return column


def stack_rows(name: str, rows: Sequence[Any]) -> Tree:
    """Stack rows (numbers, arrays, tensors, or dicts and tuples of them) along a new first axis.

    Raises:
        ValueError: the rows differ in shape or structure; names the column `name`.
    """
    first = rows[0] if len(rows) else None
    if isinstance(first, dict | tuple):
        # `zip_trees` visits the leaves in the order of `named_leaves`, which gives each of them its full path.
        paths = iter([path for path, _ in named_leaves(name, first)])
        return zip_trees(lambda parts: stack_rows(next(paths), parts), rows, name)

    try:
        if isinstance(first, torch.Tensor):
            return torch.stack(list(rows))
        return np.array(rows)
    except (ValueError, RuntimeError, TypeError) as error:
        raise ValueError(f"the rows of {name!r} cannot be stacked: {_odd_row(rows) or error}") from None


def _odd_row(rows: Sequence[Any]) -> str | None:
    """Describe the first row whose shape differs from that of row 0; None if there is no such row."""
    try:
        shapes = [tuple(row.shape) if hasattr(row, "shape") else np.shape(row) for row in rows]
    except ValueError:  # a row is ragged itself
        return None
    odd = next((number for number, shape in enumerate(shapes) if shape != shapes[0]), None)
    return None if odd is None else f"row {odd} has shape {shapes[odd]}, row 0 has {shapes[0]}"


def index_leaf(leaf: Leaf, index: slice | np.ndarray) -> Any:
    """Return rows of a leaf: a view for a slice, one gather for an int64 array without negative entries."""
    if isinstance(index, slice):
        if isinstance(leaf, torch.Tensor) and index.step is not None and index.step < 0:
            # torch refuses slices with a negative step.
            return leaf.index_select(0, tensor_index(np.arange(len(leaf))[index], leaf))
        return leaf[index]
    if isinstance(leaf, np.ndarray):
        return leaf.take(index, axis=0)  # faster than leaf[index]
    return leaf.index_select(0, tensor_index(index, leaf))


def tensor_index(index: np.ndarray, leaf: torch.Tensor) -> torch.Tensor:
    """Return an int64 array as an index tensor on the device of `leaf`."""
    # torch takes no arrays with negative strides.
    forward = index if index.strides[0] > 0 else index.copy()
    return torch.from_numpy(forward).to(leaf.device)


def concat_leaves(parts: list[Any], name: str, axis: int = 0) -> Any:
    """Join leaves one after another, in one allocation.

    Raises:
        TypeError: some leaves are arrays and others tensors.
        ValueError: the shapes do not fit. Both errors name the column `name`.
    """
    kinds = set(map(type, parts))
    are_tensors = {issubclass(kind, torch.Tensor) for kind in kinds}
    if len(are_tensors) == 2:
        where = [i for i, part in enumerate(parts) if isinstance(part, torch.Tensor)]
        raise TypeError(
            f"column {name!r} is a torch tensor in the batches at {where} and a numpy array in the others; "
            "bring all to one kind with to_torch() or to_numpy()"
        )
    try:
        return torch.cat(parts, dim=axis) if are_tensors == {True} else np.concatenate(parts, axis=axis)
    except (ValueError, RuntimeError, TypeError) as error:
        shapes = [getattr(part, "shape", type(part).__name__) for part in parts[:8]]
        raise ValueError(f"column {name!r} cannot be joined; shapes are {shapes}: {error}") from None


def concat_trees(parts: list[Tree], name: str, axis: int = 0) -> Tree:
    """Join columns, which may be nested, one after another; errors as in `concat_leaves`."""
    if isinstance(parts[0], dict | tuple):
        return zip_trees(lambda parts_of_leaf: concat_leaves(parts_of_leaf, name, axis), parts, name)
    return concat_leaves(parts, name, axis)


def common_names(filled: Sequence[tuple[int, Collection[str]]], on_missing: str) -> list[str]:
    """Return the column names that all batches share.

    Args:
        filled: (Position, column names) of each batch that has rows.
        on_missing: `"drop"` leaves other columns out, `"raise"` refuses them.

    Raises:
        KeyError: with `on_missing="raise"`, a batch lacks a column; names the column and the batch.
    """
    names: dict[str, None] = {}
    for _, names_of_batch in filled:
        names.update(dict.fromkeys(names_of_batch))

    lacking = {name: [position for position, present in filled if name not in present] for name in names}
    missing = [name for name in names if lacking[name]]
    if missing and on_missing == "raise":
        raise KeyError(
            f"column {missing[0]!r} is missing in the batch at position {lacking[missing[0]][0]}; "
            "on_missing='drop' keeps the common columns"
        )
    return [name for name in names if not lacking[name]]


def copy_leaf(leaf: Leaf) -> Any:
    """Return an independent copy of a leaf. The objects of an object array are copied deeply."""
    if isinstance(leaf, torch.Tensor):
        return leaf.clone()
    return deepcopy(leaf) if leaf.dtype == object else leaf.copy()


def copy_arrays(value: Tree) -> Tree:
    """Return `value` with copies of its numpy arrays and tensors, also in nested dicts, lists and tuples.

    Other values, and the objects of object arrays, are shared with `value`.
    """
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: copy_arrays(part) for key, part in value.items()}
    if isinstance(value, list):
        return [copy_arrays(part) for part in value]
    if isinstance(value, tuple):
        return _same_tuple(value, [copy_arrays(part) for part in value])
    return value


def to_numpy_leaf(leaf: Leaf) -> np.ndarray:
    """Return a leaf as a numpy array. It shares memory with a tensor on the CPU; bfloat16 becomes float32."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    tensor = leaf.detach().cpu()
    if tensor.dtype == torch.bfloat16:  # which numpy lacks
        tensor = tensor.float()
    return tensor.numpy()


def is_numeric(leaf: Leaf) -> bool:
    """Return whether a leaf is a tensor or can become one. Strings and objects cannot."""
    return isinstance(leaf, torch.Tensor) or leaf.dtype.kind in NUMBERS


def has_numbers(tree: Tree) -> bool:
    """Return whether all leaves of a column are tensors or can become tensors."""
    if isinstance(tree, np.ndarray):  # the usual case, without the walk below
        return tree.dtype.kind in NUMBERS
    return all(map(is_numeric, leaves(tree)))


def to_torch_leaf(leaf: Leaf) -> Any:
    """Return a leaf as a tensor, which shares memory with the array if possible. Strings and objects stay arrays."""
    if isinstance(leaf, torch.Tensor) or not is_numeric(leaf):
        return leaf
    # torch refuses negative strides and foreign byte orders, and warns of read-only memory.
    is_forward = all(stride >= 0 for stride in leaf.strides)
    if leaf.flags.writeable and is_forward and leaf.dtype.isnative:
        return torch.from_numpy(leaf)
    return torch.from_numpy(leaf.astype(leaf.dtype.newbyteorder("=")))


def rows_of(tree: Tree, index: RowIndex) -> Tree:
    """Return `leaf[index]` of every leaf: one row for an int, views for a slice, copies for a list or a mask."""
    return map_tree(lambda leaf: leaf[index], tree)


def write_rows(tree: Tree, index: RowIndex, values: Tree) -> None:
    """Write `values` into the rows `index` of each leaf, in place; `...` means all rows.

    Raises:
        KeyError: `values` lacks a part of the tree.
        ValueError: the values of a leaf have another shape.
    """

    def write(leaf: Leaf, value: Any) -> None:
        leaf[index] = value

    map_pair(write, tree, values)


def allocate(
    space: spaces.Space[Any], *leading: int, make: Callable[[tuple[int, ...], Any], np.ndarray] = np.zeros
) -> Tree:
    """Return a new tree of arrays `[*leading, ...]` for values of a space: a dict for Dict, a tuple for Tuple.

    Args:
        space: Space of a single value.
        leading: Sizes of the first axes: rows, or vector steps and environments.
        make: Function that makes an array from shape and dtype. `np.empty` saves time if all rows are written before
            they are read.

    Raises:
        ValueError: a part of the space has no fixed shape (Graph, Sequence, Text).
    """
    if isinstance(space, spaces.Dict):
        return {key: allocate(part, *leading, make=make) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(allocate(part, *leading, make=make) for part in space.spaces)
    if space.shape is None or space.dtype is None:
        raise ValueError(f"the space {space} has no fixed shape and cannot be stored in columns")
    return make((*leading, *space.shape), space.dtype)


def stack_observations(space: spaces.Space[Any], observations: Sequence[Tree]) -> Tree:
    """Return single observations as a new tree `[len(observations), ...]` in the dtypes of their space."""
    tree = allocate(space, len(observations))
    for row, observation in enumerate(observations):
        write_rows(tree, row, observation)
    return tree


def as_arrays(tree: Tree) -> Tree:
    """Return the tree with numpy arrays as leaves. Arrays of jax and torch are converted."""
    return tree if isinstance(tree, np.ndarray) else map_tree(np.asarray, tree)


def leaf_bytes(leaf: Leaf) -> int:
    """Return the memory of a leaf in bytes, including the objects of an object array."""
    if isinstance(leaf, np.ndarray) and leaf.dtype == object:
        return int(leaf.nbytes) + sum(_object_bytes(item) for item in leaf.flat)
    return int(leaf.nbytes)


def _object_bytes(item: object) -> int:
    if isinstance(item, dict):
        inside = sum(_object_bytes(key) + _object_bytes(value) for key, value in item.items())
    elif isinstance(item, list | tuple):
        inside = sum(_object_bytes(value) for value in item)
    elif isinstance(item, torch.Tensor):
        inside = int(item.nbytes)
    else:
        inside = 0
    return sys.getsizeof(item) + inside


def object_rows(rows: list[Any]) -> np.ndarray:
    """Return objects as one array `[len(rows)]` of dtype object."""
    # Not np.array(rows, dtype=object): it would take lists and arrays of equal length apart into a second axis.
    column = np.empty(len(rows), dtype=object)
    for index, row in enumerate(rows):
        column[index] = row
    return column


def _same_tuple(like: tuple[Any, ...], parts: list[Any]) -> tuple[Any, ...]:
    """Return `parts` as a tuple of the type of `like`; a named tuple takes them as separate arguments."""
    return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)


# ---- row counts and descriptions -----------------------------------------------------------------------------


def column_rows(name: str, column: Tree, time_major: bool = False) -> int | None:
    """Return the number of rows of a column (L * S for time-major columns `[L, S, ...]`), or None for an empty tree.

    Raises:
        ValueError: the leaves of the tree have different numbers of rows.
    """
    if isinstance(column, np.ndarray | torch.Tensor):
        return _leaf_rows(column, time_major)

    first: tuple[str, int] | None = None
    for path, leaf in named_leaves(name, column):
        rows = _leaf_rows(leaf, time_major)
        first = first or (path, rows)
        if rows != first[1]:
            raise ValueError(f"columns {first[0]!r} and {path!r} have {first[1]} and {rows} rows")
    return None if first is None else first[1]


def _leaf_rows(leaf: Leaf, time_major: bool) -> int:
    if time_major and leaf.ndim > 1:
        return int(leaf.shape[0]) * int(leaf.shape[1])
    return int(leaf.shape[0])


def num_items(tree: Tree) -> int:
    """Return the number of rows of a column, which may be nested; 0 for an empty tree."""
    return len(tree) if isinstance(tree, np.ndarray | torch.Tensor) else len(next(leaves(tree), ()))


def describe_leaf(leaf: Leaf) -> str:
    """Describe a leaf by its container, shape, dtype and range; strings and objects by their first rows."""
    if isinstance(leaf, torch.Tensor):
        dtype = str(leaf.dtype).removeprefix("torch.")
        device = "" if leaf.device.type == "cpu" else f", device={leaf.device}"
        text = f"torch.Tensor({tuple(leaf.shape)}, dtype={dtype}{device}"
        numbers = leaf.detach().double().cpu().numpy() if not leaf.is_complex() else None
    else:
        text = f"np.ndarray({tuple(leaf.shape)}, dtype={leaf.dtype}"
        numbers = leaf if leaf.dtype.kind in "biuf" else None

    if numbers is None:
        head = ", ".join(_short(item) for item in leaf[:_SHOWN_ITEMS])
        more = ", ..." if len(leaf) > _SHOWN_ITEMS else ""
        return f"{text}, head=[{head}{more}])"
    if not numbers.size:
        return f"{text})"

    low, high = numbers.min(), numbers.max()
    mean = np.mean(numbers, dtype=np.float64)
    return f"{text}, min={low:.3f}, max={high:.3f}, mean={mean:.3f})"


def _short(item: object) -> str:
    text = repr(item.item() if isinstance(item, np.generic) else item)
    return text if len(text) <= 40 else text[:37] + "..."


# ---- reading and writing rows of numpy columns -----------------------------------------------------------------


def read_tree(tree: Tree, where: int | slice | np.ndarray, fill: Tree, num_stored: int) -> Tree:
    """Return the items at positions `where` of a stored column, which has `num_stored` items.

    With `fill` positions outside the column give the fill value, which may be one value or a tree like the column.
    """
    if tree is None:
        tree = np.empty(0, dtype=np.float32)
    if fill is not None:
        # An unsuitable value is refused in every call, also if no position is outside this time.
        _map_with_fill(_check_fill, tree, fill)

    if fill is not None and not isinstance(where, slice):
        positions = np.atleast_1d(np.asarray(where))
        outside = (positions < 0) | (positions >= num_stored)
        if outside.any():
            inside = np.where(outside, 0, positions)
            filled = _map_with_fill(lambda leaf, value: _filled_leaf(leaf, inside, outside, value), tree, fill)
            return map_tree(lambda leaf: leaf[0], filled) if isinstance(where, int) else filled

    if type(tree) is np.ndarray:
        return tree[where]
    if isinstance(where, int):
        return map_tree(lambda leaf: leaf[where], tree)
    return map_tree(lambda leaf: index_leaf(leaf, where), tree)


def _map_with_fill(function: Callable[[np.ndarray, np.ndarray], Any], tree: Tree, fill: Tree) -> Tree:
    """Return `function(leaf, fill value)` for each leaf. A `fill` that is not a tree is the value of all leaves."""
    if isinstance(fill, dict | tuple):
        return zip_trees(lambda pair: function(*pair), [tree, map_tree(np.asarray, fill)], "fill")
    return map_tree(lambda leaf: function(leaf, np.asarray(fill)), tree)


def _check_fill(leaf: np.ndarray, value: np.ndarray) -> None:
    """Raise `ValueError` unless the dtype of `leaf` can hold the fill value without loss."""
    dtype = leaf.dtype
    try:
        with np.errstate(all="ignore"):
            # Complex numbers would lose their imaginary part with no more than a warning.
            stored = value.astype(dtype, casting="safe" if value.dtype.kind == "c" else "unsafe")
        if dtype.kind in "fc" and value.dtype.kind in "biuf":
            # Rounding is what floats do; a number that becomes infinite is lost.
            fits = bool(np.array_equal(np.isfinite(stored), np.isfinite(value)))
        else:
            fits = bool(np.array_equal(stored, value))
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise ValueError(f"fill={value.tolist()!r} does not fit a column of {dtype}; give one that it can hold")


def _filled_leaf(leaf: np.ndarray, positions: np.ndarray, outside: np.ndarray, fill: Tree) -> np.ndarray:
    """Return the items at `positions`, and `fill` where the mask `outside` is set."""
    if len(leaf):
        result = leaf.take(positions, axis=0)
    else:  # nothing to take, not even position 0
        result = np.empty((len(positions), *leaf.shape[1:]), dtype=leaf.dtype)
    result[outside] = fill
    return result


def read_list(items: list[Any], where: int | slice | np.ndarray, fill: Tree) -> Any:
    """Return the items at positions `where` of a list of infos; `fill` for positions outside, as in `read_tree`."""
    if isinstance(where, slice):
        return items[where]
    if isinstance(where, int):
        return items[where] if 0 <= where < len(items) else fill
    return [items[i] if 0 <= i < len(items) else fill for i in where.tolist()]


def append_rows(current: Tree, spare: Tree, rows: Sequence[Any], name: str) -> tuple[Tree, Tree]:
    """Append rows to a column that grows.

    Args:
        current: Column so far, a view on the beginning of `spare`; None if there is none yet.
        spare: Larger column that has room for more rows; None if there is none yet.
        rows: Rows to append.
        name: Column name for error messages.

    Returns:
        The column with the new rows, and the larger column of which it is a view now (None for the first rows).
        The larger column doubles when it is full, so that n appends copy O(n) rows.

    Raises:
        ValueError: the new rows have another shape than those before.
    """
    new = stack_rows(name, rows)
    if current is None:
        return new, None

    start = num_items(current)
    stop = start + len(rows)
    grown = spare
    if spare is None or num_items(spare) < stop:
        grown = zip_trees(lambda pair: _grow(pair[0], pair[1], 2 * stop), [current, new], name)

    def write(parts: list[np.ndarray]) -> np.ndarray:
        target, source = parts
        if source.shape[1:] != target.shape[1:]:
            raise ValueError(f"{name} have shape {source.shape[1:]}, the ones before {target.shape[1:]}")
        if not np.can_cast(source.dtype, target.dtype):
            # Whole numbers first, then floats: the column becomes wide enough for both.
            target = target.astype(np.result_type(target, source))
        target[start:stop] = source
        return target

    grown = zip_trees(write, [grown, new], name)
    return map_tree(lambda leaf: leaf[:stop], grown), grown


def _grow(leaf: np.ndarray, new: np.ndarray, room: int) -> np.ndarray:
    """Return a copy of `leaf` with room for `room` rows, in a dtype that holds the new rows as well."""
    grown = np.empty((room, *leaf.shape[1:]), dtype=np.result_type(leaf, new))
    grown[: len(leaf)] = leaf
    return grown


def replace_rows(tree: Tree, where: slice | np.ndarray, rows: Tree, name: str) -> Tree:
    """Return a copy of a column with `rows` at the positions `where`.

    Raises:
        IndexError: there are more or fewer rows than positions.
        ValueError: the rows have another shape than those of the column.
    """
    num_stored = num_items(tree)
    positions = np.arange(num_stored)[where] if isinstance(where, slice) else where
    if num_items(rows) != len(positions):
        raise IndexError(f"new {name} have {num_items(rows)} items for {len(positions)} places")
    # A column that is replaced as a whole may have another shape and dtype afterwards.
    is_whole = isinstance(where, slice) and len(positions) == num_stored

    def put(parts: list[np.ndarray]) -> np.ndarray:
        old, new = parts
        if is_whole:
            return new.copy()
        if new.shape[1:] != old.shape[1:]:
            raise ValueError(f"new {name} have shape {new.shape[1:]}, the stored ones {old.shape[1:]}")
        result = old.astype(np.result_type(old, new))
        result[positions] = new
        return result

    return zip_trees(put, [tree, rows], name)


def as_rows(values: Tree, name: str) -> Tree:
    """Return rows as a column: a list of rows is stacked, the leaves of a tree become numpy arrays."""
    return stack_rows(name, values) if isinstance(values, list) else map_tree(np.asarray, values)


def space_parts(
    space: spaces.Space[Any] | None, value: Tree, name: str
) -> list[tuple[Any, spaces.Space[Any], Tree, str]] | None:
    """Return (key, space, value, name) of each part of a value of a Dict or Tuple space; None for another space.

    Raises:
        ValueError: the value has other keys, or another number of parts, than the space.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or value.keys() != space.spaces.keys():
            keys = sorted(value) if isinstance(value, Mapping) else type(value).__name__
            raise ValueError(f"{name} has keys {keys}, its space says {sorted(space.spaces)}")
        return [(key, part, value[key], f"{name}[{key!r}]") for key, part in space.spaces.items()]
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
            raise ValueError(f"{name} must be a tuple of {len(space.spaces)} parts, got {type(value).__name__}")
        return [(key, part, value[key], f"{name}[{key}]") for key, part in enumerate(space.spaces)]
    return None


def leaves_of_space(space: spaces.Space[Any] | None, value: Tree, name: str) -> Iterator[tuple[Any, Any, str]]:
    """Iterate over (simple space, value, name) of the leaves of a value of a space, in the order of the space.

    Raises:
        ValueError: the value has other keys, or another number of parts, than the space.
    """
    parts = space_parts(space, value, name)
    if parts is None:
        yield space, value, name
        return
    for _, part, inner, inner_name in parts:
        yield from leaves_of_space(part, inner, inner_name)


def one_hot(tree: Tree, space: spaces.Space[Any] | None, name: str) -> Tree:
    """Return a column of values of `space` with its Discrete and MultiDiscrete parts as float32 one-hot vectors.

    Raises:
        ValueError: there is no space.
    """
    if space is None:
        raise ValueError(f"one_hot_discrete=True needs the space of the {name}, and this episode has none")
    if tree is None:
        tree = np.empty(0, dtype=np.float32)

    if isinstance(space, spaces.Dict):
        return {key: one_hot(tree[key], space[key], name) for key in tree}
    if isinstance(space, spaces.Tuple):
        return tuple(one_hot(part, inner, name) for part, inner in zip(tree, space.spaces))
    if isinstance(space, spaces.MultiDiscrete):
        choices = np.asarray(tree) - space.start
        # A MultiDiscrete may have several axes; its vectors follow one another on a single one.
        flat = choices.reshape(*choices.shape[: choices.ndim - space.nvec.ndim], -1)
        vectors = [_one_hot_vectors(flat[..., i], int(n)) for i, n in enumerate(space.nvec.reshape(-1))]
        return np.concatenate(vectors, axis=-1)
    if isinstance(space, spaces.Discrete):
        return _one_hot_vectors(np.asarray(tree) - space.start, int(space.n))
    return tree


def _one_hot_vectors(index: np.ndarray, size: int) -> np.ndarray:
    return (index[..., None] == np.arange(size)).astype(np.float32)


def check_in_space(tree: Tree, space: spaces.Space[Any] | None, name: str) -> None:
    """Raise `ValueError` naming the first row that is outside `space`. Without a space nothing is checked."""
    if space is None or tree is None:
        return
    for row in range(num_items(tree)):
        value = rows_of(tree, row)
        if not space.contains(value):
            raise ValueError(f"{name}[{row}] = {value!r} does not lie in the space {space}")


def in_stored_dtype(pair: list[np.ndarray]) -> np.ndarray:
    """Return new values in the dtype of the stored ones, if both are of one kind; `pair` is (new, stored).

    A list of Python floats for a float32 column becomes float32, and whole numbers become floats. Floats for a column
    of whole numbers stay floats, so that nothing is lost.
    """
    new, stored = pair
    fits = new.dtype.kind == stored.dtype.kind or (stored.dtype.kind == "f" and new.dtype.kind in "iu")
    return new.astype(stored.dtype) if fits else new


def trees_equal(first: Tree, second: Tree) -> bool:
    """Return whether two trees have the same structure and values. NaN equals NaN, and a list equals a tuple."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(trees_equal(first[key], second[key]) for key in first)
    if isinstance(first, tuple | list) and isinstance(second, tuple | list):
        return len(first) == len(second) and all(trees_equal(a, b) for a, b in zip(first, second))
    if isinstance(first, dict | tuple | list) or isinstance(second, dict | tuple | list):
        return False

    a = np.asarray(first)
    b = np.asarray(second)
    # `equal_nan` is refused for dtypes without NaN.
    equal_nan = a.dtype.kind == "f" and b.dtype.kind == "f"
    return a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=equal_nan))
