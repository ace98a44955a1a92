"""Loggers that send records to the services W&B and MLflow.

Services cannot take records back. Therefore records are numbered, and a resumed run sends none a second time. wandb and
mlflow, which are extras, are imported when the first record is sent.
"""

import json
import os
import time
import uuid
import warnings
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from lockstep.options.checks import check_choice, install_hint
from lockstep.tracking.logger import STEP_TYPES, BaseLogger, Intervals, RestoredData
from lockstep.tracking.records import flatten

COUNTERS = ("epoch", "env_step", "gradient_step")
_AXES = {**STEP_TYPES, "save": "env_step"}
"""Step over which W&B draws each scope."""
_PROGRESS = ("lockstep.progress.even", "lockstep.progress.odd")
"""Two tags are written in turn: if a kill truncates one, the other still holds the progress."""
_LONGEST_TEXT = 5000
"""Number of characters of a tag or parameter that MLflow accepts."""
_MOST_PARAMS = 100
"""Number of parameters in one request that MLflow accepts."""


class NumberedLogger(BaseLogger):
    """Base of the loggers of services.

    The service stores the number of records that a run has. A run that is resumed from a checkpoint produces the
    records after the checkpoint again, with the same numbers, and those that the service has already are not sent.

    Args:
        run_id: the service's run to continue. None: a new run.
        config: configuration of the run, shown next to it. Its content is read when the first record is sent.
        intervals: options of `BaseLogger`.
    """

    def __init__(
        self, run_id: str | None = None, config: Mapping[str, Any] | None = None, **intervals: Unpack[Intervals]
    ) -> None:
        super().__init__(**intervals)
        self.run_id = run_id
        self.config = {} if config is None else config
        self._number: int | None = None
        """Number of the next record. None: the number of records that the service has."""
        self._num_sent: int | None = None
        """Number of records that the service has. None: not known yet."""
        self._save: list[Any] | None = None
        """Last recorded save: three counters, number of records up to it, path."""
        self._remarks: dict[str, dict[str, Any]] = {}
        """Values by step type that are sent with the next record."""

    def write(self, step_type: str, step: int, data: Mapping[str, Any]) -> None:
        """Send one record, unless the service has it already. None and arrays are left out."""
        if self._num_sent is None:
            progress = self._progress()
            self._num_sent = int(progress.get("records", 0))
            self._save = progress.get("save")
        number = self._num_sent if self._number is None else self._number
        self._number = number + 1
        if number < self._num_sent:
            return

        values = {name: value for name, value in flatten(data).items() if value is not None}
        if "save/epoch" in values:
            self._save = [*(int(values[f"save/{name}"]) for name in COUNTERS), number + 1, values.get("save/path")]
        progress = {"records": number + 1}
        if self._save is not None:
            progress["save"] = self._save
        remarks = self._remarks.pop(step_type, {})
        self._send(number, step_type, int(step), {**remarks, **values}, progress)
        self._num_sent = number + 1

    def remark(self, step_type: str, step: int, data: Mapping[str, Any]) -> None:
        """Send values with the next record of that step type. They get no number, so that later records keep theirs."""
        self._remarks.setdefault(step_type, {}).update(flatten(data))

    def restore_data(self) -> tuple[int, int, int]:
        """Return `(epoch, env_step, gradient_step)` of the last recorded save, zeros if there is none.

        Records after that save stay as they are, and are not sent a second time.
        """
        save = self._progress().get("save")
        if save is None:
            return 0, 0, 0
        epoch, env_step, gradient_step, number = (int(value) for value in save[:4])
        self._number = number
        self._continue_from(epoch, env_step, gradient_step)
        return epoch, env_step, gradient_step

    def last_checkpoint(self) -> str | None:
        save = self._progress().get("save")
        return None if save is None else save[4]

    def get_state(self) -> dict[str, Any]:
        """Return the state of the base, with the run's id and the number of the next record.

        Pending records are sent first. Otherwise a run that is ended early would send them at its end, under the
        numbers of the records that its continuation produces, and the service would not get those any more.
        """
        self.flush()
        return {**super().get_state(), "run_id": self.run_id, "number": self._number or 0}

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        if state["run_id"] != self.run_id:
            self._close()
            self.run_id = state["run_id"]
        self._number = int(state["number"])
        self._num_sent = None

    def finalize(self) -> None:
        """Send all pending records, and end the service's run. Later records continue it."""
        super().finalize()
        self._close()

    @abstractmethod
    def _progress(self) -> Mapping[str, Any]:
        """Return the stored progress: `records`, their number, and `save`, the last recorded save."""

    @abstractmethod
    def _send(
        self, number: int, step_type: str, step: int, values: dict[str, Any], progress: Mapping[str, Any]
    ) -> None:
        """Send one record, and store the new progress with it."""

    @abstractmethod
    def _close(self) -> None:
        """End the service's run, if it is open."""


