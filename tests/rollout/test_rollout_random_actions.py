"""Random actions for a whole vector are what `space.sample()` would give, one by one."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from lockstep.rollout.base_collector import random_actions

SPACES = [
    spaces.Discrete(3, start=-1),
    spaces.Discrete(4, dtype=np.int32),
    spaces.Box(-2.0, np.array([1.0, 2.0], np.float32)),
    spaces.Box(-np.inf, np.inf, (2,)),
    spaces.Box(0, 5, (2,), np.int32),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary(3),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_random_actions_of_every_space_are_of_its_kind_and_follow_the_generator(space):
    drawn = random_actions(space, np.random.default_rng(1), 5)
    sample = np.asarray(space.sample())
    assert drawn.shape == (5, *sample.shape)
    assert drawn.dtype == sample.dtype
    assert all(space.contains(row) for row in drawn)
    np.testing.assert_array_equal(drawn, random_actions(space, np.random.default_rng(1), 5))
    assert (drawn != random_actions(space, np.random.default_rng(2), 5)).any()


def test_random_actions_fill_their_space_evenly():
    rng = np.random.default_rng(0)
    counts = np.bincount(random_actions(spaces.Discrete(3, start=2), rng, 30_000) - 2)
    assert abs(counts / 30_000 - 1 / 3).max() < 0.01
    box = random_actions(spaces.Box(-1.0, 3.0, (1,)), rng, 30_000)
    assert abs(np.histogram(box, 4, (-1.0, 3.0))[0] / 30_000 - 0.25).max() < 0.01
