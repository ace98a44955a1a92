"""Loggers whose records lie with a service and cannot be taken back: they are numbered, so that none is doubled."""

import uuid
import warnings
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from lockstep.tracking.logger import BaseLogger
from lockstep.tracking.records import flatten

COUNTERS = ("epoch", "env_step", "gradient_step")


class NumberedLogger(BaseLogger):
    """Base of the loggers of W&B and MLflow.

    The run there keeps how many records it has. A run that is resumed from a checkpoint makes the records after it
    anew, with the numbers they had: those that are there already are not sent again.

    Args:
        run_id: the run to continue there; None begins one.
        config: what the run was made with; shown beside it.
        intervals: as `BaseLogger`.
    """

    def __init__(self, run_id: str | None = None, config: Mapping[str, Any] | None = None, **intervals: Any) -> None:
        super().__init__(**intervals)
        self.run_id = run_id
        self.config = dict(config or {})
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
        values = {name: value for name, value in flatten(data, exclude_arrays=True).items() if value is not None}
        if "save/epoch" in values:
            self._save = [*(int(values[f"save/{name}"]) for name in COUNTERS), number + 1, values.get("save/path")]
        progress = {"records": number + 1, **({} if self._save is None else {"save": self._save})}
        remarks = self._remarks.pop(step_type, {})
        self._send(number, step_type, int(step), {**remarks, **values}, progress)
        self._num_there = number + 1

    def remark(self, step_type: str, step: int, data: Mapping[str, Any]) -> None:
        """It goes with the next record of that step type and has no number: those after it keep theirs."""
        self._remarks.setdefault(step_type, {}).update(flatten(data, exclude_arrays=True))

    def restore_data(self) -> tuple[int, int, int]:
        """`(epoch, env_step, gradient_step)` of the last save on record; zeros where there is none.

        What was recorded after that save stays as it is, and is not recorded a second time.
        """
        save = self._progress().get("save")
        if save is None:
            return 0, 0, 0
        epoch, env_step, gradient_step, self._number = (int(value) for value in save[:4])
        self._continue_from(epoch, env_step, gradient_step)
        return epoch, env_step, gradient_step

    def last_checkpoint(self) -> str | None:
        """Where the last save on record lies."""
        save = self._progress().get("save")
        return None if save is None else save[4]

    def get_state(self) -> dict[str, Any]:
        """As the base, with the run's id and the number of the next record.

        Sends what is waiting: at a run's end it would take the numbers of what follows where the run goes on.
        """
        self.flush()
        return {**super().get_state(), "run_id": self.run_id, "number": self._number or 0}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue the same run there."""
        super().set_state(state)
        if state["run_id"] != self.run_id:
            self._close()
            self.run_id = state["run_id"]
        self._number, self._num_there = int(state["number"]), None

    def finalize(self) -> None:
        """Send what is waiting and end the run there; logging more afterwards takes it up again."""
        super().finalize()
        self._close()

    def _warn_lost(self, where: str) -> None:
        warnings.warn(
            f"there is no run {self.run_id} at {where}: its records go to a new run, earlier ones are not in it",
            RuntimeWarning,
            stacklevel=4,
        )

    @abstractmethod
    def _progress(self) -> Mapping[str, Any]:
        """`records`: how many the run has; `save`: the counters of the last save and the records up to it."""

    @abstractmethod
    def _send(
        self, number: int, step_type: str, step: int, values: dict[str, Any], progress: Mapping[str, Any]
    ) -> None:
        """Send one record together with the new progress."""

    @abstractmethod
    def _close(self) -> None:
        """End the run there."""


def new_run_id() -> str:
    """Eight characters; from the system, not from a generator that training might use."""
    return uuid.uuid4().hex[:8]
