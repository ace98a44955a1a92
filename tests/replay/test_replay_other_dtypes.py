"""Rows of another dtype than their column are stored, and compared, as what the column holds."""

import gymnasium as gym
import numpy as np
import pytest
from replay_tools import rows

from lockstep.replay import ReplayBuffer, VectorReplayBuffer

BOX, CHOICES = gym.spaces.Box(-9.0, 99.0, (4,), np.float32), gym.spaces.Discrete(3)
OPTIONS = {"n_step": 3, "gamma": 0.5, "ignore_obs_next": True, "observation_space": BOX, "action_space": CHOICES}


def windows(buffer):
    batch = buffer.all()
    return batch["obs"][:, 0].tolist(), batch["new_obs"][:, 0].tolist(), batch["discounts"].tolist()


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ">f4"])
def test_windows_reach_over_rows_of_another_dtype_where_observations_are_shared(dtype):
    expected, found = (VectorReplayBuffer(40, 1, **OPTIONS) for _ in range(2))
    for step in range(8):
        expected.add(rows(1, step))
        found.add(rows(1, step, dtype=dtype))
    assert windows(found) == windows(expected)
    assert windows(found)[2][:3] == [0.125] * 3


def test_a_table_with_one_of_its_observations_in_another_dtype_is_one_episode():
    buffer, table = ReplayBuffer(40, **OPTIONS), rows(8)
    buffer.extend({**table, "obs": table["obs"].astype(np.float64)})
    assert windows(buffer)[2] == [0.125] * 6 + [0.25, 0.5]
    assert windows(buffer)[1][-1] == 8.0


def test_rows_that_differ_by_less_than_the_column_can_hold_are_neighbours():
    buffer = ReplayBuffer(40, **OPTIONS)
    for step in range(4):
        row = rows(1, step, dtype=np.float64)
        buffer.add({**row, "obs": row["obs"] + 1e-12})
    assert windows(buffer)[2] == [0.125, 0.125, 0.25, 0.5]
