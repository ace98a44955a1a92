"""Loggers of services, W&B and MLflow: records cannot be taken back there, so they are numbered and none is doubled.

wandb and mlflow (extras) are imported when the first record is written.
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
_PROGRESS = ("lockstep.progress.even", "lockstep.progress.odd")
"""Two tags are written in turn: if a kill truncates one, the other still holds the progress."""
_LONGEST_TEXT = 5000
_MOST_PARAMS = 100


class NumberedLogger(BaseLogger):
    """Base of the loggers of W&B and MLflow.

    The run there keeps how many records it has. A run that is resumed from a checkpoint makes the records after it
    anew, with the numbers they had: those that are there already are not sent again.

    Args:
        run_id: the run to continue there; None begins one.
        config: what the run was made with; shown beside it, as it stands when the first record is sent.
        intervals: as `BaseLogger`.
    """

    def __init__(
        self, run_id: str | None = None, config: Mapping[str, Any] | None = None, **intervals: Unpack[Intervals]
    ) -> None:
        super().__init__(**intervals)
        self.run_id = run_id
        self.config = {} if config is None else config
        self._number: int | None = None  # of the next record; None: after those that are there
        self._num_there: int | None = None  # None: not asked yet
        self._save: list[Any] | None = None  # the last save on record: counters, records up to it, path
        self._remarks: dict[str, dict[str, Any]] = {}  # by step type: wait for the next record that is sent

    def write(self, step_type: str, step: int, data: Mapping[str, Any]) -> None:
        """Send one record, unless the run has it already; None is left out, and so are arrays."""
        if self._num_there is None:
            kept = self._progress()
            self._num_there, self._save = int(kept.get("records", 0)), kept.get("save")
        number = self._num_there if self._number is None else self._number
        self._number = number + 1
        if number < self._num_there:
            return
        values = {name: value for name, value in flatten(data).items() if value is not None}
        if "save/epoch" in values:
            self._save = [*(int(values[f"save/{name}"]) for name in COUNTERS), number + 1, values.get("save/path")]
        progress = {"records": number + 1, **({} if self._save is None else {"save": self._save})}
        remarks = self._remarks.pop(step_type, {})
        self._send(number, step_type, int(step), {**remarks, **values}, progress)
        self._num_there = number + 1

    def remark(self, step_type: str, step: int, data: Mapping[str, Any]) -> None:
        """Send it with the next record of that step type, without a number: later records keep theirs."""
        self._remarks.setdefault(step_type, {}).update(flatten(data))

    def restore_data(self) -> tuple[int, int, int]:
        """Return `(epoch, env_step, gradient_step)` of the last save on record; zeros where there is none.

        What was recorded after that save stays as it is, and is not recorded a second time.
        """
        save = self._progress().get("save")
        if save is None:
            return 0, 0, 0
        epoch, env_step, gradient_step, self._number = (int(value) for value in save[:4])
        self._continue_from(epoch, env_step, gradient_step)
        return epoch, env_step, gradient_step

    def last_checkpoint(self) -> str | None:
        save = self._progress().get("save")
        return None if save is None else save[4]

    def get_state(self) -> dict[str, Any]:
        """Return the state of the base, with the run's id and the number of the next record.

        Sends what is waiting: at a run's end it would take the numbers of what follows where the run goes on.
        """
        self.flush()
        return {**super().get_state(), "run_id": self.run_id, "number": self._number or 0}

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        if state["run_id"] != self.run_id:
            self._close()
            self.run_id = state["run_id"]
        self._number, self._num_there = int(state["number"]), None

    def finalize(self) -> None:
        """Send what is waiting and end the run there; logging more afterwards takes it up again."""
        super().finalize()
        self._close()

    @abstractmethod
    def _progress(self) -> Mapping[str, Any]:
        """Return `records`: how many the run has; `save`: the counters of the last save and the records up to it."""

    @abstractmethod
    def _send(
        self, number: int, step_type: str, step: int, values: dict[str, Any], progress: Mapping[str, Any]
    ) -> None:
        """Send one record together with the new progress."""

    @abstractmethod
    def _close(self) -> None:
        """End the run there."""


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

    Raises `ImportError`: at the first record, when mlflow is not installed.
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
        """Return every number in the run of the id `path`: scoped name -> `{"step": [...], "value": [...]}`."""
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
            return {"records": self._number or 0}  # the numbers go on; those before are not sent again
        kept = max((_parsed(tags.get(name)) for name in _PROGRESS), key=lambda tag: int(tag.get("records", 0)))
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
        """Return whether this metric of the next record came from a process that was killed while it sent it."""
        history = self.client.get_metric_history(self.run_id, name)
        return any(metric.step == step and metric.timestamp > self._last_time for metric in history)

    def _begin(self) -> None:
        """Begin a new run, or mark the one there is as running."""
        if self._is_running:
            return
        client = self.client
        from mlflow.entities import Param

        if self.run_id is None:
            found = client.get_experiment_by_name(self.experiment_name)
            experiment = client.create_experiment(self.experiment_name) if found is None else found.experiment_id
            self.run_id = client.create_run(experiment, run_name=self.run_name, tags=self.tags).info.run_id
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
    try:
        return dict(json.loads(tag or "{}"))
    except ValueError:
        return {}


class WandbLogger(NumberedLogger):
    """Sends records to a run of Weights & Biases.

    Names are the scoped ones (`test/returns_stat/mean`); each scope is drawn over its own step: `env_step`,
    `gradient_step` or `epoch`. How many records the run has is kept in `wandb/lockstep-<run_id>.json` below `dir`, and
    online by the service too.

    Args:
        project, name, entity: as `wandb.init` takes them.
        run_id: the run to continue; None begins one.
        config: the run's configuration.
        dir: where wandb keeps its files; None: the environment variable `WANDB_DIR`, else the working directory.
        mode: "online", "offline" or "disabled"; None: as wandb is set up (`WANDB_MODE`).
        settings: further settings of wandb by name.
        intervals: as `BaseLogger`.

    Raises `ValueError`: an unknown mode. `ImportError`: at the first record, when wandb is not installed.
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
        super().__init__(run_id or uuid.uuid4().hex[:8], config, **intervals)  # no generator of training is asked
        if mode is not None:
            check_choice("mode", mode, ("online", "offline", "disabled"))
        self.project, self.name, self.entity, self.mode = project, name, entity, mode
        self.dir = Path(dir or os.environ.get("WANDB_DIR") or ".").absolute()
        self.settings = dict(settings or {})
        self._run: Any = None

    @property
    def run(self) -> Any:
        """wandb's run, begun when it is first asked for."""
        if self._run is not None:
            return self._run
        try:
            import wandb
        except ImportError as error:
            raise ImportError(f"WandbLogger needs wandb: {install_hint('wandb')}") from error
        self.dir.mkdir(parents=True, exist_ok=True)
        mode: Any = self.mode or os.environ.get("WANDB_MODE")
        while any(self.dir.glob(f"wandb/*run-{time.strftime('%Y%m%d_%H%M%S')}-{self.run_id}")):
            time.sleep(0.05)  # wandb names its folders by the second, and writes over one that is there
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
        return self.dir / "wandb" / f"lockstep-{self.run_id}.json"

    def _progress(self) -> Mapping[str, Any]:
        try:
            kept: dict[str, Any] = json.loads(self._progress_path.read_bytes())
        except (FileNotFoundError, ValueError):
            kept = {}
        return {**kept, "records": max(int(kept.get("records", 0)), int(self.run.step))}

    def _send(
        self, number: int, step_type: str, step: int, values: dict[str, Any], progress: Mapping[str, Any]
    ) -> None:
        self.run.log({**values, step_type: step}, step=number)
        path = self._progress_path
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(progress))
        os.replace(part, path)

    def _close(self) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None
