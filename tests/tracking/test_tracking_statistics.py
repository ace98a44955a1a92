"""Statistics of collects and updates, and of several of them put together."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
import tracemalloc
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import examples

from lockstep.tracking.statistics import (
    CollectStats,
    EpochStats,
    InfoStats,
    SequenceSummaryStats,
    TimingStats,
    TrainingStats,
    asdict,
)
from lockstep.tracking.totals import MOST_WAITING, Totals, merge_training_stats

SERIES = {"qf_loss": [1.0, 5.0, 3.0], "q_mean": [2.0, 2.0, -7.0], "weights_seq_no": [4.0]}
SECONDS = {"step": 0.25, "pipeline": 0.5}
SUMMARIES = {name: SequenceSummaryStats.from_sequence(values) for name, values in SERIES.items()}
AT_ONCE = TrainingStats(1.5, 3, SUMMARIES, SECONDS)
PIECES = st.lists(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=5), min_size=1, max_size=8)


def both(series, seconds):
    return dict(series), dict(seconds)


def later(series=SERIES, finite=True):
    return TrainingStats.of_update(1.5, 3, partial(both, series, SECONDS), finite)


def update(*values, finite=True):
    return TrainingStats.of_update(1.0, len(values), partial(both, {"loss": list(values)}, {"step": 0.25}), finite)


@pytest.mark.parametrize("kind", [tuple, list, np.array])
def test_returns_and_lens_are_arrays_that_cannot_be_written_to(kind):
    own = kind([1.0, 5.0])
    stats = CollectStats(2, 30, 0.5, returns=own, lens=kind([10, 20]))
    assert (stats.returns.dtype, stats.lens.dtype) == (np.float64, np.int64)
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
        "agent_modules": [],
        "metrics": {},
        "logged": None,
        "epsilon": {},
        "collect_speed": 60.0,
        "wins": [0, 1],
        "returns_stat": {"mean": 3.0, "std": 2.0, "max": 5.0, "min": 1.0, "median": 3.0, "count": 2},
        "lens_stat": {"mean": 15.0, "std": 5.0, "max": 20.0, "min": 10.0, "median": 15.0, "count": 2},
    }
    assert asdict(stats) == json.loads(json.dumps(asdict(stats))) == expected
    assert dataclasses.asdict(stats).keys() == expected.keys()
    assert json.loads(json.dumps(stats.to_dict()))["returns_stat"]["mean"] == 3.0
    nothing = asdict(CollectStats())
    assert (nothing["returns"], nothing["lens"], nothing["returns_stat"], nothing["lens_stat"]) == ([], [], None, None)


def test_an_epoch_comes_back_from_its_state():
    collected = CollectStats(2, 30, 0.5, returns=(1.0, 5.0), lens=(10, 20), agents=("a",), agent_returns=((1,), (5,)))
    info = InfoStats(3, timing=TimingStats(total_time=2.0), stop_reason="max_epoch")
    for epoch in (EpochStats(1, collected, None, AT_ONCE, info), EpochStats(2, None, collected, None, InfoStats())):
        assert EpochStats.from_state(epoch.get_state()) == epoch
    assert "EpochStats" not in repr(InfoStats(history=(epoch,)))


def test_collects_put_together_are_the_sum_of_each_of_their_parts():
    totals = Totals()
    assert totals.collect_stats() == CollectStats()
    totals.add_collect(CollectStats(1, 10, 1.0, 2.0, 4.0, (1.5,), (10,), 3, ("a", "b"), ((1.0, 0.5),)))
    totals.add_collect(
        CollectStats(2, 200, 8.0, 16.0, 32.0, (2.5, 3.5), (90, 110), 5, ("a", "b"), ((2.0, 0.5), (3.0, 0.5)))
    )
    expected = CollectStats(
        3,
        210,
        9.0,
        18.0,
        36.0,
        (1.5, 2.5, 3.5),
        (10, 90, 110),
        8,
        ("a", "b"),
        ((1.0, 0.5), (2.0, 0.5), (3.0, 0.5)),
    )
    assert totals.collect_stats() == expected == CollectStats.from_state(expected.get_state())


@pytest.mark.parametrize(
    ("values", "mean", "std", "median"),
    [
        ([], None, None, None),
        (np.zeros(0, np.int64), None, None, None),
        ([1.0, 5.0, 3.0, 3.0], 3.0, math.sqrt(2), 3.0),
        ([1e200, 0.0], 5e199, math.inf, 5e199),
        ([math.nan, 1.0, 2.0], math.nan, math.nan, math.nan),
        ([1.0, 2.0, math.nan], math.nan, math.nan, math.nan),
        ([math.nan], math.nan, math.nan, math.nan),
    ],
)
def test_a_summary_of_nothing_is_none_and_nan_makes_every_field_nan(values, mean, std, median):
    stats = SequenceSummaryStats.from_sequence(values)
    ends = (None, None) if mean is None else (mean, mean) if math.isnan(mean) else (max(values), min(values))
    expected = SequenceSummaryStats(mean, std, *ends, median, len(values))
    assert asdict(stats) == pytest.approx(asdict(expected), nan_ok=True)


@pytest.mark.parametrize("stats", [AT_ONCE, later()], ids=["at_once", "later"])
def test_a_metric_is_an_attribute_and_an_unknown_one_names_those_there_are(stats):
    assert stats.qf_loss == SequenceSummaryStats.from_sequence(SERIES["qf_loss"])
    assert stats.q_mean is stats.metrics["q_mean"]
    assert (stats.train_time, stats.gradient_steps) == (1.5, 3)
    with pytest.raises(AttributeError, match=r"no attribute 'pf_loss'; .*\['q_mean', 'qf_loss', 'weights_seq_no'\]"):
        stats.pf_loss
    assert not hasattr(stats, "_loss")
    assert getattr(TrainingStats(), "qf_loss", None) is None


def test_nothing_is_summed_up_before_it_is_read():
    calls = []

    def read():
        calls.append(1)
        return SERIES, SECONDS

    stats = TrainingStats.of_update(1.5, 3, read, True)
    assert (stats.train_time, stats.gradient_steps, stats.first_bad_step, stats.bad_losses()) == (1.5, 3, None, [])
    assert not calls
    assert stats.metrics["qf_loss"].median == 3.0
    assert stats.stage_seconds == SECONDS
    assert stats.metrics is stats.metrics
    assert len(calls) == 2  # once for each


@pytest.mark.parametrize(
    "form",
    [
        lambda stats: stats,
        asdict,
        repr,
        lambda stats: pickle.loads(pickle.dumps(stats)),
        copy.deepcopy,
        lambda stats: dataclasses.replace(stats, gradient_steps=4),
        lambda stats: TrainingStats.from_state(stats.get_state()),
        TrainingStats.get_loss_stats_dict,
    ],
    ids=["itself", "asdict", "repr", "pickle", "deepcopy", "replace", "state", "means"],
)
def test_every_way_to_read_lazy_statistics_gives_the_same_values(form):
    assert form(later()) == form(AT_ONCE)


@examples(60)
@given(PIECES)
def test_joined_updates_have_the_statistics_of_all_their_steps(pieces):
    expected = SequenceSummaryStats.from_sequence([value for piece in pieces for value in piece])
    merged = merge_training_stats([update(*piece) for piece in pieces])
    whole, part, rest = Totals(), Totals(), Totals()
    for number, piece in enumerate(pieces):
        whole.add_update(update(*piece))
        (part if number < 3 else rest).add_update(update(*piece))
        if number == 2:
            rest = Totals()
            rest.set_state(part.get_state())
    assert merged == whole.training_stats() == (rest if len(pieces) > 2 else part).training_stats()
    assert merged.metrics == {"loss": expected}
    assert (merged.gradient_steps, merged.train_time) == (expected.count, len(pieces))
    assert merged.stage_seconds == {"step": 0.25 * len(pieces)}
    again = Totals()
    again.add_update(merged)
    assert again.training_stats() == merged


def test_updates_without_a_metric_do_not_count_for_its_mean():
    totals = Totals()
    other = SequenceSummaryStats.from_sequence([5.0])
    parts = [
        TrainingStats(1.0, 2, {"loss": SequenceSummaryStats.from_sequence([1.0, 2.0])}),
        TrainingStats(1.0, 1, {"other": other, "none": SequenceSummaryStats()}, {"pipeline": 2.0}),
        update(math.nan, 3.0, finite=False),
        update(math.inf, finite=False),
    ]
    for part in parts[:2]:
        totals.add_update(part)
    assert totals.training_stats().metrics == {"loss": SequenceSummaryStats.from_sequence([1.5, 1.5]), "other": other}
    for part in parts[2:]:
        totals.add_update(part)
    stats = totals.training_stats()
    assert (stats.gradient_steps, stats.first_bad_step, stats.bad_losses()) == (6, 4, ["loss"])
    assert stats.stage_seconds == {"step": 0.5, "pipeline": 2.0}
    assert merge_training_stats(parts).bad_losses() == ["loss"]
    assert merge_training_stats([]) == TrainingStats()


@pytest.mark.parametrize("number", [MOST_WAITING - 1, MOST_WAITING, 3 * MOST_WAITING + 1])
def test_many_updates_are_joined_once_and_in_order(number):
    totals = Totals()
    for k in range(number):
        totals.add_update(TrainingStats.of_update(0.1, 1, partial(both, {"loss": [float(k)]}, {"step": 1.0}), True))
    for _ in range(2):
        series, seconds = totals.series_and_seconds()
        assert list(series["loss"]) == list(range(number))
        assert seconds == {"step": number}


def test_an_epoch_of_many_updates_takes_few_bytes():
    names = [f"metric {i}" for i in range(20)]
    totals = Totals()
    tracemalloc.start()
    for k in range(2_000):
        series = {name: [float(k)] for name in names}
        totals.add_update(TrainingStats.of_update(0.1, 1, partial(both, series, {}), True))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 2_000 * len(names) * 12, used


def test_a_loss_that_is_not_finite_is_reported_at_once():
    stats = later({"qf_loss": [1.0, math.nan, math.inf], "q_mean": [1.0, math.inf, 2.0]}, finite=False)
    assert (stats.first_bad_step, stats.bad_losses()) == (2, ["qf_loss"])
    harmless = later({"qf_loss": [1.0], "q_mean": [math.inf]}, finite=False)
    assert (harmless.first_bad_step, harmless.bad_losses()) == (None, [])
    rarely = later({"qf_loss": [1.0, 2.0], "policy_loss": [math.nan]}, finite=False)
    assert (rarely.first_bad_step, rarely.bad_losses()) == (None, ["policy_loss"])
