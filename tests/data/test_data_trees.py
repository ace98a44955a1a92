"""The walkers of trees: keys keep their order, tuples their type, and paths name each leaf."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium import spaces

from lockstep.data.trees import allocate, leaves, map_named, map_pair, named_leaves, rows_of, write_rows


class Pair(NamedTuple):
    first: Any
    second: Any


TREE = {"b": 1, "a": (2, {"d": 3, "c": 4}), "e": Pair(5, 6)}


def test_leaves_come_in_the_order_in_which_keys_were_inserted():
    assert list(leaves(TREE)) == [1, 2, 3, 4, 5, 6]


def test_a_function_of_path_and_leaf_gets_the_names_of_the_leaves():
    named = map_named(lambda path, leaf: (path, leaf), "obs", TREE)
    assert list(named) == list(TREE)
    assert isinstance(named["e"], Pair)
    assert named["a"][1]["d"] == ("obs/a/1/d", 3)
    assert [path for path, _ in named_leaves("obs", TREE)] == [
        *("obs/b", "obs/a/0", "obs/a/1/d", "obs/a/1/c", "obs/e/0", "obs/e/1")
    ]


def test_a_pair_of_trees_is_walked_by_the_first_one():
    other = {"e": (50, 60), "a": (20, {"c": 40, "d": 30}), "b": [10], "of no matter": 0}
    added = map_pair(lambda leaf, part: (leaf, part), TREE, other)
    assert list(added) == list(TREE)
    assert added["b"] == (1, [10])
    assert added["a"][1]["d"] == (3, 30)
    assert added["e"] == Pair((5, 50), (6, 60))


@pytest.mark.parametrize("other, error", [({"b": 1, "a": (2, {"d": 3})}, KeyError), ({"b": 1, "a": (2,)}, ValueError)])
def test_a_second_tree_that_lacks_a_part_is_refused(other, error):
    with pytest.raises(error):
        map_pair(lambda leaf, part: leaf, TREE, other)


def test_rows_are_allocated_written_and_read_as_the_space_says():
    space = spaces.Dict([("z", spaces.Box(0, 1, (2,), np.float32)), ("a", spaces.Tuple([spaces.Discrete(3)] * 2))])
    tree = allocate(space, 3)
    assert list(tree) == list(space.spaces)
    assert tree["z"].shape == (3, 2)
    assert tree["a"][1].dtype == np.int64
    write_rows(tree, 1, {"z": [0.5, 0.25], "a": (1, 2)})
    assert rows_of(tree, 1)["a"] == (1, 2)
    assert tree["z"].tolist() == [[0, 0], [0.5, 0.25], [0, 0]]


def test_several_leading_axes_and_another_maker_are_allocated_alike():
    space = spaces.Tuple([spaces.Box(0, 1, (2,), np.float32), spaces.Discrete(3)])
    numbers, choices = allocate(space, 4, 3, make=lambda shape, dtype: np.full(shape, 7, dtype))
    assert (numbers.shape, numbers.dtype) == ((4, 3, 2), np.float32)
    assert choices.tolist() == [[7] * 3] * 4


@pytest.mark.parametrize(
    "space",
    [
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Graph(spaces.Box(0, 1, (2,)), None),
        spaces.Text(3),
        spaces.Dict(inner=spaces.Tuple([spaces.Discrete(2), spaces.Text(3)])),
    ],
    ids=lambda space: type(space).__name__,
)
def test_a_space_without_a_fixed_shape_is_refused(space):
    with pytest.raises(ValueError, match="no fixed shape"):
        allocate(space, 2)
