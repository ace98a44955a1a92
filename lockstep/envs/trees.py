"""Observations and actions as trees of arrays: an array, or dicts and tuples of them, rows in front."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array, iterate

ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def check_supported(space: spaces.Space, name: str) -> None:
    """Raise ``ValueError`` for a space that has no fixed-size array form (Text, Graph, Sequence, ...)."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            check_supported(part, f"{name}[{key!r}]")
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            check_supported(part, f"{name}[{index}]")
    elif not isinstance(space, ARRAY_SPACES):
        raise ValueError(
            f"{name} is {space!r}, which has no array of fixed size. Allowed: Box, Discrete, MultiDiscrete, "
            "MultiBinary, and Dict or Tuple of these. Wrap the environment so that it gives one of them."
        )


def space_of(env: Any, name: str) -> spaces.Space:
    """The space that an environment has under this name; ``ValueError`` where it has none."""
    space = getattr(env, name, None)
    if not isinstance(space, spaces.Space):
        raise ValueError(no_space(env, name))
    return space


def no_space(env: Any, name: str) -> str:
    """What to say of an environment without a space of this name."""
    example = "Discrete(2)" if "action" in name else "Box(-1.0, 1.0, (4,))"
    return (
        f"{name} of {env!r} is {getattr(env, name, None)!r}; it must be a gymnasium space. Set it in the environment's "
        f"__init__, e.g. self.{name} = gymnasium.spaces.{example}."
    )


def allocate(space: spaces.Space, num_rows: int) -> Any:
    """A zeroed tree of arrays [num_rows, ...] for ``space``: dicts for Dict, tuples for Tuple."""
    return create_empty_array(space, n=num_rows, fn=np.zeros)


def write_row(tree: Any, row: int, value: Any) -> None:
    """Copy one observation into row ``row`` of a tree; a missing key or wrong shape raises."""
    if isinstance(tree, np.ndarray):
        tree[row] = value
    elif isinstance(tree, Mapping):
        for key, part in tree.items():
            write_row(part, row, value[key])
    else:
        for part, part_value in zip(tree, value, strict=True):
            write_row(part, row, part_value)


def copy_into(target: Any, source: Any) -> None:
    """Copy every array of ``source`` into the array at the same place of ``target``."""
    if isinstance(target, np.ndarray):
        target[...] = source
    elif isinstance(target, Mapping):
        for key, part in target.items():
            copy_into(part, source[key])
    else:
        for part, part_source in zip(target, source, strict=True):
            copy_into(part, part_source)


def gather(tree: Any, rows: Any) -> Any:
    """A copied tree with only the given rows (integer indices or a mask) of each array."""
    if isinstance(tree, np.ndarray):
        return tree[rows]
    if isinstance(tree, Mapping):
        return {key: gather(part, rows) for key, part in tree.items()}
    return tuple(gather(part, rows) for part in tree)


def scatter(tree: Any, rows: Any, values: Any) -> None:
    """Write ``values`` [k, ...] into the given k rows of each array."""
    if isinstance(tree, np.ndarray):
        tree[rows] = values
    elif isinstance(tree, Mapping):
        for key, part in tree.items():
            scatter(part, rows, values[key])
    else:
        for part, part_values in zip(tree, values, strict=True):
            scatter(part, rows, part_values)


def stack_rows(space: spaces.Space, rows: list[Any]) -> Any:
    """A new tree [len(rows), ...] from single observations."""
    tree = allocate(space, len(rows))
    for index, row in enumerate(rows):
        write_row(tree, index, row)
    return tree


def check_shape(tree: Any, value: Any, name: str = "observation") -> None:
    """Raise ``ValueError`` where a single observation has not the shape of one row of ``tree``.

    A plain write would broadcast a scalar over the whole row without a word.
    """
    if isinstance(tree, np.ndarray):
        shape = np.shape(value)
        if shape != tree.shape[1:]:
            raise ValueError(
                f"{name} has shape {shape}, its space says {tree.shape[1:]}; return observations of that shape, or "
                "declare theirs in observation_space"
            )
    elif isinstance(tree, Mapping):
        if not isinstance(value, Mapping) or value.keys() != tree.keys():
            given = sorted(value) if isinstance(value, Mapping) else type(value).__name__
            raise ValueError(f"{name} has keys {given}, its space says {sorted(tree)}")
        for key, part in tree.items():
            check_shape(part, value[key], f"{name}[{key!r}]")
    else:
        if not isinstance(value, tuple | list) or len(value) != len(tree):
            raise ValueError(f"{name} must be a tuple of {len(tree)} parts, got {type(value).__name__}")
        for index, (part, part_value) in enumerate(zip(tree, value, strict=True)):
            check_shape(part, part_value, f"{name}[{index}]")


def as_row(space: spaces.Space | None, value: Any, name: str = "observation") -> Any:
    """A copy of one observation, its arrays of the dtypes of `space`; of other spaces (None: unknown) as they are.

    Raises ``ValueError`` for another form or shape, and for fractions where the space has whole numbers.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or value.keys() != space.spaces.keys():
            given = sorted(value) if isinstance(value, Mapping) else type(value).__name__
            raise ValueError(f"{name} has keys {given}, its space says {sorted(space.spaces)}")
        return {key: as_row(part, value[key], f"{name}[{key!r}]") for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
            raise ValueError(f"{name} must be a tuple of {len(space.spaces)} parts, got {type(value).__name__}")
        parts = zip(space.spaces, value, strict=True)
        return tuple(as_row(part, own, f"{name}[{index}]") for index, (part, own) in enumerate(parts))
    if not isinstance(space, ARRAY_SPACES):
        return copy.deepcopy(value)
    array, dtype = np.asarray(value), np.dtype(space.dtype)
    if array.shape != space.shape:
        raise ValueError(f"{name} has shape {array.shape}, its space says {space.shape}")
    if array.dtype.kind not in ("iub" if dtype.kind in "iu" else "iubf"):
        raise ValueError(f"{name} has values of dtype {array.dtype}, its space {dtype}")
    return array.astype(dtype)[()]


def split_actions(batched_space: spaces.Space, actions: Any) -> Iterable[Any]:
    """One action for each row, from a batched tree of actions."""
    return iterate(batched_space, actions)


def concatenate(parts: list[Any]) -> Any:
    """Trees of one form with their leaves joined along the rows."""
    first = parts[0]
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    if isinstance(first, dict):
        return {key: concatenate([part[key] for part in parts]) for key in first}
    return tuple(concatenate([part[index] for part in parts]) for index in range(len(first)))
