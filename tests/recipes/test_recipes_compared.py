"""`benchmarks/compare_learning.py`: means over seeds with intervals, against scipy's."""

import json

import numpy as np
import pytest


@pytest.fixture
def compare(benchmark):
    return benchmark("compare_learning")


def record(finals, half=False):
    runs = [
        {"seed": seed, "curve": [[10, value - 50.0], [20, value]], "final_return": value, "final_episodes": 50}
        for seed, value in enumerate(finals)
    ]
    config = {"framework": {"mixed_precision": half, "compile": True}}
    facts = dict.fromkeys(("processor", "cores", "memory_gib", "system", "python", "date", "revision"), "-")
    shared = {"algorithm": "sac", "environment": "Pendulum-v1", "seeds": len(runs), "median": 0.0}
    machine = {**facts, "load_average": 0.0}
    return {**shared, "median_seconds": 1.0, "runs": runs, "config": config, "machine": machine}


def test_the_mean_has_students_interval(compare):
    mean, half = compare.interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.303 / np.sqrt(3.0), abs=1e-9)


def test_the_difference_has_welchs_interval(compare):
    stats = pytest.importorskip("scipy.stats")
    first, second = [1.0, 4.0, 2.0, 7.0, 5.0], [3.0, 3.5, 2.5, 4.0, 6.0]
    apart, half = compare.difference(first, second, same_seeds=False)
    expected = stats.ttest_ind(second, first, equal_var=False).confidence_interval(0.95)
    assert apart == pytest.approx((expected.low + expected.high) / 2)
    assert expected.high - apart <= half <= 1.1 * (expected.high - apart)  # degrees of freedom are rounded down


def test_the_same_seeds_are_compared_one_by_one(compare):
    apart, half = compare.difference([1.0, 40.0, 200.0], [2.0, 42.0, 203.0], same_seeds=True)
    assert apart == pytest.approx(2.0)
    assert half == pytest.approx(4.303 / np.sqrt(3.0))


def test_the_page_says_where_two_settings_are_apart_and_in_what_they_differ(compare, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(record([1.0, 2.0, 3.0])))
    (tmp_path / "b.json").write_text(json.dumps(record([2.0, 1.0, 3.5], half=True)))
    (tmp_path / "c.json").write_text(json.dumps(record([101.0, 102.5, 103.0])))
    page = compare.render(["a", "b"])
    assert "What differs: `framework.mixed_precision` (False, True)." in page
    assert "Apart by more than the interval: nowhere" in page
    assert "Apart by more than the interval: 10 steps, 20 steps" in compare.render(["a", "c"])
