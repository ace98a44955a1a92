"""Interquartile mean, probability of improvement, performance profile, and their bootstrap intervals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu, trim_mean

from lockstep.analysis import (
    improvement_bootstrap,
    iqm,
    iqm_bootstrap,
    iqm_difference_bootstrap,
    performance_profile,
    probability_of_improvement,
)
from lockstep.analysis.intervals import Interval
from lockstep.state.markup import number_text


def test_iqm_of_written_out_cases() -> None:
    assert iqm(np.array([7.0])) == 7.0
    assert iqm(np.array([1.0, 3.0])) == 2.0
    assert iqm(np.array([0.0, 4.0, 11.0])) == 5.0  # no whole score is a quarter of three
    assert iqm(np.array([100.0, 2.0, 4.0, -50.0])) == 3.0
    assert iqm(np.array([9e9, 1.0, 2.0, 6.0, -9e9])) == 3.0
    assert iqm(np.array([np.inf, 2.0, 4.0, -np.inf])) == 3.0


@given(rows=st.integers(1, 20), seed=st.integers(0, 1000))
def test_iqm_is_the_trimmed_mean_and_does_not_depend_on_order(rows: int, seed: int) -> None:
    scores = np.random.default_rng(seed).normal(size=(rows, 3))
    # sums in another order: apart by the rounding of scores of size 1, however near 0 their mean is
    np.testing.assert_allclose(iqm(scores), trim_mean(scores, 0.25), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(iqm(scores[::-1]), iqm(scores), rtol=1e-12)
    np.testing.assert_allclose(iqm(scores.T, axis=1), iqm(scores), rtol=1e-12)


def test_bootstrap_of_one_or_two_runs_can_be_written_out() -> None:
    assert [float(part) for part in iqm_bootstrap(np.array([5.0]))] == [5.0, 5.0, 5.0]
    # of two runs the resampled mean is 0, 5 or 10 with chances 1/4, 1/2, 1/4
    interval = iqm_bootstrap(np.array([0.0, 10.0]))
    assert [float(part) for part in interval] == [5.0, 0.0, 10.0]
    narrow = iqm_bootstrap(np.array([0.0, 10.0]), confidence=0.4)
    assert [float(part) for part in narrow] == [5.0, 5.0, 5.0]


def test_bootstrap_is_stratified() -> None:
    """Two tasks of two equal runs each: drawing within a task changes nothing, drawing over all would."""
    interval = iqm_bootstrap([np.array([0.0, 0.0]), np.array([10.0, 10.0])])
    assert [float(part) for part in interval] == [5.0, 5.0, 5.0]
    over_all = iqm_bootstrap(np.array([0.0, 0.0, 10.0, 10.0]))
    assert over_all.low < 5.0 < over_all.high


def test_bootstrap_draws_runs_whole() -> None:
    """The points of one run stay together: with y = -x in every run, the bounds mirror each other."""
    first = np.random.default_rng(0).normal(size=7)
    interval = iqm_bootstrap(np.stack([first, -first], axis=1))
    np.testing.assert_allclose(interval.low, -interval.high[::-1], rtol=1e-9)


def test_bootstrap_covers_the_true_value_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    inside = 0
    for trial in range(200):
        interval = iqm_bootstrap(rng.normal(1.0, 2.0, size=40), num_resamples=300, seed=trial)
        inside += bool(interval.low <= 1.0 <= interval.high)
    assert 176 <= inside <= 199  # 95 % of 200 is 190


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (np.empty((0, 3)), "at least one score"),
        (np.array([1.0, np.nan]), "no NaN"),
        ([np.ones((2, 3)), np.ones((2, 4))], "must match"),
    ],
)
def test_bootstrap_refusals(scores: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        iqm_bootstrap(scores)


def test_probability_of_improvement_of_written_out_cases() -> None:
    assert probability_of_improvement(np.array([2.0]), np.array([1.0])) == 1.0
    assert probability_of_improvement(np.array([1.0]), np.array([1.0])) == 0.5
    # 1 beats 0 and ties with 1; 2 beats 1 and 0 and ties with 2; 3 beats all: 7 of 9
    assert probability_of_improvement(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 0.0])) == pytest.approx(7 / 9)
    tasks = [np.array([2.0, 3.0]), np.array([0.0, 0.0])], [np.array([1.0, 1.0]), np.array([0.0, 1.0, 1.0, 1.0])]
    assert probability_of_improvement(*tasks) == pytest.approx((1.0 + 0.125) / 2)  # a task counts as one, however many
    with pytest.raises(ValueError, match="2 and 1 tasks"):
        probability_of_improvement(tasks[0], tasks[0][:1])


@given(ours=st.integers(1, 12), theirs=st.integers(1, 12), seed=st.integers(0, 1000))
def test_probability_of_improvement_is_mann_whitneys_u(ours: int, theirs: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, second = rng.integers(0, 5, ours).astype(float), rng.integers(0, 5, theirs).astype(float)
    expected = mannwhitneyu(first, second).statistic / (ours * theirs)
    assert probability_of_improvement(first, second) == pytest.approx(expected, abs=1e-12)
    assert probability_of_improvement(second, first) == pytest.approx(1 - expected, abs=1e-12)


def test_the_two_sides_are_drawn_separately() -> None:
    """Of two runs against one the resampled probability is 0, 1/2 or 1 with chances 1/4, 1/2, 1/4."""
    interval = improvement_bootstrap(np.array([0.0, 2.0]), np.array([1.0]))
    assert [float(part) for part in interval] == [0.5, 0.0, 1.0]
    narrow = improvement_bootstrap(np.array([0.0, 2.0]), np.array([1.0]), confidence=0.4)
    assert [float(part) for part in narrow] == [0.5, 0.5, 0.5]
    equal = np.array([0.0, 2.0])
    assert improvement_bootstrap(equal, equal).low < 0.5  # drawn together, the two would stay equal


def test_difference_of_interquartile_means() -> None:
    """Sides that do not vary have no interval; of varying ones the ends are those of both together."""
    interval = iqm_difference_bootstrap(np.array([3.0, 3.0]), np.array([1.0, 1.0]))
    assert [float(part) for part in interval] == [2.0, 2.0, 2.0]
    interval = iqm_difference_bootstrap(np.array([0.0, 10.0]), np.array([0.0, 2.0]), num_resamples=20_000)
    assert [float(part) for part in interval] == [4.0, -2.0, 10.0]


def test_performance_profile_is_the_share_above_each_threshold() -> None:
    tasks = [np.array([0.0, 1.0]), np.array([2.0, 2.0])]
    profile = performance_profile(tasks, np.array([-1.0, 0.0, 1.0, 2.0]))
    assert profile.value.tolist() == [1.0, 0.75, 0.5, 0.0]
    assert profile.low.tolist() == [1.0, 0.5, 0.5, 0.0]  # the second task's runs are above 1 in every draw
    assert profile.high.tolist() == [1.0, 1.0, 0.5, 0.0]


def test_figures_of_rliable_1_2_0() -> None:
    """rliable's point estimates of 11 and 7 runs on 3 tasks (benchmarks/numerics/compare_rliable.py has more)."""
    rng = np.random.default_rng(7)
    first, second = np.round(rng.normal(0.5, 1, (11, 3)), 2), np.round(rng.normal(0, 1, (7, 3)), 2)
    assert float(iqm_bootstrap(list(first.T)).value) == pytest.approx(0.12058823529411763, abs=1e-9)
    assert float(iqm_bootstrap(list(second.T)).value) == pytest.approx(0.03818181818181818, abs=1e-9)
    assert probability_of_improvement(list(first.T), list(second.T)) == pytest.approx(0.4978354978354979, abs=1e-9)
    shares = performance_profile(list(first.T), np.array([-0.5, 0.0, 0.5])).value
    assert shares.tolist() == pytest.approx([26 / 33, 20 / 33, 10 / 33], abs=1e-9)


@pytest.mark.parametrize(
    ("number", "digits", "words"),
    [
        (13_380.4, 4, "13,380"),
        (1_338_000.0, 4, "1,338,000"),
        (-13_380.4, 4, "-13,380"),
        (366.2, 3, "366"),
        (1_366.2, 3, "1,366"),
        (412.34, 4, "412.3"),
        (-0.5, 4, "-0.5"),
        (np.float32(1e-5), 4, "1e-05"),
        (float("inf"), 4, "inf"),
        (float("nan"), 4, "nan"),
    ],
)
def test_numbers_are_written_as_people_read_them(number, digits: int, words: str) -> None:
    assert number_text(number, digits) == words


def test_an_interval_has_no_exponents() -> None:
    assert str(Interval(np.array(13_380.0), np.array(12_900.0), np.array(13_800.4))) == "13,380 (12,900 to 13,800)"
