"""Reading: every kind of column comes out as it went in, as a copy."""

from __future__ import annotations

import numpy as np
import pytest
from replay_tools import rows

from lockstep.data.trees import named_leaves
from lockstep.replay import PrioritizedVectorReplayBuffer, ReplayBuffer, VectorReplayBuffer

KINDS = ["bool", "uint8", "int16", "int32", "int64", "float16", "float32", "float64", "complex128"]


def step(kind, shape, count):
    """A vector step of two environments with a further column, random to the last byte."""
    rng = np.random.default_rng(count)

    def column():
        size = (2, *shape)
        with np.errstate(invalid="ignore"):  # a negative number as an unsigned one
            return rng.integers(0, 2, size).astype(kind) if kind == "bool" else rng.normal(0, 50, size).astype(kind)

    ends = [("", "terminated", "truncated")[k] for k in rng.integers(0, 3, 2)]
    return {**rows(2, count, ends=ends), "obs": column(), "new_obs": column(), "more": column()}


@pytest.mark.parametrize("shape", [(), (1,), (3,), (4,), (2, 5), (7, 3)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_read_as_they_were_added(kind, shape):
    steps = [step(kind, shape, count) for count in range(30)]
    buffer = VectorReplayBuffer(2 * 20, 2)
    for given in steps:
        placed = buffer.add(given)
    columns = {name: np.concatenate([given[name] for given in steps[10:]]) for name in steps[0]}
    times = np.roll(np.arange(20), 10)  # position 0 holds step 20
    wanted = np.random.default_rng(0).integers(0, 40, 64)
    for chosen in (wanted, wanted[:1], wanted[:0], np.asarray(placed.indices)):
        drawn = buffer[chosen]
        assert list(drawn) == [
            "obs",
            "new_obs",
            "actions",
            "rewards",
            "terminateds",
            "truncateds",
            "more",
            "batch_indexes",
        ]
        in_order = 2 * times[chosen // 2] + chosen % 2
        for name, column in columns.items():
            found = drawn[name]
            assert found.dtype == column.dtype, name
            assert found.flags.c_contiguous, name
            assert found.flags.writeable, name
            assert found.flags.aligned, name
            assert found.tobytes() == column[in_order].tobytes(), name
            assert found.shape == column[in_order].shape, name


def test_samples_are_copies():
    buffer = PrioritizedVectorReplayBuffer(10, 2)
    buffer.add(rows(2))
    first, second = buffer.sample(8), buffer.sample(8)
    kept, stored = second["obs"].copy(), buffer.all()["obs"].copy()
    first["obs"][:] = -1.0
    np.testing.assert_array_equal(second["obs"], kept)
    np.testing.assert_array_equal(buffer.all()["obs"], stored)


def test_columns_of_every_form_are_read_as_they_were_added(tmp_path):
    nested = {"obs": {"a": np.zeros((1, 2))}, "new_obs": {"a": np.ones((1, 2))}}
    cases = [
        ({"storage": "memmap", "directory": tmp_path}, rows(1)),
        ({"ignore_obs_next": True}, rows(1)),
        ({"n_step": 2}, rows(1)),
        ({}, {**rows(1), **nested}),
        ({}, rows(1, obs_size=2000)),
        ({}, {**rows(1), "more": np.zeros((1, 0))}),
    ]
    for options, row in cases:
        buffer = ReplayBuffer(5, **options)
        buffer.add(row)
        drawn = buffer[[0, 0, 0]]
        for name, column in row.items():
            pairs = zip(named_leaves(name, drawn[name]), named_leaves(name, column), strict=True)
            for (path, found), (_, expected) in pairs:
                np.testing.assert_array_equal(found, np.repeat(expected, 3, 0), err_msg=path)
        assert len(buffer.sample(3)) == 3
