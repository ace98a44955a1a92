"""Loggers: the base class, and those that need no service.

The trainer hands over dicts of statistics. A logger writes them at intervals without losing any (records between two
writes are aggregated), under the names of their scope (`train/`, `test/`, `update/`, `info/`, `save/`).
"""

import contextlib
import copy
import hashlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, ClassVar, Self, TypedDict

import torch
from torch import nn

from lockstep.options.checks import check_whole
from lockstep.tracking.records import aggregate, flatten, to_strict_json

SaveCheckpointFn = Callable[[int, int, int], Any]
"""Function `(epoch, env_step, gradient_step) -> path` that writes a checkpoint."""

RestoredData = dict[str, dict[str, list[Any]]]
"""Logged values by scoped name: `{"step": [...], "value": [...]}`."""

STEP_TYPES = {"train": "env_step", "test": "env_step", "update": "gradient_step", "info": "epoch"}
"""Kind of step that each scope counts."""
_TIMED = re.compile(r"(?:^|[/_])(?:time|speed|path|wall_s)$|timing/|seconds")
"""Names of values that differ between two runs with the same seed."""


@dataclass
class _Scope:
    """Pending records of one scope."""

    last_written: int | None = None
    """Step at which the scope was written last; None before the first time."""
    pending: list[dict[str, Any]] = field(default_factory=list)
    """Records since then."""
    pending_step: int = 0
    """Step of the newest pending record."""


class Intervals(TypedDict, total=False):
    """Keywords of `BaseLogger`, which the constructors of loggers pass on to it."""

    train_interval: int
    test_interval: int
    update_interval: int
    info_interval: int


