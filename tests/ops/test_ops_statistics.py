"""Running moments: one pass, shards, merges and states agree. Explained variance, and where there is none."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from parts import examples

from lockstep.ops import RunningMoments, TensorMoments, explained_variance


def assert_moments_equal(moments, rows, tolerance=1e-12):
    assert moments.count == len(rows)
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0), rtol=tolerance)
    np.testing.assert_allclose(moments.var, rows.var(axis=0), rtol=tolerance)


def test_running_moments_written_out():
    moments = RunningMoments()
    moments.update([1.0, 2.0])
    moments.update([6.0])
    assert (moments.count, float(moments.mean)) == (3, 3.0)
    assert float(moments.var) == pytest.approx(14.0 / 3.0, rel=1e-15)


@examples(60)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(0, 40), min_size=2, max_size=8).filter(lambda sizes: sum(sizes) > 1),
    num_shards=st.integers(1, 4),
    shape=st.sampled_from([(), (3,), (2, 2)]),
)
def test_moments_merged_over_random_shards_equal_one_pass(seed, sizes, num_shards, shape):
    rng = np.random.default_rng(seed)
    rows = 5.0 + 3.0 * rng.normal(size=(sum(sizes), *shape))
    shards = [RunningMoments(shape) for _ in range(num_shards)]
    for batch in np.split(rows, np.cumsum(sizes)[:-1]):
        shards[rng.integers(num_shards)].update(batch)
    rng.shuffle(shards)
    total = RunningMoments(shape)
    for shard in shards:
        total.merge(shard)
    assert_moments_equal(total, rows)


def test_moments_survive_a_mean_far_from_zero():
    """A sum of squares minus a squared sum loses every digit here."""
    rng = np.random.default_rng(0)
    rows = 1e9 + rng.normal(size=(4000, 2))
    moments = RunningMoments((2,))
    for batch in np.split(rows, 16):
        moments.update(batch)
    np.testing.assert_allclose(moments.var, rows.var(axis=0), rtol=1e-7)


def test_float32_rows_are_summed_in_float64():
    rows = np.random.default_rng(1).normal(100.0, 0.01, size=5000).astype(np.float32)
    moments = RunningMoments()
    moments.update(rows)
    assert_moments_equal(moments, rows.astype(np.float64))


def test_merge_leaves_the_other_unchanged_and_empty_ones_change_nothing():
    moments, other = RunningMoments((2,)), RunningMoments((2,))
    other.update([[1.0, 2.0], [3.0, 6.0]])
    before = other.get_state()
    moments.merge(other)
    moments.merge(RunningMoments((2,)))
    moments.update(np.zeros((0, 2)))
    np.testing.assert_array_equal(other.get_state()["mean"], before["mean"])
    np.testing.assert_array_equal(moments.mean, [2.0, 4.0])
    np.testing.assert_array_equal(moments.var, [1.0, 4.0])


def test_state_continues_exactly_and_is_a_copy():
    rng = np.random.default_rng(2)
    original, restored = RunningMoments((3,)), RunningMoments((3,))
    original.update(rng.normal(size=(10, 3)))
    state = original.get_state()
    more = rng.normal(size=(7, 3))
    original.update(more)
    restored.set_state(state)
    restored.update(more)
    for name, value in original.get_state().items():
        np.testing.assert_array_equal(value, restored.get_state()[name])
    assert state["count"] == 10
    handed_out = original.get_state()
    for changed in (state, handed_out):
        changed["mean"][:] = changed["squares"][:] = 99.0
    for moments in (original, restored):
        assert not (moments.mean == 99.0).any()
        assert not (moments.get_state()["squares"] == 99.0).any()


def test_wrong_shapes_and_states_are_refused():
    moments = RunningMoments((2,))
    with pytest.raises(ValueError, match=r"got an array of shape \(2,\)"):
        moments.update([1.0, 2.0])
    with pytest.raises(ValueError, match=r"shape \(3,\) into moments of shape \(2,\)"):
        moments.merge(RunningMoments((3,)))
    with pytest.raises(KeyError, match="squares"):
        moments.set_state({"count": 1, "mean": np.zeros(2)})
    with pytest.raises(ValueError, match=r"expected \(2,\)"):
        moments.set_state({"count": 1, "mean": np.zeros(3), "squares": np.zeros(3)})


@pytest.mark.parametrize(
    "pred, expected",
    [
        ([1.0, 2.0, 3.0, 6.0], 1.0),
        ([6.0, 7.0, 8.0, 11.0], 1.0),  # a constant error is not held against it
        ([4.0, 4.0, 4.0, 4.0], 0.0),
        ([-1.0, -2.0, -3.0, -6.0], -3.0),
        ([1.0, 2.0, 3.0, 2.0], 1.0 - 3.0 / 3.5),
    ],
)
def test_explained_variance_written_out(pred, expected):
    target = [1.0, 2.0, 3.0, 6.0]
    assert explained_variance(pred, target) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("target", [[0.1] * 7, [3.0], []])
def test_explained_variance_is_undefined_where_the_target_does_not_vary(target):
    pred = np.arange(len(target), dtype=np.float32)
    target = np.array(target, dtype=np.float32)
    assert math.isnan(explained_variance(pred, target))


def test_explained_variance_refuses_shapes_that_would_broadcast():
    with pytest.raises(ValueError, match=r"\(4, 1\) and \(4,\)"):
        explained_variance(np.zeros((4, 1)), np.zeros(4))


@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_moments_of_tensors_are_those_of_arrays(shape):
    """Through batches, merges with others and with empty ones, and a copy in each direction."""
    rng = np.random.default_rng(0)
    arrays, tensors = RunningMoments(shape), TensorMoments(shape, torch.device("cpu"))
    place = tensors.mean.data_ptr()
    assert torch.equal(tensors.var, torch.ones(shape, dtype=torch.float64))
    for number in (5, 1, 40):
        rows = rng.normal(3.0, 2.0, (number, *shape)).astype(np.float32)
        other = TensorMoments(shape, torch.device("cpu"))
        tensors.merge(other)
        other.update(torch.from_numpy(rows))
        tensors.merge(other)
        arrays.update(rows)
    np.testing.assert_allclose(tensors.mean, arrays.mean, rtol=1e-14)
    np.testing.assert_allclose(tensors.var, arrays.var, rtol=1e-14)
    found = tensors.read()
    assert found.count == 46
    assert found.mean.shape == found.squares.shape == shape
    tensors.clear()
    assert float(tensors.count) == 0.0
    tensors.write(found)
    np.testing.assert_equal(tensors.read().get_state(), found.get_state())
    assert tensors.mean.data_ptr() == place


@pytest.mark.parametrize("number", [1, 6, 30, 1000, 50_000])
def test_bits_of_a_column_on_the_device_do_not_depend_on_the_other_columns(number):
    rows = torch.randn(number, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(number))
    parts = {(5,): rows, (2,): rows[:, :2], (2, 1): rows[:, 2:4, None], (): rows[:, 4]}
    states = {}
    for shape, part in parts.items():
        moments = TensorMoments(shape, torch.device("cpu"))
        moments.update(part)
        moments.update(part.flip(0).contiguous())
        states[shape] = moments
    whole = states.pop((5,))
    assert torch.equal(whole.mean, torch.cat([each.mean.reshape(-1) for each in states.values()]))
    assert torch.equal(whole.squares, torch.cat([each.squares.reshape(-1) for each in states.values()]))
