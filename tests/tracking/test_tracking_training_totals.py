"""`TrainingTotals`: the updates of an epoch, put together."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.tracking.statistics import (
    CollectStats,
    CollectTotals,
    SequenceSummaryStats,
    TrainingStats,
    TrainingTotals,
    merge_training_stats,
)

NUMBERS = st.floats(-1e3, 1e3)


def update(values, **others):
    return TrainingStats(1.0, len(values), {"loss": SequenceSummaryStats.from_sequence(values)}, **others)


def single(value):
    return update([value])


def close(left, right):
    for name, value in vars(right).items():
        assert getattr(left, name) == pytest.approx(value, abs=1e-6), name


def test_collects_put_together_are_the_sum_of_each_of_their_parts():
    one = CollectStats(1, 10, 1.0, 2.0, 4.0, (1.5,), (10,), 3, ("a", "b"), ((1.0, 0.5),))
    two = CollectStats(2, 200, 8.0, 16.0, 32.0, (2.5, 3.5), (90, 110), 5, ("a", "b"), ((2.0, 0.5), (3.0, 0.5)))
    totals = CollectTotals()
    totals.add(one)
    totals.add(two)
    added = {name: value + getattr(two, name) for name, value in vars(one).items()}
    assert totals.stats() == one + two == CollectStats(**{**added, "agents": one.agents})


@settings(max_examples=60, deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=30))
def test_updates_of_one_step_give_the_statistics_of_their_numbers(values):
    merged = merge_training_stats([update([value]) for value in values])
    close(merged.metrics["loss"], SequenceSummaryStats.from_sequence(values))
    assert merged.metrics["loss"].median == pytest.approx(np.median(values))
    assert (merged.gradient_steps, merged.train_time) == (len(values), float(len(values)))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(NUMBERS, min_size=1, max_size=5), min_size=1, max_size=8))
def test_updates_of_several_steps_give_the_statistics_of_all_steps_but_for_the_median(pieces):
    merged = merge_training_stats([update(piece) for piece in pieces]).metrics["loss"]
    everything = SequenceSummaryStats.from_sequence([value for piece in pieces for value in piece])
    standing_in = [np.median(piece) for piece in pieces for _ in piece]
    close(merged, SequenceSummaryStats(**{**vars(everything), "median": float(np.median(standing_in))}))


def test_updates_that_lack_a_metric_do_not_count_for_it_and_stages_and_bad_steps_add_up():
    parts = [
        update([1.0, 2.0], stage_seconds={"step": 1.0}),
        TrainingStats(1.0, 1, {"other": SequenceSummaryStats.from_sequence([5.0]), "none": SequenceSummaryStats()}),
        update([math.nan, 3.0], stage_seconds={"step": 0.5, "pipeline": 2.0}, first_bad_step=1),
        update([math.inf], first_bad_step=1),
    ]
    merged = merge_training_stats(parts)
    assert merged.gradient_steps == 6
    assert merged.stage_seconds == {"step": 1.5, "pipeline": 2.0}
    assert merged.first_bad_step == 4
    assert set(merged.metrics) == {"loss", "other"}
    assert merged.metrics["other"] == SequenceSummaryStats(5.0, 0.0, 5.0, 5.0, 5.0, 1)
    assert all(math.isnan(merged.metrics["loss"].__dict__[name]) for name in ("mean", "std", "max", "min", "median"))
    assert merge_training_stats([]) == TrainingStats()


def read_later(values, **others):
    return TrainingStats.of_update(1.0, len(values), lambda: ({"loss": values}, others["stage_seconds"]), True)


@pytest.mark.parametrize("kind", [update, read_later])
def test_totals_go_on_from_their_state(kind):
    rng = np.random.default_rng(0)
    parts = [kind(rng.random(size).tolist(), stage_seconds={"step": 0.25}) for size in (1, 3, 1, 1, 2)]
    whole, first, second = TrainingTotals(), TrainingTotals(), TrainingTotals()
    for part in parts:
        whole.add(part)
    for part in parts[:2]:
        first.add(part)
    second.set_state(first.get_state())
    for part in parts[2:]:
        second.add(part)
    assert second.stats() == whole.stats()


@pytest.mark.parametrize(
    "of_metrics",
    [
        lambda metrics: TrainingStats(0.1, 1, {k: SequenceSummaryStats.of_one(v) for k, v in metrics.items()}),
        lambda metrics: TrainingStats.of_update(0.1, 1, lambda: ({k: [v] for k, v in metrics.items()}, {}), True),
    ],
)
def test_an_epoch_of_many_updates_takes_few_bytes(of_metrics):
    names = [f"metric {i}" for i in range(20)]
    totals = TrainingTotals()
    tracemalloc.start()
    for k in range(2_000):
        totals.add(of_metrics(dict.fromkeys(names, float(k))))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 2_000 * len(names) * 12, used


@pytest.mark.parametrize("values", [[math.nan, 1.0, 2.0], [1.0, math.nan, 2.0], [1.0, 2.0, math.nan], [math.nan]])
def test_a_nan_is_seen_in_every_field_wherever_it_stands(values):
    for stats in (
        SequenceSummaryStats.from_sequence(values),
        merge_training_stats(map(single, values)).metrics["loss"],
    ):
        assert [value for value in vars(stats).values() if not math.isnan(value)] == [len(values)]  # the count


def test_numbers_whose_squares_are_too_large_have_statistics_with_an_infinite_deviation():
    assert SequenceSummaryStats.from_sequence([1e200, 0.0]) == SequenceSummaryStats(5e199, math.inf, 1e200, 0, 5e199, 2)
