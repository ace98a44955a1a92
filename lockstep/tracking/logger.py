"""Loggers: where the records of a run go.

The trainer hands over dicts of statistics; a logger thins them out by intervals without losing any (what
comes between two writes is aggregated), names them under a scope (`train/ test/ update/ info/ save/`) and
writes them.
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
from typing import Any, Self, TypedDict

import torch
from torch import nn

from lockstep.options.checks import check_whole
from lockstep.tracking.records import aggregate, flatten, to_strict_json

SaveCheckpointFn = Callable[[int, int, int], Any]
"""`(epoch, env_step, gradient_step) -> path` of the checkpoint that it wrote."""

RestoredData = dict[str, dict[str, list[Any]]]
"""Name with its scope -> `{"step": [...], "value": [...]}`."""

STEP_TYPES = {"train": "env_step", "test": "env_step", "update": "gradient_step", "info": "epoch"}
_TIMED = re.compile(r"(?:^|[/_])(?:time|speed|path|wall_s)$|timing/|seconds")


@dataclass
class _Scope:
    """Records of one scope that wait, and when it was written last."""

    last_written: int | None = None
    pending: list[dict[str, Any]] = field(default_factory=list)
    pending_step: int = 0


class Intervals(TypedDict, total=False):
    """Keywords of `BaseLogger`, which loggers hand on to it."""

    train_interval: int
    test_interval: int
    update_interval: int
    info_interval: int


class BaseLogger(ABC):
    """Base of all loggers: a subclass writes `write`, and where it can, `restore_data`.

    Args:
        train_interval, test_interval: environment steps between two records of that scope (the first is
            written at once). What comes in between is aggregated into the next record and never lost.
        update_interval: the same in gradient steps.
        info_interval: the same in epochs.

    Arrays and lists are left out of the records. Raises `ValueError`: an interval below 1.
    """

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

    # What the trainer calls

    def set_guard(self, guard: Callable[[], None]) -> None:
        """Have `guard` called before anything is written; it raises where nothing may be written any more."""
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
        """Have a checkpoint written (if a function is given) and record the counters and its path (`save/`)."""
        path = save_checkpoint_fn(epoch, env_step, gradient_step) if save_checkpoint_fn is not None else None
        self.record_save(epoch, env_step, gradient_step, path)

    def drop_save(self) -> None:  # noqa: B027 (a logger that cannot does nothing)
        """Take back the record of the checkpoint that `set_state` went back to, if the logger can: the run goes on from
        where it was ended early.
        """

    def restore_data(self) -> tuple[int, int, int]:
        """Return `(epoch, env_step, gradient_step)` of the last save on record; zeros where there is none."""
        return 0, 0, 0

    def last_checkpoint(self) -> str | None:
        """Return the path of the last save on record; None without one."""
        return None

    def restore_logged_data(self, path: str | os.PathLike[str]) -> RestoredData:
        """Return what was logged to `path` earlier: scoped name -> `{"step": [...], "value": [...]}`.

        A logger that keeps nothing returns an empty dict.
        """
        return {}

    @abstractmethod
    def write(self, step_type: str, step: int, data: Mapping[str, Any]) -> None:
        """Write one record now: `data` maps scoped names (`train/returns_stat/mean`) to values."""

    def remark(self, step_type: str, step: int, data: Mapping[str, Any]) -> None:
        """Write a record that only a resumed run has, and one that never stopped has not."""
        self.check_guard()
        self.write(step_type, step, data)

    def flush(self) -> None:
        """Write what is waiting for the next interval."""
        for scope in self._scopes:
            self._flush_scope(scope)

    def finalize(self) -> None:
        """Write what is waiting and release files; logging more afterwards opens them again."""
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finalize()

    # State

    def get_state(self) -> dict[str, Any]:
        """Return the records that wait and the positions of the intervals; subclasses add where their files stand."""
        return {"scopes": {name: asdict(scope) for name, scope in self._scopes.items()}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `get_state`, so that a resumed run leaves the records of one that never stopped."""
        self._scopes = {name: _Scope(**copy.deepcopy(saved)) for name, saved in state["scopes"].items()}

    # For subclasses

    def record_save(self, epoch: int, env_step: int, gradient_step: int, path: object) -> None:
        """Record the counters and the path of a checkpoint that was written (scope `save/`)."""
        self.check_guard()
        counters = {"save/epoch": epoch, "save/env_step": env_step, "save/gradient_step": gradient_step}
        self.write("env_step", env_step, {**counters, "save/path": None if path is None else str(path)})

    def check_guard(self) -> None:
        """Call the guard, if there is one."""
        if self._guard is not None:
            self._guard()

    def _continue_from(self, epoch: int, env_step: int, gradient_step: int) -> None:
        steps = {"env_step": env_step, "gradient_step": gradient_step, "epoch": epoch}
        for name, scope in self._scopes.items():
            scope.last_written = steps[STEP_TYPES[name]] or None
            scope.pending = []

    def log(self, name: str, data: Mapping[str, Any], step: int) -> None:
        """Record data in the scope `train`, `test`, `update` or `info`; it may wait for the scope's interval."""
        scope = self._scopes[name]
        last = scope.last_written
        if last is not None and step < last:  # a new run with the same logger
            self._flush_scope(name)
            last = None
        scope.pending.append(flatten(data))
        scope.pending_step = int(step)
        if last is None or self.intervals[name] == 1 or step - last >= self.intervals[name]:
            self._flush_scope(name)

    def _flush_scope(self, name: str) -> None:
        scope = self._scopes[name]
        if not scope.pending:
            return
        self.check_guard()
        record = aggregate(scope.pending)
        scope.pending = []
        scope.last_written = scope.pending_step
        self.write(STEP_TYPES[name], scope.pending_step, {f"{name}/{key}": item for key, item in record.items()})


