"""Observations and actions as trees of arrays: an array, or dicts and tuples of them, rows in front."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array

from lockstep.data.trees import Tree, map_tree, zip_trees
from lockstep.data.values import ARRAY_SPACES, ObservationForm, check_entries

Rows = Any
"""An index, a list of indices, a mask or a slice of rows."""


def check_supported(space: spaces.Space, name: str) -> None:
    """Raise `ValueError` for a space that has no array of fixed size (Text, Graph, Sequence, ...), or no entries."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, part in parts:
            check_supported(part, f"{name}[{key!r}]")
    elif not isinstance(space, ARRAY_SPACES):
        raise ValueError(
            f"{name} is {space!r}, which has no array of fixed size. Allowed: Box, Discrete, MultiDiscrete, "
            "MultiBinary, and Dict or Tuple of these. Wrap the environment so that it gives one of them."
        )
    else:
        check_entries(space, name)


def space_of(env: Any, name: str) -> spaces.Space:
    """Return the space that an environment has under this name; `ValueError` where it has none."""
    space = getattr(env, name, None)
    if isinstance(space, spaces.Space):
        return space
    example = "Discrete(2)" if "action" in name else "Box(-1.0, 1.0, (4,))"
    raise ValueError(
        f"{name} of {env!r} is {space!r}; it must be a gymnasium space. Set it in the environment's __init__, e.g. "
        f"self.{name} = gymnasium.spaces.{example}."
    )


# -- rows of trees ---


def allocate(space: spaces.Space, num_rows: int) -> Tree:
    """Return a zeroed tree of arrays [num_rows, ...] for `space`: dicts for Dict, tuples for Tuple."""
    return create_empty_array(space, n=num_rows, fn=np.zeros)


def gather(tree: Tree, rows: Rows) -> Tree:
    """Return a tree with these rows of each array; a copy unless `rows` is a slice."""
    return map_tree(lambda leaf: leaf[rows], tree)


def scatter(tree: Tree, rows: Rows, values: Tree) -> None:
    """Write `values` into these rows of each array; `...` stands for all rows. A missing key or wrong shape raises."""
    for leaf, value in pairs(tree, values):
        leaf[rows] = value


def concatenate(parts: list[Tree]) -> Tree:
    """Return trees of one form with their leaves joined along the rows."""
    return zip_trees(np.concatenate, parts, "observation")


def stack_rows(space: spaces.Space, rows: list[Tree]) -> Tree:
    """Return a new tree [len(rows), ...] of single observations."""
    tree = allocate(space, len(rows))
    for index, row in enumerate(rows):
        scatter(tree, index, row)
    return tree


def as_arrays(tree: Tree) -> Tree:
    """Return the same tree with numpy arrays as leaves (jax and torch arrays are converted)."""
    return tree if isinstance(tree, np.ndarray) else map_tree(np.asarray, tree)


def pairs(tree: Tree, other: Tree) -> Iterator[tuple[Any, Any]]:
    """Yield each leaf of `tree` with what is at the same place in `other`."""
    if isinstance(tree, Mapping):
        for key, part in tree.items():
            yield from pairs(part, other[key])
    elif isinstance(tree, tuple):
        for part, part_of_other in zip(tree, other, strict=True):
            yield from pairs(part, part_of_other)
    else:
        yield tree, other


# -- single observations ---


def as_row(space: spaces.Space | None, value: Tree, name: str = "observation") -> Tree:
    """Return a copy of an observation, its arrays of the dtypes of `space`; of other spaces (None: unknown) as it is.

    Raises:
        ValueError: another form or shape, or values that the space cannot hold.
    """
    return copy.deepcopy(value) if space is None else ObservationForm.of(space, name).copy(value)