class MLflowLogger(NumberedLogger):
    """Logger that sends records to a run of MLflow: numbers as metrics over the steps of their scopes, text as tags.

    A record is one request, which also holds the number of records. MLflow does not store a request as a whole. If a
    kill has left a part of it, the metrics that have arrived are recognised by their time when the record is sent
    again.

    Args:
        experiment_name: name of the experiment, which is made if it does not exist.
        run_name: name in MLflow's list of runs.
        tracking_uri: a server, a database (`sqlite:///mlflow.db`) or a folder. None: MLflow's own setting
            (`MLFLOW_TRACKING_URI`). MLflow 3 accepts folders on request only (`MLFLOW_ALLOW_FILE_STORE`); naming one
            here is that request.
        run_id: run to continue. None: a new run.
        config: parameters of the run.
        tags: further tags.
        intervals: options of `BaseLogger`.

    Raises:
        ImportError: at the first record, if mlflow is not installed.
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
        **intervals: Unpack[Intervals],
    ) -> None:
        super().__init__(run_id, config, **intervals)
        self.experiment_name = experiment_name
        self.run_name = run_name
        self.tracking_uri = None if tracking_uri is None else os.fspath(tracking_uri)
        self.tags = dict(tags or {})
        self._connected: Any = None
        self._is_running = False
        self._last_time = 0
        """Time of the last record that MLflow has as a whole, in milliseconds."""
        self._may_be_partial = False
        """Whether MLflow may have a part of the next record already."""

    @property
    def client(self) -> Any:
        """MLflow's client, made on first use."""
        if self._connected is None:
            uri = self.tracking_uri
            if uri is not None and ("://" not in uri or uri.startswith("file:")):
                os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            try:
                from mlflow.tracking import MlflowClient
            except ImportError as error:
                raise ImportError(f"MLflowLogger needs mlflow: {install_hint('mlflow')}") from error
            self._connected = MlflowClient(tracking_uri=uri)
        return self._connected

    def restore_logged_data(self, path: str | os.PathLike[str]) -> RestoredData:
        """Return all numbers in the run with the id `path`, by scoped name: `{"step": [...], "value": [...]}`."""
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
            warnings.warn(
                f"there is no run {self.run_id} at {self.tracking_uri or 'the tracking server'}: its records go to a "
                "new run, earlier ones are not in it",
                RuntimeWarning,
                stacklevel=4,
            )
            self.run_id = None
            return {"records": self._number or 0}  # numbers continue, and earlier records are not sent again
        newest = max((_parsed(tags.get(name)) for name in _PROGRESS), key=lambda tag: int(tag.get("records", 0)))
        self._last_time = int(newest.get("time", 0))
        self._may_be_partial = True
        return newest

    def _send(
        self, number: int, step_type: str, step: int, values: dict[str, Any], progress: Mapping[str, Any]
    ) -> None:
        self._begin()
        from mlflow.entities import Metric, RunTag

        # Times increase from record to record, also on a machine whose clock is behind: `_has_arrived` compares them.
        now = max(int(time.time() * 1000), self._last_time + 1)
        numbers = {name: float(v) for name, v in values.items() if isinstance(v, int | float)}
        if self._may_be_partial:
            numbers = {name: v for name, v in numbers.items() if not self._has_arrived(name, step)}
        metrics = [Metric(name, v, now, step) for name, v in numbers.items()]
        tags = [RunTag(name, v[:_LONGEST_TEXT]) for name, v in values.items() if isinstance(v, str)]
        tags.append(RunTag(_PROGRESS[number % 2], json.dumps({**progress, "time": now})))
        self.client.log_batch(self.run_id, metrics=metrics, tags=tags)
        self._last_time = now
        self._may_be_partial = False

    def _has_arrived(self, name: str, step: int) -> bool:
        """Return whether MLflow has this metric of the next record, from a process that was killed in the request."""
        history = self.client.get_metric_history(self.run_id, name)
        return any(metric.step == step and metric.timestamp > self._last_time for metric in history)

    def _begin(self) -> None:
        """Begin a new run, or mark the existing one as running."""
        if self._is_running:
            return
        client = self.client
        from mlflow.entities import Param

        if self.run_id is None:
            experiment = client.get_experiment_by_name(self.experiment_name)
            if experiment is None:
                experiment_id = client.create_experiment(self.experiment_name)
            else:
                experiment_id = experiment.experiment_id
            self.run_id = client.create_run(experiment_id, run_name=self.run_name, tags=self.tags).info.run_id
            flat = flatten(self.config, exclude_arrays=False)
            params = [Param(name, str(value)[:_LONGEST_TEXT]) for name, value in flat.items()]
            for start in range(0, len(params), _MOST_PARAMS):
                client.log_batch(self.run_id, params=params[start : start + _MOST_PARAMS])
        else:
            client.update_run(self.run_id, status="RUNNING")
        self._is_running = True

    def _close(self) -> None:
        if self._is_running:
            self._is_running = False
            self.client.set_terminated(self.run_id, "FINISHED")


