"""`TrainingTotals`: the updates of an epoch, put together."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.tracking.statistics import (
    CollectStats,
    CollectTotals,
    EpochStats,
    InfoStats,
    SequenceSummaryStats,
    TrainingStats,
    TrainingTotals,
    asdict,
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


@pytest.mark.parametrize("given", [tuple, list, np.array])
def test_returns_and_lens_are_arrays_that_cannot_be_written_to(given):
    own = given([1.0, 5.0])
    stats = CollectStats(2, 30, 0.5, returns=own, lens=given([10, 20]))
    assert (stats.returns.dtype, stats.lens.dtype) == (np.float64, np.int64)
    assert (stats.returns.mean(), stats.returns.max(), stats.lens.sum()) == (3.0, 5.0, 30)
    for column in (stats.returns, stats.lens, CollectStats().returns, CollectStats().lens):
        with pytest.raises(ValueError, match="read-only"):
            column[:] = 0
    if isinstance(own, np.ndarray):
        own[0] = 7.0
    assert stats.returns.tolist() == [1.0, 5.0]
    assert stats == CollectStats(2, 30, 0.5, returns=[1, 5], lens=(10, 20)) != CollectStats(2, 30, 0.5)
    assert stats == copy.deepcopy(stats) == pickle.loads(pickle.dumps(stats))


def test_asdict_has_every_field_and_those_of_subclasses_and_fits_into_json():
    @dataclasses.dataclass(frozen=True, eq=False)
    class WithWins(CollectStats):
        wins: tuple[int, ...] = ()

    stats = WithWins(2, 30, 0.5, returns=(1.0, 5.0), lens=(10, 20), wins=(0, 1))
    expected = {
        "n_collected_episodes": 2,
        "n_collected_steps": 30,
        "collect_time": 0.5,
        "env_time": 0.0,
        "act_time": 0.0,
        "returns": [1.0, 5.0],
        "lens": [10, 20],
        "env_restarts": 0,
        "agents": [],
        "agent_returns": [],
        "collect_speed": 60.0,
        "wins": [0, 1],
        "returns_stat": dataclasses.asdict(SequenceSummaryStats.from_sequence([1.0, 5.0])),
        "lens_stat": dataclasses.asdict(SequenceSummaryStats.from_sequence([10, 20])),
    }
    assert asdict(stats) == json.loads(json.dumps(asdict(stats))) == expected
    assert dataclasses.asdict(stats).keys() == expected.keys()
    assert json.loads(json.dumps(stats.to_dict()))["returns_stat"]["mean"] == 3.0
    nothing = asdict(CollectStats())
    assert (nothing["returns"], nothing["lens"], nothing["returns_stat"], nothing["lens_stat"]) == ([], [], None, None)
    epoch = EpochStats(1, stats, None, TrainingStats(metrics={"loss": SequenceSummaryStats()}), InfoStats())
    assert asdict(epoch)["train_collect_stat"] == expected
    assert asdict(epoch)["training_stat"]["metrics"] == {"loss": asdict(SequenceSummaryStats.from_sequence([]))}


def test_summaries_of_empty_sequences_are_none_for_lists_and_arrays():
    for empty in ([], (), np.array([]), np.zeros(0, np.int64)):
        assert SequenceSummaryStats.from_sequence(empty) == SequenceSummaryStats()
    assert CollectTotals().stats() == CollectStats()


def test_collects_put_together_are_the_sum_of_each_of_their_parts():
    one = CollectStats(1, 10, 1.0, 2.0, 4.0, (1.5,), (10,), 3, ("a", "b"), ((1.0, 0.5),))
    two = CollectStats(2, 200, 8.0, 16.0, 32.0, (2.5, 3.5), (90, 110), 5, ("a", "b"), ((2.0, 0.5), (3.0, 0.5)))
    totals = CollectTotals()
    totals.add(one)
    totals.add(two)
    together = totals.stats()
    assert together == CollectStats.from_state(together.get_state()) != one
    assert (together.n_collected_episodes, together.n_collected_steps, together.env_restarts) == (3, 210, 8)
    assert (together.collect_time, together.env_time, together.act_time) == (9.0, 18.0, 36.0)
    assert (together.returns.tolist(), together.lens.tolist()) == ([1.5, 2.5, 3.5], [10, 90, 110])
    assert (together.agents, together.agent_returns) == (("a", "b"), ((1.0, 0.5), (2.0, 0.5), (3.0, 0.5)))


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