class BaseLogger(ABC):
    """Base of all loggers. A subclass implements `write`, and `restore_data` if it can read its records.

    Arrays and lists are left out of the records.

    Args:
        train_interval, test_interval: number of environment steps between two records of that scope. The first record
            is written at once. Records in between are aggregated into the next one.
        update_interval: the same for updates, in gradient steps.
        info_interval: the same for epochs, in epochs.

    Raises:
        ValueError: an interval is below 1.
    """

    keeps_records: ClassVar[bool] = True
    """Whether the logger keeps what is written to it. False for a `LazyLogger`."""

    def __init__(
        self,
        *,
        train_interval: int = 1000,
        test_interval: int = 1,
        update_interval: int = 100,
        info_interval: int = 1,
    ) -> None:
        intervals = {"train": train_interval, "test": test_interval, "update": update_interval, "info": info_interval}
        self.intervals = {name: check_whole(f"{name}_interval", interval, 1) for name, interval in intervals.items()}
        self._scopes = {name: _Scope() for name in intervals}
        self._guard: Callable[[], None] | None = None

    # ---- interface for the trainer ----

    def set_guard(self, guard: Callable[[], None]) -> None:
        """Set a function that is called before each write. It raises when this process may no longer write."""
        self._guard = guard

    def log_train_data(self, data: Mapping[str, Any], env_step: int) -> None:
        """Record statistics of a collect (scope `train/`)."""
        self.log("train", data, env_step)

    def log_test_data(self, data: Mapping[str, Any], env_step: int) -> None:
        """Record statistics of an evaluation (scope `test/`)."""
        self.log("test", data, env_step)

    def log_update_data(self, data: Mapping[str, Any], gradient_step: int) -> None:
        """Record statistics of an update (scope `update/`)."""
        self.log("update", data, gradient_step)

    def log_info_data(self, data: Mapping[str, Any], epoch: int) -> None:
        """Record statistics of a whole epoch (scope `info/`)."""
        self.log("info", data, epoch)

    def save_data(
        self, epoch: int, env_step: int, gradient_step: int, save_checkpoint_fn: SaveCheckpointFn | None = None
    ) -> None:
        """Write a checkpoint with the function, if there is one, and record the counters and its path (`save/`)."""
        path = None
        if save_checkpoint_fn is not None:
            path = save_checkpoint_fn(epoch, env_step, gradient_step)
        self.record_save(epoch, env_step, gradient_step, path)

    def drop_save(self) -> None:  # noqa: B027 (a logger that cannot does nothing)
        """Remove the record of the checkpoint that `set_state` has restored, if the logger can.

        A run that was ended early writes a checkpoint at its end. When the run continues from there, a run without the
        interruption would not have that record.
        """

    def restore_data(self) -> tuple[int, int, int]:
        """Return `(epoch, env_step, gradient_step)` of the last recorded save, zeros if there is none."""
        return 0, 0, 0

    def last_checkpoint(self) -> str | None:
        """Return the path of the last recorded save, None if there is none."""
        return None

    def restore_logged_data(self, path: str | os.PathLike[str]) -> RestoredData:
        """Return the values logged to `path` earlier, by scoped name: `{"step": [...], "value": [...]}`.

        A logger that stores nothing returns an empty dict.
        """
        return {}

    @abstractmethod
    def write(self, step_type: str, step: int, data: Mapping[str, Any]) -> None:
        """Write one record at once.

        Args:
            step_type: kind of step, one of the values of `STEP_TYPES`.
            step: step of the record.
            data: values by scoped names (`train/returns_stat/mean`).
        """

    def remark(self, step_type: str, step: int, data: Mapping[str, Any]) -> None:
        """Write a record that only a resumed run has. A logger that counts records does not count it."""
        self.check_guard()
        self.write(step_type, step, data)

    def flush(self) -> None:
        """Write all pending records."""
        for scope in self._scopes:
            self._flush_scope(scope)

    def finalize(self) -> None:
        """Write all pending records and close files. Later records open them again."""
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finalize()

    # ---- state ----

    def get_state(self) -> dict[str, Any]:
        """Return the pending records and the steps of the last writes. Subclasses add the positions in their files."""
        return {"scopes": {name: asdict(scope) for name, scope in self._scopes.items()}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`. A resumed run then has the records of a run without the interruption."""
        self._scopes = {name: _Scope(**copy.deepcopy(saved)) for name, saved in state["scopes"].items()}

    # ---- interface for subclasses ----

    def record_save(self, epoch: int, env_step: int, gradient_step: int, path: object) -> None:
        """Record the counters and the path of a checkpoint (scope `save/`)."""
        self.check_guard()
        counters = {"save/epoch": epoch, "save/env_step": env_step, "save/gradient_step": gradient_step}
        self.write("env_step", env_step, {**counters, "save/path": None if path is None else str(path)})

    def check_guard(self) -> None:
        """Call the function of `set_guard`, if there is one."""
        if self._guard is not None:
            self._guard()

    def _continue_from(self, epoch: int, env_step: int, gradient_step: int) -> None:
        """Set the intervals as if all scopes had been written at these counters, and drop pending records."""
        steps = {"env_step": env_step, "gradient_step": gradient_step, "epoch": epoch}
        for name, scope in self._scopes.items():
            scope.last_written = steps[STEP_TYPES[name]] or None
            scope.pending = []

    def log(self, name: str, data: Mapping[str, Any], step: int) -> None:
        """Record data in the scope `train`, `test`, `update` or `info`, which may wait for the scope's interval."""
        scope = self._scopes[name]
        last = scope.last_written
        if last is not None and step < last:  # another run has begun with the same logger
            self._flush_scope(name)
            last = None
        scope.pending.append(flatten(data))
        scope.pending_step = int(step)
        if last is None or self.intervals[name] == 1 or step - last >= self.intervals[name]:
            self._flush_scope(name)

    def _flush_scope(self, name: str) -> None:
        """Write the pending records of a scope as one."""
        scope = self._scopes[name]
        if not scope.pending:
            return
        self.check_guard()
        record = aggregate(scope.pending)
        scope.pending = []
        scope.last_written = scope.pending_step
        self.write(STEP_TYPES[name], scope.pending_step, {f"{name}/{key}": item for key, item in record.items()})


class LazyLogger(BaseLogger):
    """Logger that records nothing. Checkpoints are still written when the trainer saves."""

    keeps_records = False

    def write(self, step_type: str, step: int, data: Mapping[str, Any]) -> None:
        """Do nothing."""

    def log(self, name: str, data: Mapping[str, Any], step: int) -> None:
        """Do nothing. There are no pending records."""


class MultiLogger(BaseLogger):
    """Logger that passes every call on to several loggers, each with its own intervals.

    Raises `ValueError`: there is no logger.
    """

    def __init__(self, loggers: Sequence[BaseLogger]) -> None:
        super().__init__()
        if not loggers:
            raise ValueError("MultiLogger needs at least one logger; use LazyLogger to log nothing")
        self.loggers = list(loggers)

    def set_guard(self, guard: Callable[[], None]) -> None:
        for logger in self.loggers:
            logger.set_guard(guard)

    def write(self, step_type: str, step: int, data: Mapping[str, Any]) -> None:
        for logger in self.loggers:
            logger.write(step_type, step, data)

    def remark(self, step_type: str, step: int, data: Mapping[str, Any]) -> None:
        for logger in self.loggers:
            logger.remark(step_type, step, data)

    def drop_save(self) -> None:
        for logger in self.loggers:
            logger.drop_save()

    def restore_data(self) -> tuple[int, int, int]:
        """Return the counters of the first logger that has any."""
        # All loggers are asked, because each one also goes back to its last save.
        restored = [logger.restore_data() for logger in self.loggers]
        return next((counters for counters in restored if any(counters)), (0, 0, 0))

    def last_checkpoint(self) -> str | None:
        """Return the path of the first logger that knows one."""
        return next((path for logger in self.loggers if (path := logger.last_checkpoint())), None)

    def restore_logged_data(self, path: str | os.PathLike[str]) -> RestoredData:
        """Return the values of the first logger that finds any at `path`."""
        return next((data for logger in self.loggers if (data := logger.restore_logged_data(path))), {})

    def flush(self) -> None:
        for logger in self.loggers:
            logger.flush()

    def finalize(self) -> None:
        """Finalize all loggers, even if one of them fails. The error is raised afterwards."""
        with contextlib.ExitStack() as stack:
            for logger in reversed(self.loggers):
                stack.callback(logger.finalize)

    def get_state(self) -> dict[str, Any]:
        return {"loggers": [logger.get_state() for logger in self.loggers]}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of each logger. `ValueError` for the state of another number of loggers."""
        if len(state["loggers"]) != len(self.loggers):
            raise ValueError(f"expected the states of {len(self.loggers)} loggers, got {len(state['loggers'])}")
        for logger, saved in zip(self.loggers, state["loggers"]):
            logger.set_state(saved)

    def record_save(self, epoch: int, env_step: int, gradient_step: int, path: object) -> None:
        for logger in self.loggers:
            logger.record_save(epoch, env_step, gradient_step, path)

    def log(self, name: str, data: Mapping[str, Any], step: int) -> None:
        for logger in self.loggers:
            logger.log(name, data, step)


def torch_param_hash(module: nn.Module) -> str:
    """Return the SHA-256 of the names, shapes, dtypes and bytes of all parameters and buffers of a module.

    Buffers that are left out of `state_dict` are included, and shared tensors are included under each of their names.
    The device, the training flag and `requires_grad` make no difference.
    """
    sha = hashlib.sha256()
    parameters = [("parameter", *item) for item in module.named_parameters(remove_duplicate=False)]
    buffers = [("buffer", *item) for item in module.named_buffers(remove_duplicate=False)]
    for kind, name, tensor in sorted([*parameters, *buffers], key=lambda item: item[:2]):
        sha.update(f"{kind} {name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


class TraceLogger(BaseLogger):
    """Logger that stores every record of a trainer as a line of text, without values that depend on a clock.

    With modules, the line of each update also has the hash of their parameters and buffers. Two runs with the same seed
    have equal `lines`; `first_difference` finds the first line that differs.

        trace = TraceLogger(policy.module)
        OnpolicyTrainer(policy, logger=trace, ...).run()
        trace.digest()

    Args:
        modules: module whose parameters are hashed, or several by name.
    """

    def __init__(self, modules: nn.Module | Mapping[str, nn.Module] | None = None) -> None:
        super().__init__()
        self.modules = {"module": modules} if isinstance(modules, nn.Module) else dict(modules or {})
        self.lines: list[str] = []

    def log(self, name: str, data: Mapping[str, Any], step: int) -> None:
        """Store the record at once, whatever the interval is: a trace does not aggregate."""
        values = flatten(data)
        if name == "update":
            for key, module in self.modules.items():
                values[f"hash/{key}"] = torch_param_hash(module)
        self._add_line(name, step, values)

    def write(self, step_type: str, step: int, data: Mapping[str, Any]) -> None:
        self._add_line(step_type, step, flatten(data))

    def _add_line(self, scope: str, step: int, values: Mapping[str, Any]) -> None:
        """Add a record to the lines."""
        untimed = {name: value for name, value in values.items() if not _TIMED.search(name)}
        self.lines.append(f"{scope} {step} {json.dumps(to_strict_json(untimed), sort_keys=True)}")

    def digest(self) -> str:
        """Return the SHA-256 of all lines."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()

    def first_difference(self, other: "TraceLogger") -> str | None:
        """Return the first line that differs, as both traces have it; None if the traces are equal."""
        for number, (left, right) in enumerate(zip(self.lines, other.lines), start=1):
            if left != right:
                return f"line {number}:\n  {left}\n  {right}"
        if len(self.lines) != len(other.lines):
            return f"one trace has {len(self.lines)} lines, the other {len(other.lines)}"
        return None

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "lines": list(self.lines)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        self.lines = list(state["lines"])