class LazyLogger(BaseLogger):
    """Keeps nothing; checkpoints are still written when the trainer saves."""

    def write(self, step_type: str, step: int, data: Mapping[str, Any]) -> None:
        """Do nothing."""

    def log(self, name: str, data: Mapping[str, Any], step: int) -> None:
        """Do nothing; no record waits."""


class MultiLogger(BaseLogger):
    """Hands everything to several loggers, each with its own intervals.

    Raises `ValueError`: no logger was given.
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
        found = [logger.restore_data() for logger in self.loggers]  # each goes back to its last save
        return next((counters for counters in found if any(counters)), (0, 0, 0))

    def last_checkpoint(self) -> str | None:
        """Return the path of the first logger that knows one."""
        return next((path for logger in self.loggers if (path := logger.last_checkpoint())), None)

    def restore_logged_data(self, path: str | os.PathLike[str]) -> RestoredData:
        """Return the records of the first logger that finds any at `path`."""
        return next((data for logger in self.loggers if (data := logger.restore_logged_data(path))), {})

    def flush(self) -> None:
        for logger in self.loggers:
            logger.flush()

    def finalize(self) -> None:
        """Finalize all, also when one fails; a failure is raised afterwards."""
        with contextlib.ExitStack() as stack:
            for logger in reversed(self.loggers):
                stack.callback(logger.finalize)

    def get_state(self) -> dict[str, Any]:
        return {"loggers": [logger.get_state() for logger in self.loggers]}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue each logger from its state; `ValueError` for the state of another number of loggers."""
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
    """Return the SHA-256 over the names, shapes, dtypes and bytes of all parameters and buffers of a module.

    Buffers that are left out of `state_dict` count too; shared ones count under each of their names. The device, the
    training flag and `requires_grad` have no part in it.
    """
    sha = hashlib.sha256()
    named = [
        *(("parameter", *item) for item in module.named_parameters(remove_duplicate=False)),
        *(("buffer", *item) for item in module.named_buffers(remove_duplicate=False)),
    ]
    for kind, name, tensor in sorted(named, key=lambda item: item[:2]):
        sha.update(f"{kind} {name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


class TraceLogger(BaseLogger):
    """Keeps every record that a trainer hands over as one line of text, without what a clock says.

    With modules, each update's line also has the hash of their parameters and buffers. Two runs with one seed have
    equal `lines`; `first_difference` tells where two have not.

        trace = TraceLogger(policy.module)
        OnpolicyTrainer(policy, logger=trace, ...).run()
        trace.digest()

    Args:
        modules: a module, or several by name.
    """

    def __init__(self, modules: nn.Module | Mapping[str, nn.Module] | None = None) -> None:
        super().__init__()
        self.modules = {"module": modules} if isinstance(modules, nn.Module) else dict(modules or {})
        self.lines: list[str] = []

    def log(self, name: str, data: Mapping[str, Any], step: int) -> None:
        """Keep the record at once, whatever the interval: nothing is aggregated in a trace."""
        hashes = self.modules if name == "update" else {}
        self._note(name, step, {**flatten(data), **{f"hash/{key}": torch_param_hash(m) for key, m in hashes.items()}})

    def write(self, step_type: str, step: int, data: Mapping[str, Any]) -> None:
        self._note(step_type, step, flatten(data))

    def _note(self, scope: str, step: int, values: Mapping[str, Any]) -> None:
        kept = {name: value for name, value in values.items() if not _TIMED.search(name)}
        self.lines.append(f"{scope} {step} {json.dumps(to_strict_json(kept), sort_keys=True)}")

    def digest(self) -> str:
        """Return the SHA-256 of all lines."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()

    def first_difference(self, other: "TraceLogger") -> str | None:
        """The first line that differs, of both; None where there is none."""
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
