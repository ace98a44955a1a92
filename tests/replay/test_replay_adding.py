"""Adding: whole vector steps, several at once, some sub-buffers, rows of other kinds than their columns."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from parts import examples
from replay_tools import rows

from lockstep.data.trees import named_leaves
from lockstep.replay import PrioritizedVectorReplayBuffer, ReplayBuffer, VectorReplayBuffer


def assert_same(left, right):
    """Two buffers hold the same, bit by bit."""
    pairs = zip(named_leaves("", left.get_state()), named_leaves("", right.get_state()), strict=True)
    for (path, a), (other_path, b) in pairs:
        assert path == other_path
        np.testing.assert_array_equal(a, b, err_msg=path)


def step(number, count, rng):
    """A step of `number` environments with a further column; some episodes end."""
    batch = rows(number, count, ends=rng.choice(["", "", "terminated", "truncated"], number))
    return {**batch, "logp": rng.random((number, 3)), "rewards": rng.random(number, np.float32)}


def several(steps):
    """Steps as one batch, columns [T, number, ...]."""
    return {name: np.stack([batch[name] for batch in steps]) for name in steps[0]}


@examples(25)
@given(
    pieces=st.lists(st.integers(1, 12), min_size=1, max_size=6),  # of 5 rows in each sub-buffer: more than fit, too
    number=st.integers(1, 3),
    prioritized=st.booleans(),
    out_of_line=st.booleans(),
)
def test_several_steps_added_at_once_equal_steps_added_one_by_one(pieces, number, prioritized, out_of_line):
    rng = np.random.default_rng(0)
    kind = PrioritizedVectorReplayBuffer if prioritized else VectorReplayBuffer
    short, long = kind(5 * number, number), kind(5 * number, number)
    for buffer in (short, long):
        buffer.add(step(number, 0, np.random.default_rng(1)))
        if out_of_line:
            buffer.add({name: column[:1] for name, column in step(number, 1, np.random.default_rng(2)).items()}, [0])
    for count, size in enumerate(pieces):
        steps = [step(number, 100 * count + 10 * t, rng) for t in range(size)]
        short.add_steps(several(steps))
        for batch in steps:
            long.add(batch)
        assert_same(short, long)


@pytest.mark.parametrize(
    "name, change",
    [
        ("obs", np.asfortranarray),
        ("rewards", lambda column: column.astype(np.float64)),
        ("rewards", lambda column: np.repeat(column, 2, axis=-1)[..., ::2]),
        ("rewards", lambda column: column.tolist()),
        ("actions", lambda column: column.tolist()),
        ("terminateds", lambda column: column.view(np.uint8)),
        ("new_obs", torch.from_numpy),
    ],
    ids=["order", "dtype", "strides", "list", "list-of-integers", "flags-as-bytes", "tensor"],
)
def test_rows_that_are_converted_are_stored_equally_in_both_ways(name, change):
    steps = [rows(2, 10 * t) for t in range(3)]
    plain, one_by_one, at_once = buffers = [VectorReplayBuffer(20, 2) for _ in range(3)]
    for buffer in buffers:
        buffer.add(rows(2))
    for each in steps:
        plain.add(each)
        one_by_one.add({**each, name: change(each[name])})
    batch = several(steps)
    at_once.add_steps({**batch, name: change(batch[name])})
    for buffer in (one_by_one, at_once):
        assert_same(buffer, plain)
    with pytest.raises(ValueError, match="'obs' expects"):  # one column is of fewer steps
        at_once.add_steps({**batch, "obs": batch["obs"][:1]})


def test_a_subclass_that_overrides_add_gets_each_step():
    class Counting(VectorReplayBuffer):
        added = 0

        def add(self, batch, buffer_ids=None):
            self.added += 1
            return super().add(batch, buffer_ids)

    buffer = Counting(20, 2)
    buffer.add_steps(several([rows(2, 10 * t) for t in range(3)]))
    assert buffer.added == 3
    assert len(buffer) == 6


BOX, CHOICES = gym.spaces.Box(-9.0, 99.0, (4,), np.float32), gym.spaces.Discrete(3)
OPTIONS = {"n_step": 3, "gamma": 0.5, "ignore_obs_next": True, "observation_space": BOX, "action_space": CHOICES}


def windows(buffer):
    batch = buffer.all()
    return batch["obs"][:, 0].tolist(), batch["new_obs"][:, 0].tolist(), batch["discounts"].tolist()


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ">f4"])
def test_windows_cross_rows_of_another_dtype_if_observations_are_shared(dtype):
    expected, found = (VectorReplayBuffer(40, 1, **OPTIONS) for _ in range(2))
    for step in range(8):
        expected.add(rows(1, step))
        found.add(rows(1, step, dtype=dtype))
    assert windows(found) == windows(expected)
    assert windows(found)[2][:3] == [0.125] * 3


def test_a_table_with_an_observation_of_another_dtype_is_one_episode():
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
