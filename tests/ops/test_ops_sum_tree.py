"""The sum tree against an array and loops; that of tensors against it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from parts import examples

from lockstep.ops import SumTree
from lockstep.ops.tensor_sum_tree import TensorSumTree

VALUES = st.one_of(st.just(0.0), st.floats(1e-6, 1e6))


@examples(80)
@given(data=st.data(), size=st.integers(1, 40))
def test_sum_tree_is_an_array_with_a_running_sum(data, size):
    tree, plain = SumTree(size), np.zeros(size)
    for _ in range(5):
        where = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=12))
        values = data.draw(st.lists(VALUES, min_size=len(where), max_size=len(where)))
        if len(set(values)) == 1:
            tree[where] = values[0]
        else:
            tree[where] = values
        for i, value in zip(where, values):
            plain[i] = value
        np.testing.assert_array_equal(tree.values, plain)
        np.testing.assert_array_equal(tree[where], plain[where])
        assert tree.total == pytest.approx(plain.sum(), rel=1e-12)
        if not plain.any():
            continue
        masses = data.draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=8))
        found = tree.find(np.array(masses) * tree.total)
        for mass, i in zip(np.array(masses) * tree.total, found):
            tolerance = 1e-9 * tree.total
            assert plain[i] > 0
            assert plain[:i].sum() - tolerance <= mass <= plain[: i + 1].sum() + tolerance


def test_sum_tree_depends_on_its_numbers_alone():
    rng = np.random.default_rng(0)
    used, fresh = SumTree(1000), SumTree(1000)
    for _ in range(50):
        used[rng.integers(0, 1000, 64)] = rng.random(64) ** 9
    fresh.load(used.values)
    assert used.total == fresh.total
    uniforms = rng.random(500)
    np.testing.assert_array_equal(used.draw(uniforms), fresh.draw(uniforms))


def test_sum_tree_draws_in_proportion():
    tree = SumTree(5)
    tree[[0, 1, 3, 4]] = [1.0, 2.0, 3.0, 4.0]
    rng = np.random.default_rng(1)
    counts = sum(np.bincount(tree.draw(rng.random(10)), minlength=5) for _ in range(2000))
    np.testing.assert_allclose(counts / 20_000, [0.1, 0.2, 0, 0.3, 0.4], atol=0.01)


def test_sum_tree_never_finds_a_zero_whatever_rounding_does():
    tree = SumTree(6)
    tree[[1, 2, 3]] = [0.1, 0.2, 0.3]
    assert tree.find([tree.total, np.nextafter(tree.total, 0)]).tolist() == [3, 3]
    assert tree.find([0.0]).tolist() == [1]


@pytest.mark.parametrize("exponent", [0.0, 0.3, 0.6, 1.0, 2.5])
def test_powers_of_errors_are_numpys_to_the_last_digits(exponent):
    rng = np.random.default_rng(0)
    bases = np.concatenate(
        [np.exp(rng.uniform(-30, 30, 5000)), 2.0 ** np.arange(-60, 61), np.sqrt(0.5) * 2.0 ** np.arange(9)]
    )
    where = np.arange(len(bases))
    tree = SumTree(len(bases))
    assert tree.set_powers(where, -bases, 0.0, exponent) == bases.max()
    expected = bases**exponent
    allowed = np.maximum(3e-15, 2e-16 * np.abs(np.log2(expected)))
    assert (np.abs(tree.values / expected - 1.0) <= allowed).all()
    relative = tree.relative_powers(where[:300], 0.7)
    assert relative.dtype == np.float32
    expected = (tree.values[:300] / tree.values[:300].min()) ** -0.7
    np.testing.assert_allclose(relative, expected, rtol=1e-7, atol=1e-44)
    assert relative.max() == 1.0


def test_powers_beyond_the_range_of_numbers_stay_within_it():
    tree = SumTree(3)
    tree.set_powers(np.arange(3), np.array([1e-300, 1.0, 1e300]), 1e-6, 60.0)
    assert tree.values[0] > 0.0  # 1e-360 would be 0, and the row never drawn again
    assert np.isfinite(tree.values).all()
    assert np.isfinite(tree.relative_powers(np.arange(3), 0.4)).all()


@pytest.mark.parametrize("mass", [np.nan, -1e-12, np.nextafter(6.0, 7), 10.0, np.inf, -np.inf])
def test_find_refuses_nan_and_masses_outside_of_the_total(mass):
    tree = SumTree(3)
    tree[[0, 1, 2]] = [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match=rf"0 \.\. 6\.0, the total; got {mass}"):
        tree.find([0.5, mass])
    assert tree.find([0.0, 1.0, 6.0]).tolist() == [0, 1, 2]


def test_sum_tree_refuses_what_it_cannot_hold():
    tree = SumTree(3)
    with pytest.raises(ValueError, match="all numbers of the sum tree are 0"):
        tree.draw(np.zeros(2))
    for bad in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="finite numbers of at least 0"):
            tree[[0]] = [bad]
    with pytest.raises(ValueError, match="one number for each, or one for all"):
        tree[[0, 1]] = [1.0, 2.0, 3.0]
    with pytest.raises(IndexError, match=r"0 \.\. 2, got -1"):
        tree[[-1]] = 1.0
    with pytest.raises(IndexError, match="whole numbers"):
        tree[[0.5]]
    with pytest.raises(ValueError, match="expected 3 finite numbers"):
        tree.load([1.0])


# -- of tensors ---


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 700, 4096, 4097, 9000])
def test_a_tree_of_tensors_is_that_of_arrays(size):
    """It finds the same rows of the same numbers, with one level and with three."""
    rng = np.random.default_rng(size)
    tree, arrays = TensorSumTree(size, torch.device("cpu")), SumTree(size)
    for number in (1, size // 3 + 1, 40, 300):
        rows = np.unique(rng.integers(0, size, number))
        values = rng.random(len(rows)) ** 5
        tree.set(torch.from_numpy(rows), torch.from_numpy(values))
        arrays[rows] = values
        np.testing.assert_array_equal(tree.values.numpy(), arrays.values)
        assert float(tree.levels[-1].sum()) == pytest.approx(arrays.total, rel=1e-12)
        uniforms = rng.random(500)
        np.testing.assert_array_equal(tree.draw(torch.from_numpy(uniforms)).numpy(), arrays.draw(uniforms))


def test_a_tree_of_tensors_goes_on_from_a_state_bit_for_bit():
    """Its sums too, whose bits depend on how many rows were set at a time."""
    rng = np.random.default_rng(0)
    one, other = (TensorSumTree(9000, torch.device("cpu")) for _ in range(2))
    for _ in range(30):
        rows = torch.from_numpy(np.unique(rng.integers(0, 8000, 50)))
        one.set(rows, torch.from_numpy(rng.random(len(rows))))
    other.set(torch.arange(9000), torch.ones(9000, dtype=torch.float64))
    other.set_state(one.get_state(8000))
    assert all(torch.equal(mine, its) for mine, its in zip(one.levels, other.levels))
    assert len(one.get_state(10)["values"]) == 10


@pytest.mark.parametrize("every", [1, 2, 64])
def test_a_mass_between_two_numbers_of_tensors_falls_to_the_second(every):
    """Without rounding; zeros between them are never found."""
    tree = TensorSumTree(2**13, torch.device("cpu"))
    rows = torch.arange(0, 2**13, every)
    tree.set(rows, torch.ones(len(rows), dtype=torch.float64))
    assert torch.equal(tree.draw(torch.arange(len(rows), dtype=torch.float64) / len(rows)), rows)


def test_a_number_just_below_one_falls_to_the_last_that_is_not_zero():
    tree = TensorSumTree(5000, torch.device("cpu"))
    tree.set(torch.arange(4999), torch.full((4999,), 0.1, dtype=torch.float64))
    assert tree.draw(torch.tensor([1.0 - 2.0**-53, 0.0], dtype=torch.float64)).tolist() == [4998, 0]