def _parsed(tag: str | None) -> dict[str, Any]:
    """Return the progress in a tag, nothing for a tag that is missing or was truncated."""
    try:
        return dict(json.loads(tag or "{}"))
    except ValueError:
        return {}


class WandbLogger(NumberedLogger):
    """Logger that sends records to a run of Weights & Biases.

    Names are the scoped ones (`test/returns_stat/mean`). Each scope is drawn over its own step: `env_step`,
    `gradient_step` or `epoch`. The number of records is stored in `wandb/lockstep-<run_id>.json` below `dir`, and
    online by the service as well.

    Args:
        project, name, entity: arguments of `wandb.init`.
        run_id: run to continue. None: a new run.
        config: configuration of the run.
        dir: directory of wandb's files. None: the environment variable `WANDB_DIR`, or else the working directory.
        mode: "online", "offline" or "disabled". None: wandb's own setting (`WANDB_MODE`).
        settings: further settings of wandb, by name.
        intervals: options of `BaseLogger`.

    Raises:
        ValueError: the mode is unknown.
        ImportError: at the first record, if wandb is not installed.
    """

    def __init__(
        self,
        project: str = "lockstep",
        name: str | None = None,
        *,
        entity: str | None = None,
        run_id: str | None = None,
        config: Mapping[str, Any] | None = None,
        dir: str | os.PathLike[str] | None = None,
        mode: str | None = None,
        settings: Mapping[str, Any] | None = None,
        **intervals: Unpack[Intervals],
    ) -> None:
        # The id comes from `uuid` and not from a random stream of the run: two runs with one seed need different ids.
        super().__init__(run_id or uuid.uuid4().hex[:8], config, **intervals)
        if mode is not None:
            check_choice("mode", mode, ("online", "offline", "disabled"))
        self.project = project
        self.name = name
        self.entity = entity
        self.mode = mode
        self.dir = Path(dir or os.environ.get("WANDB_DIR") or ".").absolute()
        self.settings = dict(settings or {})
        self._run: Any = None

    @property
    def run(self) -> Any:
        """wandb's run, begun on first use."""
        if self._run is not None:
            return self._run
        try:
            import wandb
        except ImportError as error:
            raise ImportError(f"WandbLogger needs wandb: {install_hint('wandb')}") from error
        self.dir.mkdir(parents=True, exist_ok=True)
        mode: Any = self.mode or os.environ.get("WANDB_MODE")
        # wandb names its folders by the second, and overwrites one that exists.
        while any(self.dir.glob(f"wandb/*run-{time.strftime('%Y%m%d_%H%M%S')}-{self.run_id}")):
            time.sleep(0.05)
        run = wandb.init(
            project=self.project,
            name=self.name,
            entity=self.entity,
            id=self.run_id,
            config=dict(self.config),
            dir=str(self.dir),
            mode=mode,
            resume="allow" if mode in (None, "online") else None,
            reinit="create_new",
            settings=wandb.Settings(**self.settings),
        )
        for axis in dict.fromkeys(_AXES.values()):
            run.define_metric(axis, hidden=True)
        for scope, axis in _AXES.items():
            run.define_metric(f"{scope}/*", step_metric=axis)
        self._run = run
        return run

    @property
    def _progress_path(self) -> Path:
        """File with the progress of the run."""
        return self.dir / "wandb" / f"lockstep-{self.run_id}.json"

    def _progress(self) -> Mapping[str, Any]:
        try:
            progress: dict[str, Any] = json.loads(self._progress_path.read_bytes())
        except (FileNotFoundError, ValueError):
            progress = {}
        # Online the service may know more records than this machine, where the run may not have been before.
        return {**progress, "records": max(int(progress.get("records", 0)), int(self.run.step))}

    def _send(
        self, number: int, step_type: str, step: int, values: dict[str, Any], progress: Mapping[str, Any]
    ) -> None:
        self.run.log({**values, step_type: step}, step=number)
        path = self._progress_path
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(progress), encoding="utf-8")
        os.replace(part, path)

    def _close(self) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None
