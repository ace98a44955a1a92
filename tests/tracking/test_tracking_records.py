"""Records: names, aggregation, strict JSON, reading back."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.tracking import MovAvg, read_metrics, write_json
from lockstep.tracking.records import aggregate, flatten, from_strict_json, reduction_of, to_strict_json
from lockstep.tracking.statistics import CollectStats, InfoStats, TimingStats
from lockstep.tracking.totals import Totals


def test_nested_names_are_joined_and_values_become_plain() -> None:
    data = {
        "returns_stat": {"mean": np.float32(1.5), "deep": {"n": np.int64(3)}},
        "loss": torch.tensor(2.0),
        "one": np.array([4]),
        "none": None,
        "flag": np.bool_(True),
        "text": "abc",
        "returns": np.arange(3),
        "list": [1, 2],
        "empty": np.empty(0),
        "path": Path("a"),
    }
    flat = flatten(data)
    assert flat == {
        "returns_stat/mean": 1.5,
        "returns_stat/deep/n": 3,
        "loss": 2.0,
        "one": 4,
        "none": None,
        "flag": True,
        "text": "abc",
        "path": "a",
    }
    assert [type(value) for value in flat.values()] == [float, int, float, int, type(None), bool, str, str]
    whole = flatten(data, exclude_arrays=False)
    assert whole["returns"] == [0, 1, 2]
    assert whole["empty"] == []


@pytest.mark.parametrize("data", [{"a": {"b": object()}}, {"a": {1, 2}}])
def test_values_that_cannot_be_logged_are_refused(data: object) -> None:
    with pytest.raises(TypeError, match="log"):
        flatten(data)


def test_how_values_of_one_name_become_one() -> None:
    records = [
        {"loss": 1.0, "n_steps": 10, "a/max": 3, "a/min": 1, "n_lifetime": 10, "best_score": 5.0, "text": "x"},
        {"loss": 2.0, "n_steps": 20, "a/max": 9, "a/min": 2, "n_lifetime": 30, "best_score": 4.0, "text": "y"},
        {"loss": 6.0, "n_steps": 30, "a/max": 4, "a/min": -1, "n_lifetime": 60, "new": 7, "text": None},
    ]
    assert aggregate(records) == {
        "loss": 3.0,
        "n_steps": 60,
        "a/max": 9,
        "a/min": -1,
        "n_lifetime": 60,
        "best_score": 4.0,
        "text": "y",
        "new": 7,
    }
    assert reduction_of("x/num_minibatches") == "sum"
    assert reduction_of("x/num_env_steps_trained_lifetime") == "last"


def test_missing_values_are_skipped_and_nan_stays_visible() -> None:
    assert aggregate([{"a": None, "b": None}, {"a": 2.0, "b": None}]) == {"a": 2.0, "b": None}
    assert math.isnan(aggregate([{"a": math.nan}, {"a": 2.0}])["a"])
    assert aggregate([{"a": math.inf}, {"a": 2.0}])["a"] == math.inf


@settings(deadline=None)
@given(parts=st.lists(st.lists(st.floats(-1e3, 1e3), min_size=0, max_size=5), min_size=1, max_size=4).filter(any))
def test_summaries_of_parts_are_the_summary_of_the_whole(parts: list[list[float]]) -> None:
    records = []
    for part in parts:
        known = {"mean": np.mean, "std": np.std, "max": np.max, "min": np.min}
        summary = {f"r/{name}": float(function(part)) if part else None for name, function in known.items()}
        records.append({**summary, "r/count": len(part)})
    whole = np.array([value for part in parts for value in part])
    together = aggregate(records)
    assert together["r/count"] == len(whole)
    assert together["r/max"] == whole.max()
    assert together["r/min"] == whole.min()
    assert together["r/mean"] == pytest.approx(whole.mean(), abs=1e-9)
    assert together["r/std"] == pytest.approx(whole.std(), abs=1e-6)


def test_the_record_of_several_collects_covers_all_their_episodes() -> None:
    """All but the median, which is the mean of theirs by episodes."""
    of_agents = {"agents": ("a", "b"), "agent_returns": ((1.0, 0.0), (2.0, 3.0))}
    parts = [
        CollectStats(2, 64, 0.5, returns=(1.0, 5.0), lens=(10, 20), **of_agents),
        CollectStats(0, 64, 0.1, env_restarts=1),
        CollectStats(1, 32, 0.9, returns=(30.0,), lens=(8,), agents=("a", "b"), agent_returns=((30.0, 0.0),)),
    ]
    together = aggregate([flatten(part.to_dict()) for part in parts])
    totals = Totals()
    for part in parts:
        totals.add_collect(part)
    whole = flatten(totals.collect_stats().to_dict())
    assert (whole["returns_stat/mean"], whole["returns/a"], whole["collect_speed"]) == (12.0, 11.0, 160 / 1.5)
    assert (together.pop("returns_stat/median"), together.pop("lens_stat/median")) == (
        (2 * 3 + 30) / 3,
        (2 * 15 + 8) / 3,
    )
    del whole["returns_stat/median"], whole["lens_stat/median"]
    assert together == pytest.approx(whole)


def test_the_record_of_several_updates_weights_by_rows() -> None:
    names = ("loss", "num_module_steps_trained", "weights_seq_no", "num_trainable_parameters", "a/loss")
    records = [dict(zip(names, values)) for values in ((1.0, 30, 7, 55, 1.0), (5.0, 10, 8, 55, 2.0))]
    expected = {"loss": 2.0, "num_module_steps_trained": 40, "weights_seq_no": 8, "num_trainable_parameters": 55}
    assert aggregate(records) == {**expected, "a/loss": 1.5}  # another module's, which does not say its rows


def test_the_record_of_several_epochs_has_the_position_of_the_last() -> None:
    timing = [TimingStats(*(second + k for k in range(8))) for second in (1.0, 3.0)]
    infos = [
        InfoStats(8 * k, float(k), float(k), 0.5, k, 64 * k, 3 * k, 20 * k, 2 * k, own, None, 8 * k, 0.5 * k)
        for k, own in enumerate(timing, start=1)
    ]
    records = [flatten(info.to_dict()) for info in infos]
    assert aggregate(records) == records[1] != records[0]


plain_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text().filter(lambda t: t not in SPECIAL),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
SPECIAL = ("NaN", "Infinity", "-Infinity")


@settings(deadline=None)
@given(value=plain_json)
def test_strict_json_holds_every_number(value: object) -> None:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    text = json.dumps(to_strict_json(value), allow_nan=False)
    assert repr(from_strict_json(json.loads(text, parse_constant=refuse))) == repr(value)


def lines(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


RECORD = {"scope": "test", "step_type": "env_step", "step": 1, "wall_s": 0.5, "data": {"a": "NaN", "b": "-Infinity"}}


def test_a_truncated_last_line_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    whole = lines(RECORD, RECORD)
    for torn in ('{"sco', "7", '{"scope": "test"}', "\x00"):
        file.write_text(whole + torn)
        read = read_metrics(file)
        assert len(read) == 2
        assert math.isnan(read[0]["data"]["a"])
        assert read[0]["data"]["b"] == -math.inf
    assert len(read_metrics(tmp_path)) == 2  # a run folder will do


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    for damage in ('{"sco\n', "7\n"):
        file.write_text(lines(RECORD) + damage + lines(RECORD))
        with pytest.raises(ValueError, match="line 2"):
            read_metrics(file)
    with pytest.raises(FileNotFoundError):
        read_metrics(tmp_path / "none.jsonl")


def test_json_files_are_strict_and_refused_whole(tmp_path: Path) -> None:
    file = tmp_path / "summary.json"
    write_json(file, {"a": math.nan, "b": np.float32(0.5), "c": (1, Path("x"))})
    assert json.loads(file.read_text()) == {"a": "NaN", "b": 0.5, "c": [1, "x"]}
    with pytest.raises(TypeError):
        write_json(file, {"a": print})
    assert json.loads(file.read_text())["b"] == 0.5
    assert len(list(tmp_path.iterdir())) == 1


def test_moving_average_ignores_numbers_that_are_not_finite() -> None:
    average = MovAvg(size=np.int64(3))
    assert average.get() == 0
    assert average.std() == 0
    assert average.add(1.0) == 1.0
    assert average.add([math.nan, 2.0, math.inf]) == 1.5
    assert average.add(torch.tensor([3.0, 4.0])) == 3.0
    assert average.mean() == 3.0
    assert average.std() == pytest.approx(np.std([2, 3, 4]))
    assert average.add(np.array([10])) == pytest.approx(17 / 3)
    assert len(average) == 3


@pytest.mark.parametrize("size", [0, 2.5, True])
def test_a_moving_average_of_no_whole_number_of_values_is_refused(size) -> None:
    with pytest.raises(ValueError, match=f"size={size!r} is not allowed; it must be a whole number, at least 1"):
        MovAvg(size)
