"""The logger of MLflow. mlflow (an extra) is imported when the first record is written."""

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from lockstep.state.messages import install_hint
from lockstep.tracking.logger import RestoredData
from lockstep.tracking.numbered import NumberedLogger
from lockstep.tracking.records import flatten

_PROGRESS = ("lockstep.progress.even", "lockstep.progress.odd")
"""tags that are written in turn: a kill may leave the one it came upon empty, the other tells how far the run was"""
_LONGEST_TEXT = 5000
_MOST_PARAMS = 100


class MLflowLogger(NumberedLogger):
    """Sends records to a run of MLflow: numbers as metrics over their scope's step, text as tags.

    One request for each record, which holds the number of records too. Where a kill came between its metrics, those
    that arrived are known by their times when the record is sent again.

    Args:
        experiment_name: made where there is none.
        run_name: shown in the list of runs.
        tracking_uri: a server, a database (`sqlite:///mlflow.db`) or a folder; None: as MLflow is set up
            (`MLFLOW_TRACKING_URI`). MLflow 3 takes folders on request only (`MLFLOW_ALLOW_FILE_STORE`): naming one here
            is that request.
        run_id: the run to continue; None begins one.
        config: the run's parameters.
        tags: further tags.
        intervals: as `BaseLogger`.

    Raises:
        ImportError: at the first record, when mlflow is not installed.
    """

    def __init__(
        self,
        experiment_name: str = "lockstep",
        run_name: str | None = None,
        *,
        tracking_uri: str | os.PathLike[str] | None = None,
        run_id: str | None = None,
        config: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        **intervals: Any,
    ) -> None:
        super().__init__(run_id, config, **intervals)
        self.experiment_name, self.run_name = experiment_name, run_name
        self.tracking_uri = None if tracking_uri is None else os.fspath(tracking_uri)
        self.tags = dict(tags or {})
        self._connected: Any = None
        self._is_running = False
        self._last_time = 0  # of the last record that is there as a whole, in milliseconds
        self._may_be_cut = False  # the next record may be there in parts

    @property
    def client(self) -> Any:
        """MLflow's client."""
        if self._connected is None:
            if self.tracking_uri is not None and _is_folder(self.tracking_uri):
                os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            try:
                from mlflow.tracking import MlflowClient
            except ImportError as error:
                raise ImportError(f"MLflowLogger needs mlflow: {install_hint('mlflow')}") from error
            self._connected = MlflowClient(tracking_uri=self.tracking_uri)
        return self._connected

    def restore_logged_data(self, path: str | os.PathLike[str]) -> RestoredData:
        """Every number in the run of the id `path`: scoped name -> `{"step": [...], "value": [...]}`."""
        restored: RestoredData = {}
        for name in self.client.get_run(os.fspath(path)).data.metrics:
            history = self.client.get_metric_history(os.fspath(path), name)
            restored[name] = {"step": [m.step for m in history], "value": [m.value for m in history]}
        return restored

    def _progress(self) -> Mapping[str, Any]:
        if self.run_id is None:
            return {}
        from mlflow.exceptions import MlflowException

        try:
            tags = self.client.get_run(self.run_id).data.tags
        except MlflowException:
            self._warn_lost(self.tracking_uri or "the tracking server")
            self.run_id = None
            return {"records": self._number or 0}  # the numbers go on; those before are not sent again
        kept = max((_parsed(tags.get(name)) for name in _PROGRESS), key=lambda one: int(one.get("records", 0)))
        self._last_time, self._may_be_cut = int(kept.get("time", 0)), True
        return kept

    def _send(
        self, number: int, step_type: str, step: int, values: dict[str, Any], progress: Mapping[str, Any]
    ) -> None:
        self._begin()
        from mlflow.entities import Metric, RunTag

        now = max(int(time.time() * 1000), self._last_time + 1)
        numbers = {name: float(v) for name, v in values.items() if isinstance(v, int | float)}
        if self._may_be_cut:
            numbers = {name: v for name, v in numbers.items() if not self._has_arrived(name, step)}
        metrics = [Metric(name, v, now, step) for name, v in numbers.items()]
        tags = [RunTag(name, v[:_LONGEST_TEXT]) for name, v in values.items() if isinstance(v, str)]
        tags.append(RunTag(_PROGRESS[number % 2], json.dumps({**progress, "time": now})))
        self.client.log_batch(self.run_id, metrics=metrics, tags=tags)
        self._last_time, self._may_be_cut = now, False

    def _has_arrived(self, name: str, step: int) -> bool:
        """Is this metric of the next record there, from a process that was killed while it sent it?"""
        history = self.client.get_metric_history(self.run_id, name)
        return any(metric.step == step and metric.timestamp > self._last_time for metric in history)

    def _begin(self) -> None:
        """A new run, or the one there is, as running."""
        if self._is_running:
            return
        client = self.client
        if self.run_id is None:
            found = client.get_experiment_by_name(self.experiment_name)
            experiment = client.create_experiment(self.experiment_name) if found is None else found.experiment_id
            self.run_id = client.create_run(experiment, run_name=self.run_name, tags=self.tags).info.run_id
            self._send_config()
        else:
            client.update_run(self.run_id, status="RUNNING")
        self._is_running = True

    def _send_config(self) -> None:
        from mlflow.entities import Param

        flat = flatten(self.config, exclude_arrays=False)
        params = [Param(name, str(value)[:_LONGEST_TEXT]) for name, value in flat.items()]
        for start in range(0, len(params), _MOST_PARAMS):
            self.client.log_batch(self.run_id, params=params[start : start + _MOST_PARAMS])

    def _close(self) -> None:
        if self._is_running:
            self._is_running = False
            self.client.set_terminated(self.run_id, "FINISHED")


def _parsed(tag: str | None) -> dict[str, Any]:
    try:
        return dict(json.loads(tag or "{}"))
    except ValueError:
        return {}


def _is_folder(uri: str) -> bool:
    return "://" not in uri or uri.startswith("file:")
