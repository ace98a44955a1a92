"""`TrainingStats` of an update: made when they are read, and then what they would have been at once."""

from __future__ import annotations

import copy
import json
import math
import pickle
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import pytest

from lockstep.tracking.statistics import EpochStats, InfoStats, SequenceSummaryStats, TrainingStats, TrainingTotals

SERIES = {"qf_loss": [1.0, 5.0, 3.0], "q_mean": [2.0, 2.0, -7.0], "weights_seq_no": [4.0]}
SECONDS = {"step": 0.25, "pipeline": 0.5}
AT_ONCE = TrainingStats(
    1.5, 3, {name: SequenceSummaryStats.from_sequence(values) for name, values in SERIES.items()}, SECONDS
)


def both(series, seconds):
    return dict(series), dict(seconds)


def later(series=SERIES, finite=True):
    return TrainingStats.of_update(1.5, 3, partial(both, series, SECONDS), finite)


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
    totals = TrainingTotals()
    totals.add(stats)
    assert (stats.train_time, stats.gradient_steps, stats.first_bad_step, stats.bad_losses()) == (1.5, 3, None, [])
    assert not calls
    assert stats.metrics["qf_loss"].median == 3.0
    assert stats.stage_seconds == SECONDS
    assert stats.metrics is stats.metrics
    assert len(calls) == 2  # once for each
    with pytest.raises(AttributeError, match="TrainingStats has no attribute 'metric'"):
        _ = stats.metric


@pytest.mark.parametrize(
    "form",
    [
        lambda stats: stats,
        asdict,
        repr,
        lambda stats: json.dumps(asdict(stats)),
        lambda stats: pickle.loads(pickle.dumps(stats)),
        copy.copy,
        copy.deepcopy,
        lambda stats: replace(stats, gradient_steps=4),
        TrainingStats.get_loss_stats_dict,
    ],
    ids=["itself", "asdict", "repr", "json", "pickle", "copy", "deepcopy", "replace", "means"],
)
def test_in_every_form_it_is_what_it_would_have_been_at_once(form):
    assert form(later()) == form(AT_ONCE)


def test_an_epoch_has_the_exact_statistics_of_all_gradient_steps():
    rng = np.random.default_rng(0)
    totals, numbers = TrainingTotals(), []
    for _ in range(200):
        values = rng.standard_normal(3).tolist()
        numbers += values
        totals.add(later({"qf_loss": values, "none": []}))
    found, expected = totals.stats(), SequenceSummaryStats.from_sequence(numbers)
    assert set(found.metrics) == {"qf_loss"}
    for name, value in vars(expected).items():
        assert getattr(found.metrics["qf_loss"], name) == pytest.approx(value), name
    assert found.metrics["qf_loss"].median == pytest.approx(np.median(numbers))
    assert found.gradient_steps == 600
    assert found.stage_seconds == {"step": 50.0, "pipeline": 100.0}


def test_a_loss_that_is_not_finite_is_told_at_once():
    stats = later({"qf_loss": [1.0, math.nan, math.inf], "q_mean": [1.0, math.inf, 2.0]}, finite=False)
    assert stats.first_bad_step == 2
    assert stats.bad_losses() == ["qf_loss"]
    harmless = later({"qf_loss": [1.0], "q_mean": [math.inf]}, finite=False)
    assert (harmless.first_bad_step, harmless.bad_losses()) == (None, [])
    rarely = later({"qf_loss": [1.0, 2.0], "policy_loss": [math.nan]}, finite=False)
    assert (rarely.first_bad_step, rarely.bad_losses()) == (None, ["policy_loss"])


def test_what_a_run_has_reached_is_printed_without_its_epochs():
    info = InfoStats(gradient_step=3, history=tuple(EpochStats(k, None, None, None, InfoStats()) for k in range(9)))
    assert "gradient_step=3" in repr(info)
    assert "EpochStats" not in repr(info)
