"""`Metrics`: each reduction by hand, several processes, state, refusals."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
import torch

from lockstep.state.tree import decode, encode
from lockstep.tracking import Metrics

VALUES = (3.0, 1.0, 2.0)
CASES: list[tuple[dict[str, Any], list[float], list[float]]] = [
    # options, reports after the values 3, 1, 2, then after 5, then after nothing
    ({}, [2.0, 5.0], []),
    ({"reduce": "min"}, [1.0, 5.0], []),
    ({"reduce": "max"}, [3.0, 5.0], []),
    ({"reduce": "sum"}, [6.0, 5.0], []),
    ({"reduce": "item"}, [2.0, 5.0], []),
    ({"reduce": "lifetime_sum"}, [6.0, 11.0], [11.0]),
    ({"reduce": "ema", "ema_coeff": 0.5}, [2.0, 3.5], [3.5]),  # 3; (3+1)/2 = 2; (2+2)/2 = 2; (2+5)/2
    ({"reduce": "mean", "window": 2}, [1.5, 3.5], [3.5]),
    ({"reduce": "max", "window": 3}, [3.0, 5.0], [5.0]),
    ({"reduce": "min", "window": 2}, [1.0, 2.0], [2.0]),
]


@pytest.mark.parametrize(("how", "reports", "after"), CASES)
def test_each_reduction_equals_a_calculation_by_hand(how, reports, after):
    metrics, found = Metrics(), []
    for values in (VALUES, (5.0,)):
        for value in values:
            metrics.log_value("x", value, **how)
        assert metrics.peek("x") == reports[len(found)]
        found.append(metrics.report()["x",])
    assert found == reports
    assert list(metrics.report().values()) == after  # a report has what was logged since the last one, and what goes on
    assert metrics.peek("x") == reports[-1]


def test_percentiles_cover_all_values_and_have_separate_names():
    metrics = Metrics()
    metrics.log_value(("agent", "x"), np.arange(101), reduce="percentiles")
    assert metrics.peek(("agent", "x")) == {f"p{share}": share for share in (0, 50, 75, 90, 95, 99, 100)}
    assert metrics.report()["agent", "x", "p75"] == 75


def test_tensors_arrays_numbers_and_dicts_are_values_and_time_is_seconds():
    metrics = Metrics()
    metrics.log_dict({"a": torch.tensor([1.0, 2.0]), "b": {"c": np.int64(4), "d": True}}, "top", reduce="sum")
    metrics.log_value("ints", torch.tensor(2**40), reduce="item")
    metrics.log_value("half", torch.tensor(0.5, dtype=torch.float64, requires_grad=True))
    with metrics.log_time("seconds"):
        pass
    found = metrics.report()
    assert 0 <= found.pop(("seconds",)) < 1
    assert found == {
        ("top", "a"): 3.0,
        ("top", "b", "c"): 4.0,
        ("top", "b", "d"): 1.0,
        ("ints",): 2.0**40,
        ("half",): 0.5,
    }


def test_tensors_cross_to_the_host_only_when_a_report_is_asked_for(monkeypatch):
    crossed = []
    tolist, as_float = torch.Tensor.tolist, torch.Tensor.__float__
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: crossed.append(tensor.numel()) or tolist(tensor))
    monkeypatch.setattr(torch.Tensor, "__float__", lambda tensor: crossed.append(1) or as_float(tensor))
    metrics = Metrics()
    for step in range(4):
        metrics.log_value("x", torch.tensor(float(step)), reduce="max")
        metrics.weight = 2
        metrics.log_means(("module",), {"loss": torch.tensor(1.0)})
        metrics.end_step()
    assert crossed == []
    assert metrics.report() == {("module", "loss"): 1.0, ("x",): 3.0}
    assert crossed == [8]


def stored(value):
    """A value as a checkpoint gives it back."""
    arrays = {}
    return decode(json.loads(json.dumps(encode(value, "state", arrays))), arrays)


def logged_by(processes, way, reports=3, **how):
    """What `processes` processes report that share the values of 4 environments in 5 steps."""
    root, parts = Metrics(), [Metrics() for _ in range(processes)]
    rng = np.random.default_rng(7)
    found = []
    for _ in range(reports):
        for step, values in enumerate(rng.normal(size=(5, 4))):
            for env, value in enumerate(values):
                metrics = parts[env * processes // 4]
                metrics.step = step
                metrics.log_value("x", value, **how)
        taken = [part.take() for part in parts]
        found.append(root.report([way(part) for part in taken]))
    return found


@pytest.mark.parametrize("how", [case[0] for case in CASES] + [{"reduce": "percentiles"}])
def test_several_processes_give_the_metrics_of_one_exactly(how):
    one = logged_by(1, lambda part: part, **how)
    assert logged_by(2, lambda part: part, **how) == one
    assert logged_by(4, stored, **how) == one


def test_rows_of_one_gradient_step_are_one_value_without_padding():
    one, parts = Metrics(), [Metrics(), Metrics()]
    for step, ((a, b), (rows_a, rows_b)) in enumerate([((1.0, 3.0), (3, 1)), ((9.0, 5.0), (0, 2))]):
        counted = rows_a + rows_b
        one.step = step
        for name in ("mean", "ema"):
            one.log_value(name, (a * rows_a + b * rows_b) / counted, reduce=name, weight=counted)
            for part, value, rows in zip(parts, (a, b), (rows_a, rows_b)):
                part.step = step
                part.log_value(name, value, reduce=name, weight=rows)
        parts[0].log_value("max", a, reduce="max", weight=rows_a)
        parts[1].log_value("max", b, reduce="max", weight=rows_b)
    joined = Metrics().report([part.take() for part in parts], by_step=True)
    assert joined.pop(("max",)) == 5.0  # not the stand-in's 9
    assert joined == one.report()
    assert joined["mean",] == (1.5 * 4 + 5.0 * 2) / 6


@pytest.mark.parametrize("how", [case[0] for case in CASES] + [{"reduce": "percentiles"}])
def test_metrics_continue_from_a_checkpoint_without_a_difference(how):
    straight, broken = Metrics(), Metrics()
    for number, value in enumerate(itertools.chain(VALUES, VALUES, (7.0, 4.0))):
        for metrics in (straight, broken):
            metrics.log_value("x", value, **how)
            if number % 3 == 2:
                metrics.report()
        state = stored(broken.get_state())
        broken = Metrics()
        broken.set_state(state)
        assert broken.peek("x") == straight.peek("x")
    assert broken.report() == straight.report()


REFUSALS = [
    (("score", "high"), {}, TypeError, ["score", "high", "number"]),
    (("score", None), {}, TypeError, ["score", "number"]),
    ((("team", "score"), ["1"]), {}, TypeError, ["team/score", "number"]),
    (((), 1.0), {}, TypeError, ["key", "()"]),
    ((("a", 3), 1.0), {}, TypeError, ["key", "('a', 3)"]),
    (("score", 1.0), {"reduce": "median"}, ValueError, ["score", "reduce", "median", "lifetime_sum"]),
    (("score", 1.0), {"window": 0}, ValueError, ["score", "window", "0"]),
    (("score", 1.0), {"reduce": "ema", "ema_coeff": 1.5}, ValueError, ["score", "ema_coeff", "1.5"]),
    (("score", 1.0), {"ema_coeff": 0.5}, ValueError, ["score", "ema_coeff", "mean", "ema"]),
    (("score", 1.0), {"reduce": "lifetime_sum", "window": 3}, ValueError, ["score", "window", "lifetime_sum"]),
    (("taken", 1.0), {"reduce": "max"}, ValueError, ["taken", "max", "sum"]),
    (("taken", 1.0), {}, ValueError, ["taken", "mean", "sum"]),
]


@pytest.mark.parametrize(("arguments", "how", "kind", "words"), REFUSALS)
def test_metrics_refuse_by_name(arguments, how, kind, words):
    metrics = Metrics()
    metrics.log_value("taken", 1.0, reduce="sum")
    with pytest.raises(kind) as refused:
        metrics.log_value(*arguments, **how)
    assert [word for word in words if word not in str(refused.value)] == []
    assert metrics.report() == {("taken",): 1.0}


def test_a_key_with_two_reductions_is_refused_across_processes_and_losses():
    parts = [Metrics(), Metrics()]
    parts[0].log_value("x", 1.0, reduce="sum")
    parts[1].log_value("x", 1.0, reduce="max")
    with pytest.raises(ValueError, match=r"'x'.*sum"):
        Metrics().report([part.take() for part in parts])
    metrics = Metrics()
    metrics.log_value(("m", "loss"), 1.0, reduce="sum")
    metrics.weight = 4
    metrics.log_means(("m",), {"loss": torch.tensor(1.0)})
    with pytest.raises(ValueError, match=r"m/loss.*sum"):
        metrics.report()


def test_peek_names_the_existing_keys():
    metrics = Metrics()
    metrics.log_value(("a", "b"), 1.0)
    metrics.report()
    with pytest.raises(KeyError, match=r"nothing was logged under 'c'.*a/b"):
        metrics.peek("c")


@pytest.mark.parametrize("reduce", ["mean", "sum", "max", "percentiles"])
def test_a_metric_window_drops_its_oldest_values_after_a_restore_too(reduce: str) -> None:
    """The steps of each report begin at 0: the order of the values is not that of their steps."""

    def log(metrics: Metrics, values: tuple[float, ...]) -> dict[Any, float]:
        for value in values:
            metrics.log_value("x", value, reduce, window=4)
            metrics.end_step()
        return metrics.report()

    straight, first, restored = Metrics(), Metrics(), Metrics()
    for metrics in (straight, first):
        log(metrics, (9.0, 1.0, 2.0))
        log(metrics, (5.0, 3.0))
    restored.set_state(first.get_state())
    for values in ((7.0,), (4.0, 8.0), (6.0,)):
        assert log(restored, values) == log(straight, values)
