"""W&B (offline) and MLflow (a local folder): what arrives, aggregation, flush, and resume without doubled records."""

import importlib.util
import json
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.tracking import (
    BaseLogger,
    JsonlLogger,
    MLflowLogger,
    MultiLogger,
    TensorboardLogger,
    WandbLogger,
    read_metrics,
)

COUNTERS = (1, 500, 70)
QUIET = {"silent": True, "x_disable_stats": True, "x_disable_meta": True, "console": "off", "save_code": False}

needs_wandb = pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
needs_mlflow = pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed")


def wandb_logger(folder: Path, **options: Any) -> WandbLogger:
    return WandbLogger("poles", dir=folder, mode="offline", settings=QUIET, **options)


def mlflow_logger(folder: Path, **options: Any) -> MLflowLogger:
    return MLflowLogger("poles", tracking_uri=folder / "mlruns", **options)


def payloads(path: Path) -> list[bytes]:
    """Records of a file of wandb: blocks of 32 KiB of (checksum, length, kind, bytes), after 7 bytes of head."""
    content, position, parts, whole = path.read_bytes(), 7, [], []
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        if kind == 0:
            break
        parts.append(content[position + 7 : position + 7 + length])
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            whole.append(b"".join(parts))
            parts = []
    return whole


def sent_to_wandb(folder: Path) -> list[dict[str, Any]]:
    """The rows of all files of the run, in the order of time, when wandb's own process has written their ends."""
    from wandb.proto import wandb_internal_pb2 as protocol

    until = time.monotonic() + 30.0
    while True:
        paths = sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)
        records = [[protocol.Record.FromString(payload) for payload in payloads(path)] for path in paths]
        ended = [any(record.WhichOneof("record_type") == "exit" for record in part) for part in records]
        if all(ended):
            break
        assert time.monotonic() < until, f"wandb did not write the end of {paths[ended.index(False)]}"
        time.sleep(0.1)
    return [
        {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
        for part in records
        for record in part
        if record.WhichOneof("record_type") == "history"
    ]


def log_some(logger: BaseLogger, first: int, last: int) -> None:
    for index in range(first, last):
        logger.log_train_data({"n_steps": 50, "x": float(index)}, 50 * index)
        logger.log_update_data({"loss": 1.0 / (index + 1)}, 7 * index)
        if index % 3 == 0:
            logger.log_test_data({"x": float(index)}, 50 * index)


def train_and_be_killed(logger: BaseLogger) -> dict[str, Any]:
    """Ten steps, a checkpoint, for which a service gets what waits, four steps that the checkpoint does not hold."""
    states: list[dict[str, Any]] = []
    log_some(logger, 0, 10)
    logger.flush()
    logger.save_data(*COUNTERS, lambda *where: states.append(logger.get_state()) or "somewhere")
    log_some(logger, 10, 14)
    return json.loads(json.dumps(states[0]))


def go_on(logger: BaseLogger, state: dict[str, Any], remark: dict[str, Any] | None = None) -> None:
    """As a trainer goes on: the state, the note of the save that holds it, and all that follows."""
    logger.set_state(state)
    logger.save_data(*COUNTERS, lambda *where: "somewhere")
    if remark is not None:
        logger.remark("env_step", COUNTERS[1], remark)
    log_some(logger, 10, 20)
    logger.finalize()


@needs_wandb
@pytest.mark.long
def test_wandb_records_of_a_resumed_run_equal_those_of_an_unbroken_one(tmp_path: Path) -> None:
    whole = JsonlLogger(tmp_path / "whole.jsonl", train_interval=120)
    train_and_be_killed(whole)
    log_some(whole, 14, 20)
    whole.finalize()
    killed = wandb_logger(tmp_path, train_interval=120)
    state = train_and_be_killed(killed)
    killed._close()  # what waits is lost with the process
    resumed = wandb_logger(tmp_path, train_interval=120)
    go_on(resumed, state, {"save/episodes_cut": 2})
    assert resumed.run_id == killed.run_id

    rows = sent_to_wandb(tmp_path)
    assert [row["_step"] for row in rows] == list(range(len(rows)))
    remarked = [row.pop("save/episodes_cut") for row in rows if "save/episodes_cut" in row and "env_step" in row]
    assert remarked == [2]  # what only a resumed run remarks doubles and loses no record
    got = [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]
    assert got == [
        {record["step_type"]: record["step"], **{f"{record['scope']}/{k}": v for k, v in record["data"].items()}}
        for record in read_metrics(whole.path)
    ]
    assert sum(row.get("train/n_steps", 0) for row in rows) == 20 * 50  # aggregated, none lost, the last flushed
    saves = [row for row in rows if "save/epoch" in row]
    assert [(row["save/env_step"], row["save/path"]) for row in saves] == [(500, "somewhere")]
    assert json.loads(resumed._progress_path.read_bytes()) == {
        "records": len(rows),
        "save": [*COUNTERS, saves[0]["_step"] + 1, "somewhere"],
    }


@needs_mlflow
def test_mlflow_records_of_a_resumed_run_equal_those_of_an_unbroken_one(tmp_path: Path) -> None:
    config = {"training": {"lr": 1e-3, "hiddens": [8, 8]}}
    whole, killed = (mlflow_logger(tmp_path, train_interval=120, config=config) for _ in range(2))
    train_and_be_killed(whole)
    log_some(whole, 14, 20)
    whole.finalize()
    state = train_and_be_killed(killed)
    resumed = mlflow_logger(tmp_path, train_interval=120)
    go_on(MultiLogger([resumed]), {"loggers": [state]}, {"save/episodes_cut": 2})
    assert resumed.run_id == killed.run_id != whole.run_id

    series = [resumed.restore_logged_data(run) for run in (whole.run_id, resumed.run_id)]
    remarked = series[1].pop("save/episodes_cut")
    assert remarked["value"] == [2.0]  # what only a resumed run remarks doubles and loses no record
    assert series[0] == series[1]
    assert sum(series[1]["train/n_steps"]["value"]) == 20 * 50
    assert series[1]["update/loss"]["value"][0] == 1.0
    assert series[1]["test/x"]["step"] == [0, 150, 300, 450, 600, 750, 900]
    run = resumed.client.get_run(resumed.run_id)
    assert (run.info.status, run.data.tags["save/path"]) == ("FINISHED", "somewhere")
    assert run.data.params == {"training/lr": "0.001", "training/hiddens": "[8, 8]"}
    again = mlflow_logger(tmp_path, run_id=resumed.run_id)
    assert again.restore_data() == COUNTERS
    assert again.restore_logged_data(resumed.run_id) == {**series[1], "save/episodes_cut": remarked}


def end_and_go_on(make: Callable[[], BaseLogger]) -> BaseLogger:
    """Runs that end in order while data wait for their record, and go on from the checkpoint at their end."""
    logger, states = make(), list[dict[str, Any]]()
    for first, last in ((0, 9), (9, 9), (9, 16), (16, 20)):
        log_some(logger, first, last)
        logger.save_data(1, 400, 56, lambda *where, ended=logger: states.append(ended.get_state()) or "somewhere")
        logger.finalize()
        logger = make()
        logger.set_state(json.loads(json.dumps(states[-1])))
        logger.save_data(1, 400, 56)
    return logger


@needs_mlflow
def test_mlflow_loses_nothing_if_a_run_that_ended_continues(tmp_path: Path) -> None:
    logger = end_and_go_on(lambda: mlflow_logger(tmp_path, train_interval=120))
    steps = logger.restore_logged_data(str(logger.run_id))["train/n_steps"]
    assert sum(steps["value"]) == 20 * 50
    assert len(set(steps["step"])) == len(steps["step"])


@needs_wandb
def test_wandb_loses_nothing_if_a_run_that_ended_continues(tmp_path: Path) -> None:
    end_and_go_on(lambda: wandb_logger(tmp_path, train_interval=120)).finalize()
    rows = sent_to_wandb(tmp_path)
    assert [row["_step"] for row in rows] == list(range(len(rows)))
    assert sum(row.get("train/n_steps", 0) for row in rows) == 20 * 50


@needs_mlflow
@pytest.mark.parametrize("num_metrics_missing", [0, 1, 2])
def test_a_kill_while_mlflow_writes_a_record_neither_doubles_nor_loses_it(
    tmp_path: Path, num_metrics_missing: int
) -> None:
    """The tag with the progress is left empty, and of the metrics of the last record some did not arrive."""
    whole, killed = (mlflow_logger(tmp_path, train_interval=50) for _ in range(2))
    train_and_be_killed(whole)
    log_some(whole, 14, 20)
    whole.finalize()
    state = train_and_be_killed(killed)
    (run,) = (tmp_path / "mlruns").glob(f"*/{killed.run_id}")
    tags = {path: json.loads(path.read_text()) for path in run.glob("tags/lockstep.progress.*")}
    last = max(tags, key=lambda path: tags[path]["records"])
    newest = [
        path
        for path in sorted(run.glob("metrics/*/*"))
        if path.read_text().splitlines()[-1].startswith(f"{tags[last]['time']} ")
    ]
    assert len(newest) >= 2
    for path in newest[:num_metrics_missing]:
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    last.write_text("")
    resumed = mlflow_logger(tmp_path, train_interval=50)
    go_on(resumed, state)
    series = [resumed.restore_logged_data(logger.run_id) for logger in (whole, resumed)]
    assert series[0] == series[1]


@needs_mlflow
def test_a_missing_mlflow_run_is_reported_and_replaced_by_a_new_one(tmp_path: Path) -> None:
    logger = mlflow_logger(tmp_path)
    logger.log_test_data({"x": 1.0}, 0)
    state = logger.get_state()
    other = mlflow_logger(tmp_path / "elsewhere")
    other.set_state(state)
    with pytest.warns(RuntimeWarning, match=f"there is no run {logger.run_id} at .*elsewhere"):
        other.log_test_data({"x": 2.0}, 10)
    assert other.run_id != logger.run_id
    assert other.restore_logged_data(other.run_id) == {"test/x": {"step": [10], "value": [2.0]}}


@needs_mlflow
def test_mlflow_keeps_nan_and_text_and_a_run_that_is_given_is_continued(tmp_path: Path) -> None:
    first = mlflow_logger(tmp_path, tags={"who": "me"})
    first.log_test_data({"loss": float("nan"), "none": None, "name": "a", "array": [1, 2]}, 3)
    first.finalize()
    second = mlflow_logger(tmp_path, run_id=first.run_id)
    second.log_test_data({"loss": 2.0}, 4)
    run = second.client.get_run(first.run_id)
    assert run.info.status == "RUNNING"
    assert (run.data.tags["who"], run.data.tags["test/name"]) == ("me", "a")
    assert json.loads(run.data.tags["lockstep.progress.odd"])["records"] == 2
    series = second.restore_logged_data(first.run_id)
    assert list(series) == ["test/loss"]
    assert series["test/loss"]["step"] == [3, 4]
    assert str(series["test/loss"]["value"]) == "[nan, 2.0]"


@needs_mlflow
def test_mlflow_and_jsonl_have_the_same_numbers(tmp_path: Path) -> None:
    mlflow = mlflow_logger(tmp_path)
    logger = MultiLogger([JsonlLogger(tmp_path / "metrics.jsonl"), mlflow])
    log_some(logger, 0, 4)
    logger.save_data(1, 150, 21)
    logger.finalize()
    jsonl = {
        name: s for name, s in logger.restore_logged_data(tmp_path / "metrics.jsonl").items() if "path" not in name
    }
    assert mlflow.restore_logged_data(str(mlflow.run_id)) == jsonl


@pytest.mark.parametrize(
    "make, name", [(WandbLogger, "wandb"), (MLflowLogger, "mlflow"), (TensorboardLogger, "tensorboard")]
)
def test_each_logger_is_imported_at_its_first_record_or_named(
    make: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (name, "mlflow.tracking", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    logger = make("poles")
    logger.set_state(logger.get_state())
    with pytest.raises(ImportError, match=rf"{make.__name__} needs {name}: pip install '{name}>="):
        logger.log_test_data({"x": 1.0}, 0)


def test_an_unknown_mode_of_wandb_is_refused() -> None:
    with pytest.raises(ValueError, match="mode='offlin' is not allowed"):
        WandbLogger(mode="offlin")
