"""Spaces go through plain values and back."""

import json

import numpy as np
import pytest
from gymnasium import spaces

from lockstep.data.spaces import describe_space, space_from

SPACES = {
    "box": spaces.Box(-np.inf, np.inf, (4,), np.float32),
    "box_scalar": spaces.Box(-1, 1, (), np.float32),
    "box_half_open": spaces.Box(np.float32([0, -np.inf]), np.float32([1, np.inf])),
    "box_bounds": spaces.Box(np.array([-1.5, 0.1], np.float32), np.array([np.inf, 0.2], np.float32)),
    "image": spaces.Box(0, 255, (84, 84, 4), np.uint8),
    "discrete": spaces.Discrete(3, start=-2),
    "multi_discrete": spaces.MultiDiscrete([2, 3], start=[1, 4]),
    "multi_discrete_2d": spaces.MultiDiscrete([[3, 4], [2, 5]]),
    "multi_binary": spaces.MultiBinary(6),
    "multi_binary_2d": spaces.MultiBinary((2, 3)),
    "text": spaces.Text(5, charset="abc"),
    "nested": spaces.Dict(
        {"pose": spaces.Tuple([spaces.Box(-1, 1, (2, 3), np.float64), spaces.Discrete(4)]), "on": spaces.MultiBinary(5)}
    ),
}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_spaces_go_through_plain_values(space):
    assert space_from(json.loads(json.dumps(describe_space(space)))) == space


def test_other_spaces_are_refused():
    with pytest.raises(ValueError, match="cannot be written"):
        describe_space(spaces.Sequence(spaces.Discrete(2)))
    with pytest.raises(ValueError, match="unknown kind"):
        space_from({"type": "Sphere"})
