"""Loggers: scopes, intervals without loss, saves, resume without doubled records, TensorBoard's files."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lockstep.state import read_checkpoint, write_checkpoint
from lockstep.tracking import BaseLogger, JsonlLogger, LazyLogger, MultiLogger, TensorboardLogger, read_metrics
from lockstep.tracking.config import ReportingSection


class ListLogger(BaseLogger):
    """Keeps the records in a list."""

    def __init__(self, **intervals: Any) -> None:
        super().__init__(**intervals)
        self.records: list[tuple[str, int, dict[str, Any]]] = []

    def write(self, step_type: str, step: int, data: Mapping[str, Any]) -> None:
        self.records.append((step_type, step, dict(data)))


def test_each_kind_of_data_has_its_scope_and_its_step() -> None:
    logger = ListLogger()
    logger.log_train_data({"returns_stat": {"mean": 1.0}}, 10)
    logger.log_test_data({"x": 2.0}, 10)
    logger.log_update_data({"loss": 3.0}, 4)
    logger.log_info_data({"y": 4.0}, 1)
    logger.save_data(1, 10, 4, lambda epoch, env_step, gradient_step: f"{epoch}-{env_step}-{gradient_step}")
    assert logger.records == [
        ("env_step", 10, {"train/returns_stat/mean": 1.0}),
        ("env_step", 10, {"test/x": 2.0}),
        ("gradient_step", 4, {"update/loss": 3.0}),
        ("epoch", 1, {"info/y": 4.0}),
        (
            "env_step",
            10,
            {"save/epoch": 1, "save/env_step": 10, "save/gradient_step": 4, "save/path": "1-10-4"},
        ),
    ]


def test_records_between_two_writes_are_aggregated_and_flushed_at_the_end() -> None:
    logger = ListLogger(train_interval=100)
    for step in range(40, 401, 40):
        logger.log_train_data({"n_collected_steps": 40, "value": float(step)}, step)
    # the first at once, then as soon as 100 steps have passed: 160, 280, 400
    assert [(step, data["train/n_collected_steps"]) for _, step, data in logger.records] == [
        (40, 40),
        (160, 120),
        (280, 120),
        (400, 120),
    ]
    assert logger.records[1][2]["train/value"] == 120.0
    logger.log_train_data({"n_collected_steps": 40, "value": 440.0}, 440)
    logger.log_train_data({"n_collected_steps": 40, "value": 480.0}, 480)
    assert len(logger.records) == 4
    logger.finalize()
    assert logger.records[-1] == ("env_step", 480, {"train/n_collected_steps": 80, "train/value": 460.0})
    assert sum(data["train/n_collected_steps"] for *_, data in logger.records) == 480
    logger.finalize()
    assert len(logger.records) == 5


def test_a_new_run_with_the_same_logger_mixes_nothing() -> None:
    logger = ListLogger(train_interval=100)
    logger.log_train_data({"x": 1.0}, 100)
    logger.log_train_data({"x": 2.0}, 150)
    logger.log_train_data({"x": 9.0}, 10)
    assert [(step, data["train/x"]) for _, step, data in logger.records] == [(100, 1.0), (150, 2.0), (10, 9.0)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_interval": 0}, "train_interval=0 is not allowed; it must be a whole number, at least 1"),
        ({"update_interval": 2.5}, "update_interval"),
        ({"info_interval": True}, "info_interval"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ListLogger(**options)


def test_the_state_has_pending_records() -> None:
    logger = ListLogger(train_interval=100)
    logger.log_train_data({"x": 1.0}, 100)
    logger.log_train_data({"x": 2.0}, 150)
    other = ListLogger(train_interval=100)
    other.set_state(logger.get_state())
    for each in (logger, other):
        each.log_train_data({"x": 4.0}, 200)
        assert each.records[-1] == ("env_step", 200, {"train/x": 3.0})


def test_the_lazy_logger_does_nothing_but_save() -> None:
    logger = LazyLogger()
    saved = []
    logger.log_train_data({"x": object()}, 1)
    logger.save_data(1, 2, 3, lambda *counters: saved.append(counters))
    logger.finalize()
    assert saved == [(1, 2, 3)]
    assert logger.restore_data() == (0, 0, 0)
    assert logger.restore_logged_data("anywhere") == {}


# JSONL


def test_a_line_for_each_record_in_strict_json(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    with JsonlLogger(file) as logger:
        logger.log_test_data({"returns_stat": {"mean": float("nan"), "n": 3}, "returns": [1, 2]}, 1024)
        logger.write("epoch", 2, {"info/a": 1, "test/b": 2, "free": 3})
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert all(set(record) == {"scope", "step_type", "step", "wall_s", "data"} for record in records)
    assert records[0]["scope"] == "test"
    assert records[0]["step_type"] == "env_step"
    assert records[0]["step"] == 1024
    assert records[0]["data"] == {"returns_stat/mean": "NaN", "returns_stat/n": 3}
    assert [(r["scope"], r["data"]) for r in records[1:]] == [("info", {"a": 1}), ("test", {"b": 2}), ("", {"free": 3})]


@pytest.mark.parametrize("torn", ["", '{"scope": "te'])
def test_resume_keeps_records_and_cuts_a_truncated_last_line(torn: str, tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    with JsonlLogger(file) as logger:
        logger.log_test_data({"x": 1.0}, 0)
    with file.open("a") as end:
        end.write(torn)
    with pytest.raises(ValueError, match="resume=True"):
        JsonlLogger(file)
    with JsonlLogger(file, resume=True) as logger:
        logger.log_test_data({"x": 2.0}, 1)
    assert [record["step"] for record in read_metrics(file)] == [0, 1]


def strip_clock(file: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key != "wall_s"} for record in read_metrics(file)]


def log_some(logger: BaseLogger, first: int, last: int) -> None:
    for index in range(first, last):
        logger.log_train_data({"n_steps": 50, "x": float(index)}, 50 * index)
        logger.log_update_data({"loss": 1.0 / (index + 1)}, 7 * index)
        if index % 3 == 0:
            logger.log_test_data({"x": float(index)}, 50 * index)


def test_a_resumed_run_leaves_the_file_of_one_that_never_stopped(tmp_path: Path) -> None:
    whole = JsonlLogger(tmp_path / "whole.jsonl", train_interval=120)
    stopped = JsonlLogger(tmp_path / "stopped.jsonl", train_interval=120)
    for logger in (whole, stopped):
        log_some(logger, 0, 10)

        def save(epoch: int, env_step: int, gradient_step: int, logger: JsonlLogger = logger) -> str:
            write_checkpoint(tmp_path / logger.path.stem, {"": {"logger": logger.get_state()}})
            return "the same"

        logger.save_data(1, 500, 70, save)
        log_some(logger, 10, 14)
    log_some(whole, 14, 20)
    whole.finalize()
    stopped.write("env_step", 650, {"train/torn": 1})  # it was killed somewhere here

    resumed = JsonlLogger(tmp_path / "stopped.jsonl", resume=True, train_interval=120)
    resumed.set_state(read_checkpoint(tmp_path / "stopped")[""]["logger"])
    log_some(resumed, 10, 20)
    resumed.finalize()
    assert strip_clock(tmp_path / "stopped.jsonl") == strip_clock(tmp_path / "whole.jsonl")
    assert len(strip_clock(tmp_path / "whole.jsonl")) > 15
    wall = [record["wall_s"] for record in read_metrics(tmp_path / "stopped.jsonl")]
    assert wall == sorted(wall)


def test_a_log_alone_restores_three_counters_and_cuts_later_records(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    with JsonlLogger(file, train_interval=100) as logger:
        assert logger.restore_data() == (0, 0, 0)
        logger.log_train_data({"x": 1.0}, 100)
        logger.save_data(1, 100, 7)
        logger.log_train_data({"x": 2.0}, 200)
        logger.save_data(2, 200, 14, lambda *counters: "somewhere")
        logger.log_train_data({"x": 3.0}, 300)
    with JsonlLogger(file, resume=True, train_interval=100) as logger:
        assert logger.restore_data() == (2, 200, 14)
        logger.log_train_data({"x": 8.0}, 250)
        logger.log_train_data({"x": 4.0}, 300)
    train = [(r["step"], r["data"]["x"]) for r in read_metrics(file) if r["scope"] == "train"]
    assert train == [(100, 1.0), (200, 2.0), (300, 6.0)]


def test_a_record_of_episodes_that_were_cut_is_not_taken_for_a_save(tmp_path: Path) -> None:
    """The trainer writes one where it goes on from a checkpoint without the states of its environments."""
    file = tmp_path / "m.jsonl"
    with JsonlLogger(file) as logger:
        logger.save_data(1, 100, 7, lambda *counters: "somewhere")
        state = logger.get_state()
        logger.write("env_step", 100, {"save/episodes_cut": 2})
        logger.log_test_data({"path": "elsewhere"}, 100)
    with JsonlLogger(file, resume=True) as logger:
        assert (logger.last_checkpoint(), logger.restore_data()) == ("somewhere", (1, 100, 7))
        logger.write("env_step", 100, {"save/episodes_cut": 2})
        logger.set_state(state)
    assert [record["data"] for record in read_metrics(file)] == [
        {"epoch": 1, "env_step": 100, "gradient_step": 7, "path": "somewhere"}
    ]


def test_logged_data_comes_back_by_name(tmp_path: Path) -> None:
    logger = JsonlLogger(tmp_path / "m.jsonl")
    logger.log_test_data({"a": {"b": 1.0}}, 5)
    logger.log_test_data({"a": {"b": float("inf")}}, 6)
    restored = logger.restore_logged_data(tmp_path / "m.jsonl")
    assert restored == {"test/a/b": {"step": [5, 6], "value": [1.0, float("inf")]}}


def test_a_file_shorter_than_its_checkpoint_continues_with_a_warning(tmp_path: Path) -> None:
    logger = JsonlLogger(tmp_path / "m.jsonl")
    logger.log_test_data({"x": 1.0}, 0)
    state = logger.get_state()
    logger.finalize()
    fresh = JsonlLogger(tmp_path / "other.jsonl")
    with pytest.warns(RuntimeWarning, match="earlier records are lost"):
        fresh.set_state(state)
    fresh.log_test_data({"x": 2.0}, 1)
    assert [record["step"] for record in read_metrics(fresh.path)] == [1]


def test_a_line_that_the_disk_refuses_is_reported_and_leaves_no_part(tmp_path: Path, file_size_limit: Any) -> None:
    with file_size_limit(4096):
        logger = JsonlLogger(tmp_path / "m.jsonl")
        with pytest.raises(OSError, match=r"cannot log to .*m\.jsonl: File too large"):
            for step in range(1000):
                logger.log_test_data({"x": float(step)}, step)
        content = logger.path.read_bytes()
        assert content.endswith(b"}\n")
        assert 3900 < len(content) <= 4096
        assert [record["step"] for record in read_metrics(logger.path)] == list(range(step))


# TensorBoard


def scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(directory))
    events.Reload()  # files of one second in the order of their names, ".10" before ".9"
    return {tag: sorted((event.step, event.value) for event in events.Scalars(tag)) for tag in events.Tags()["scalars"]}


def test_tensorboard_reads_what_was_logged(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with TensorboardLogger(tmp_path / "tb", train_interval=100) as logger:
        logger.log_train_data({"returns_stat": {"mean": 1.0}}, 100)
        logger.log_train_data({"returns_stat": {"mean": 2.0}}, 150)
        logger.log_train_data({"returns_stat": {"mean": 4.0}}, 200)
        logger.log_train_data({"returns_stat": {"mean": 8.0}}, 250)
        logger.log_update_data({"loss": 0.5, "none": None, "flag": True}, 16)
        logger.log_test_data({"x": float("inf")}, 250)
        logger.save_data(3, 2**24 + 1, 2**25 + 1, lambda *counters: "path")
    assert scalars(tmp_path / "tb") == {
        "train/returns_stat/mean": [(100, 1.0), (200, 3.0), (250, 8.0)],
        "update/loss": [(16, 0.5)],
        "update/flag": [(16, 1.0)],
        "test/x": [(250, float("inf"))],
        "save/epoch": [(2**24 + 1, 3.0)],
        "save/env_step": [(2**24 + 1, 2.0**24)],  # float32, which the counters that are restored are not
        "save/gradient_step": [(2**24 + 1, 2.0**25)],
    }
    again = TensorboardLogger(tmp_path / "tb")
    assert (again.restore_data(), again.last_checkpoint()) == ((3, 2**24 + 1, 2**25 + 1), "path")
    assert again.restore_logged_data(tmp_path / "tb")["update/loss"] == {"step": [16], "value": [0.5]}
    assert TensorboardLogger(tmp_path / "empty").restore_data() == (0, 0, 0)
    assert not (tmp_path / "empty").exists()


def test_tensorboard_records_after_the_checkpoint_are_cut_on_resume(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    logger = TensorboardLogger(tmp_path)
    logger.log_test_data({"x": 1.0}, 1)
    state = logger.get_state()
    logger.log_test_data({"x": 2.0}, 2)
    logger.finalize()
    logger.log_test_data({"x": 3.0}, 3)  # a second file
    logger.finalize()
    resumed = TensorboardLogger(tmp_path)
    resumed.set_state(state)
    resumed.log_test_data({"x": 4.0}, 2)
    resumed.finalize()
    assert scalars(tmp_path) == {"test/x": [(1, 1.0), (2, 4.0)]}


def test_tensorboard_and_matplotlib_are_not_imported_before_they_are_used() -> None:
    code = (
        "import sys, lockstep.tracking as t; t.TensorboardLogger('nowhere');"
        "print([m for m in ('tensorboard', 'matplotlib', 'pandas', 'numba') if m in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


# Several


def test_several_loggers_share_one_checkpoint_and_keep_their_own_intervals(tmp_path: Path) -> None:
    jsonl, listed = JsonlLogger(tmp_path / "m.jsonl"), ListLogger(train_interval=100)
    logger = MultiLogger([jsonl, listed])
    saves = []
    logger.log_train_data({"x": 1.0}, 10)
    logger.log_train_data({"x": 2.0}, 50)
    logger.log_test_data({"x": 1.0}, 50)
    logger.save_data(1, 50, 5, lambda *counters: saves.append(counters) or "path")
    state = logger.get_state()
    logger.log_test_data({"x": 2.0}, 60)
    assert saves == [(1, 50, 5)]
    assert next(data["save/path"] for *_, data in listed.records if "save/path" in data) == "path"
    assert logger.restore_data() == (1, 50, 5)
    logger.set_state(state)
    logger.finalize()
    assert [(r["scope"], r["step"]) for r in read_metrics(tmp_path / "m.jsonl")] == [
        ("train", 10),
        ("test", 50),
        ("save", 50),
        ("train", 50),
    ]
    assert logger.restore_logged_data(tmp_path / "m.jsonl")["test/x"] == {"step": [50], "value": [1.0]}
    with pytest.raises(ValueError, match="2 loggers"):
        logger.set_state({"loggers": []})
    with pytest.raises(ValueError, match="at least one"):
        MultiLogger([])


def test_each_of_several_loggers_is_flushed_and_restored(tmp_path: Path) -> None:
    listed, jsonl = ListLogger(train_interval=100), JsonlLogger(tmp_path / "m.jsonl", train_interval=100)
    logger = MultiLogger([listed, jsonl])
    for step in (10, 50):
        logger.log_train_data({"x": float(step)}, step)
    logger.save_data(1, 50, 5, lambda *counters: "somewhere")
    logger.write("env_step", 60, {"free": 2})
    logger.flush()
    steps = {"train/x": [10, 50], "save/epoch": [50], "free": [60]}
    for name, expected in steps.items():
        assert [step for _, step, data in listed.records if name in data] == expected
        assert logger.restore_logged_data(jsonl.path)[name]["step"] == expected
    assert logger.restore_data() == (1, 50, 5)
    assert logger.last_checkpoint() == "somewhere"


def test_a_logger_that_fails_at_the_end_lets_the_others_flush() -> None:
    class Failing(ListLogger):
        def finalize(self) -> None:
            raise OSError("disk full")

    last = ListLogger(train_interval=100)
    logger = MultiLogger([Failing(), last])
    logger.log_train_data({"x": 1.0}, 0)
    logger.log_train_data({"x": 2.0}, 50)
    with pytest.raises(OSError, match="disk full"):
        logger.finalize()
    assert len(last.records) == 2


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"wandb": {"proj": "poles"}}, "WandbLogger has no argument 'proj'; did you mean 'project'?"),
        ({"jsonl": {"train_intervall": 3}}, "JsonlLogger has no argument 'train_intervall'; did you mean 'train_inter"),
        ({"tensorboard": {"x": 3}}, "TensorboardLogger has no argument 'x'; there are log_dir, train_interval"),
    ],
)
def test_an_unknown_argument_of_a_configured_logger_is_refused_early(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        ReportingSection(logger_config=options).validate()
    ReportingSection(logger_config={"wandb": {"project": "poles", "update_interval": 5}}).validate()


@pytest.mark.parametrize(("place", "error"), [(".", IsADirectoryError), ("new/metrics.jsonl", FileNotFoundError)])
def test_a_file_that_cannot_be_written_is_reported_at_once(place: str, error: type[OSError], tmp_path: Path) -> None:
    with pytest.raises(error, match=str(tmp_path / place)):
        JsonlLogger(tmp_path / place)


TAILS = {
    "torn": b'{"scope": "test", "step_ty',
    "torn, then a new line": b'{"scope": "te\n',
    "zeros": b"\0" * 200,
    "zeros over several lines": b"\0" * 70_000 + b"\n" + b"\0" * 70_000 + b"\n",
    "another text": b"[1, 2]\nnull\n",
}


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
def test_a_damaged_end_of_the_records_is_cut_off_wherever_it_is_met(tail: bytes, tmp_path: Path) -> None:
    """A kill tears a line, a power failure leaves zeros: the run goes on from its checkpoint or its log."""
    path = tmp_path / "metrics.jsonl"
    with JsonlLogger(path) as logger:
        logger.log_test_data({"score": 1.0}, 1)
        logger.save_data(1, 1, 1)
        state = logger.get_state()
    whole = path.read_bytes()
    assert len(read_metrics(path)) == 2
    path.write_bytes(whole + tail)
    assert len(read_metrics(path)) == 2
    with JsonlLogger(path, resume=True) as again:
        again.set_state(state)
    assert path.read_bytes() == whole
    path.write_bytes(whole + tail)
    with JsonlLogger(path, resume=True) as again:
        assert again.last_checkpoint() is None
        assert again.restore_data() == (1, 1, 1)
        again.log_test_data({"score": 2.0}, 2)
    assert [record["step"] for record in read_metrics(path)] == [1, 1, 2]


def test_a_save_record_that_is_damaged_later_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    logger = JsonlLogger(path)
    logger.log_test_data({"score": 1.0}, 1)
    state, size = logger.get_state(), path.stat().st_size
    logger.save_data(1, 1, 1)
    logger.log_test_data({"score": 2.0}, 2)
    content = path.read_bytes()
    path.write_bytes(
        content[:size] + content[size:].replace(b"{", b"\0", 1)
    )  # only that line; those after it are whole
    again = JsonlLogger(path, resume=True)
    again.set_state(state)
    assert path.stat().st_size == size
