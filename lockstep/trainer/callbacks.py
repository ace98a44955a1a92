"""Events of a run, and the callbacks that receive them.

A callback observes. The only way in which it changes the run is to request its end.
"""

from __future__ import annotations

import copy
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from lockstep.options.checks import check_number, check_whole, check_wholes
from lockstep.rollout import CollectorLike, EnvironmentCallback
from lockstep.rollout.callbacks import misspelt_event, overridden_events
from lockstep.state.checkpoint import ERROR, newest_attempt
from lockstep.state.markup import number_text
from lockstep.tracking import BaseLogger, LazyLogger, prune_checkpoints
from lockstep.tracking.statistics import CollectStats, EpochStats, InfoStats, TrainingStats
from lockstep.trainer.counters import Counters

Stop = str | None
"""Reason to stop the run, or None to continue."""
STAGES = ("environment", "acting", "storing", "returns", "update", "evaluation", "waiting")
"""Stages of a run whose seconds `Profiler` adds up."""

# -- events ---


@dataclass(frozen=True)
class Event:
    """Base class of all events: the position of the run."""

    method: ClassVar[str]
    """Name of the callback's method that handles the event: `on_collect_end` for `CollectEnd`."""
    is_on_all_ranks: ClassVar[bool] = True
    """Whether the event occurs at the same time on all ranks of a run."""
    epoch: int
    """Number of the epoch. 0 before the first."""
    env_step: int
    """Number of environment steps for training."""
    gradient_step: int
    """Number of gradient steps."""

    def __init_subclass__(cls) -> None:
        snake_case = re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", cls.__name__)
        cls.method = f"on{snake_case}"

    @property
    def position(self) -> int:
        """Number of environment steps; in a run that collects nothing, number of gradient steps."""
        return self.env_step or self.gradient_step


class TrainerView:
    """Read-only view of a trainer: its public attributes and methods except those that change the run.

    Lists are returned as tuples, dicts as read-only mappings and the counters as a copy. `AttributeError` is raised for
    setting an attribute, and for access to a method that changes the run.
    """

    CHANGES = frozenset(
        {
            "run",
            "reset",
            "close",
            "training_step",
            "policy_update_fn",
            "test_step",
            "set_seed",
            "choose_compiling",
            "set_state",
            "set_own_folders",
            "restore_from_path",
        }
    )
    """Methods that change the run, which a callback may not call. It may call `add_module` and the other methods that
    change modules: the trainer delays these changes to the end of the training step."""

    def __init__(self, trainer: object) -> None:
        object.__setattr__(self, "_trainer", trainer)  # this class refuses assignments

    def __getattr__(self, name: str) -> Any:
        if name in self.CHANGES or name.startswith("_"):
            raise AttributeError(
                f"a callback observes the run and cannot call trainer.{name}(). To end the run, return the reason as "
                "text from an event's method; to change what it does, override training_step, policy_update_fn or "
                "test_step in a subclass"
            )
        value = getattr(object.__getattribute__(self, "_trainer"), name)
        if isinstance(value, list):
            return tuple(value)
        if isinstance(value, Counters):
            return copy.deepcopy(value)
        return MappingProxyType(value) if isinstance(value, dict) else value

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a callback observes the run and cannot set trainer.{name}")


@dataclass(frozen=True)
class RunStart(Event):
    """The run begins, or continues after it was restored."""

    trainer: TrainerView
    """Read-only view of the trainer. Callbacks may keep it for later events."""


@dataclass(frozen=True)
class CollectEnd(Event):
    """Data was collected."""

    stats: CollectStats
    """Statistics of this collect."""


@dataclass(frozen=True)
class UpdateEnd(Event):
    """The policy was updated."""

    stats: TrainingStats
    """Statistics of this update."""


@dataclass(frozen=True)
class EvaluationEnd(Event):
    """The policy was evaluated.

    Epoch and steps are those at which the evaluation began. With `evaluation_parallel_to_training` the run has
    continued since then.
    """

    stats: CollectStats
    """Statistics of the evaluation's episodes."""
    score: float
    """Score that is compared for the best policy."""
    is_best: bool
    """Whether the score is the highest so far."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers that `custom_evaluation_function` returned, including its "score"."""


@dataclass(frozen=True)
class CheckpointSaved(Event):
    """A checkpoint was written."""

    is_on_all_ranks: ClassVar[bool] = False  # only one rank writes
    path: Path
    """Folder of the checkpoint."""


@dataclass(frozen=True)
class EpochEnd(Event):
    """An epoch has ended."""

    stats: EpochStats
    """Statistics of the epoch."""


@dataclass(frozen=True)
class RunEnd(Event):
    """The run has ended."""

    is_on_all_ranks: ClassVar[bool] = False  # an error ends it on one rank alone
    reason: str
    """`max_epoch`, `stop_fn`, `interrupted`, `error`, or the reason that a callback returned."""
    info: InfoStats
    """Statistics of the run."""


# -- callbacks ---


class Callback(EnvironmentCallback):
    """Base class of callbacks. Override the events you need, of the run and of environments (`EnvironmentCallback`).

    To stop the run, return the reason as a string from an event of the run.

    Methods for events of the run are called in the trainer's process. Values that they log into `metrics` are reported
    with the epoch (`EpochStats.metrics`).

    Methods for events of environments are called in the process that steps the environments. If that is the trainer's
    process, they are called on this object. An env runner in another process makes its own instance of each class in
    `config.callbacks(...)`, and calls them on that instance.
    """

    writes_checkpoints: ClassVar[bool] = False
    """Whether the callback writes full checkpoints and records them. It is then called after all other callbacks."""

    def on_event(self, event: Event) -> Stop:
        """Call the method for the event's class: `on_run_start`, `on_collect_end`, ..."""
        return getattr(self, event.method)(event)

    def on_run_start(self, event: RunStart) -> Stop:
        """Handle the beginning of a run, or its continuation from a checkpoint."""

    def on_collect_end(self, event: CollectEnd) -> Stop:
        """Handle the end of a collect."""

    def on_update_end(self, event: UpdateEnd) -> Stop:
        """Handle the end of an update."""

    def on_evaluation_end(self, event: EvaluationEnd) -> Stop:
        """Handle the end of an evaluation, after its score was compared with the best one."""

    def on_checkpoint_saved(self, event: CheckpointSaved) -> Stop:
        """Handle a checkpoint that was written."""

    def on_epoch_end(self, event: EpochEnd) -> Stop:
        """Handle the end of an epoch."""

    def on_run_end(self, event: RunEnd) -> Stop:
        """Handle the end of a run."""

    def on_evaluate_start(self) -> None:
        """Handle the beginning of an evaluation. Unlike an event, this and the next two methods cannot end the run."""

    def on_evaluate_end(self, stats: CollectStats) -> None:
        """Handle the end of an evaluation, before its score is computed. `on_evaluation_end` follows."""

    def on_checkpoint_loaded(self, path: Path) -> None:
        """Handle the checkpoint from which the trainer was restored."""


def notify_callbacks(callbacks: Sequence[Callback], event: str, *args: object) -> None:
    """Call the method named `event` of each callback. An exception gets a note with the name of the callback."""
    for callback in callbacks:
        try:
            getattr(callback, event)(*args)
        except Exception as error:
            error.add_note(f"in {type(callback).__name__}.{event}")
            raise


def attach_callbacks(
    callbacks: Sequence[Callback], name: str, collector: CollectorLike, classes: Sequence[type]
) -> None:
    """Register with a collector the callbacks that handle events of environments.

    Args:
        callbacks: the trainer's callbacks.
        name: name of the collector's parameter, for messages.
        collector: the collector.
        classes: callback classes of the configuration. Env runners make their own instances of these.

    Raises:
        ValueError: the collector steps environments in env runners, and a callback's class is not in `classes`, so it
            would never be called.
    """
    handlers = [callback for callback in callbacks if overridden_events(callback)]
    if not collector.in_runners:
        collector.set_callbacks(handlers)
        return
    unreachable = [callback for callback in handlers if type(callback) not in classes]
    if unreachable:
        raise ValueError(
            f"callbacks={unreachable!r} handle {overridden_events(unreachable[0])}, and the {name} collects in env "
            "runners, which cannot be handed an object; give the class: config.callbacks(...)"
        )


def check_callbacks(callbacks: object) -> None:
    """Raise `ValueError` unless `callbacks` is a list of callbacks without misspelt names of events."""
    if not isinstance(callbacks, Sequence) or not all(isinstance(each, Callback) for each in callbacks):
        hint = "; put it into one, callbacks=[...]" if isinstance(callbacks, Callback) else ""
        raise ValueError(
            f"callbacks={callbacks!r} is not allowed; it must be a list of lockstep.trainer.Callback{hint}"
        )
    for callback in callbacks:
        if words := misspelt_event(callback):
            raise ValueError(f"callbacks: {words}")


class LoggingCallback(Callback):
    """Callback that passes the statistics of all events to a logger.

    It does not close the logger: the trainer does, after the last checkpoint.
    """

    def __init__(self, logger: BaseLogger) -> None:
        self.logger = logger

    def on_collect_end(self, event: CollectEnd) -> None:
        # A plain `LazyLogger` drops every record. With short collects, making the dict in vain would cost time.
        if type(self.logger) is not LazyLogger:
            self.logger.log_train_data(event.stats.to_dict(), event.env_step)

    def on_update_end(self, event: UpdateEnd) -> None:
        if type(self.logger) is not LazyLogger:
            self.logger.log_update_data(event.stats.get_loss_stats_dict(), event.gradient_step)

    def on_evaluation_end(self, event: EvaluationEnd) -> None:
        """Log in the scope `test/`, at the environment step, or the gradient step of a run that collects nothing."""
        self.logger.log_test_data({**event.stats.to_dict(), **event.metrics}, event.position)

    def on_epoch_end(self, event: EpochEnd) -> None:
        metrics = {"metrics": dict(event.stats.metrics)} if event.stats.metrics else {}
        self.logger.log_info_data({**event.stats.info_stat.to_dict(), **metrics}, event.epoch)


class CheckpointCallback(Callback):
    """Callback that writes full checkpoints of a trainer that was made by hand.

    A checkpoint is written to `directory/step_<environment step>` (gradient step in a run that collects nothing) after
    every `interval` epochs and at the end of the run, whatever ended it. The newest `num_to_keep` are kept. The state
    at an error is written to `directory/error`, which `newest_checkpoint` ignores.

    `restore_trainer(trainer, newest_checkpoint(directory))` continues the run. A trainer with a run's folder writes its
    checkpoints there without this callback.
    """

    writes_checkpoints = True

    def __init__(self, directory: str | Path, *, interval: int = 1, num_to_keep: int = 3) -> None:
        self.interval, self.num_to_keep = check_wholes(interval=interval, num_to_keep=num_to_keep)
        self.directory = Path(directory)
        self._trainer: Any = None
        self._attempt = 0
        self._saved_at: tuple[int, int] | None = None
        """Epoch and position of the last checkpoint of this start of the run."""

    def on_run_start(self, event: RunStart) -> None:
        self._trainer = event.trainer
        self._saved_at = None
        # Checkpoints of a later start are newer, even if it was restored from an early step.
        self._attempt = max(event.trainer.attempt, 1 + newest_attempt(self.directory))

    def on_epoch_end(self, event: EpochEnd) -> None:
        if event.epoch % self.interval == 0:
            self._save(event)

    def on_run_end(self, event: RunEnd) -> None:
        """Write the last checkpoint, unless the newest one is of this position."""
        if self._trainer is None or self._saved_at == (event.epoch, event.position):
            return
        if event.reason == "error":
            self._trainer.save_to_path(self.directory / ERROR, attempt=self._attempt)
        elif self._trainer.is_whole:
            self._save(event)

    def _save(self, event: Event) -> None:
        path = self._trainer.save_to_path(self.directory / f"step_{event.position:012d}", attempt=self._attempt)
        # `resume_from_log` finds the checkpoint by this record. `restore_trainer` writes the same record again.
        self._trainer.logger.save_data(event.epoch, event.env_step, event.gradient_step, lambda *_: path)
        prune_checkpoints(self.directory, self.num_to_keep)
        self._saved_at = event.epoch, event.position


class EarlyStop(Callback):
    """Callback that stops a run at a score, after evaluations without a better score, or after some seconds.

    Args:
        threshold: score at which the run stops.
        patience: number of evaluations without a new best score after which the run stops.
        time_limit_s: seconds of the run in this process after which it stops.

    Raises:
        ValueError: none of the three is given, or one is out of range.
    """

    def __init__(
        self,
        *,
        threshold: float | None = None,
        patience: int | None = None,
        time_limit_s: float | None = None,
    ) -> None:
        if threshold is None and patience is None and time_limit_s is None:
            raise ValueError("EarlyStop needs threshold, patience or time_limit_s")
        check_number("threshold", threshold, optional=True)
        check_number("time_limit_s", time_limit_s, optional=True, gt=0)
        self.patience: int | None = check_whole("patience", patience, 1, optional=True)
        self.threshold = threshold
        self.time_limit_s = time_limit_s
        self.num_without_best = 0
        """Number of evaluations since the best score."""
        self._started = time.monotonic()

    def on_run_start(self, event: RunStart) -> None:
        """Start the clock. The count of evaluations starts at 0 only in a new run, not in one that continues."""
        self._started = time.monotonic()
        if event.epoch == event.env_step == 0:
            self.num_without_best = 0

    def on_evaluation_end(self, event: EvaluationEnd) -> Stop:
        self.num_without_best = 0 if event.is_best else self.num_without_best + 1
        if self.threshold is not None and event.score >= self.threshold:
            return f"score {number_text(event.score)} reached the threshold {self.threshold:g}"
        if self.patience is not None and self.num_without_best >= self.patience:
            return f"no better score in {self.patience} evaluations"
        return None

    def on_update_end(self, event: UpdateEnd) -> Stop:
        if self.time_limit_s is not None and time.monotonic() - self._started > self.time_limit_s:
            return f"time limit of {self.time_limit_s:g} s"
        return None

    def get_state(self) -> Mapping[str, Any]:
        return {"num_without_best": self.num_without_best}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.num_without_best = int(state["num_without_best"])


class Profiler(Callback):
    """Callback that adds up the seconds of a run by stage.

    The stages are:

    - `environment`: steps of the environments.
    - `acting`: choice of actions.
    - `storing`: the rest of collection.
    - `returns`: preparation of a batch: values, returns and advantages, or samples of a replay buffer.
    - `update`: gradient steps.
    - `evaluation`: evaluations.
    - `waiting`: the rest: checkpoints, callbacks, and the program that iterates over the trainer.

    Args:
        print_at_end: print a table of the stages when the run ends.
    """

    def __init__(self, *, print_at_end: bool = False) -> None:
        self.print_at_end = print_at_end
        self.seconds = dict.fromkeys(STAGES, 0.0)
        """Seconds of each stage."""
        self._started = time.monotonic()
        self._seconds_before = 0.0
        """Seconds of earlier starts of the run."""

    @property
    def total(self) -> float:
        """Seconds of the run, by the wall clock."""
        return sum(self.seconds.values())

    @property
    def shares(self) -> dict[str, float]:
        """Share of each stage in the whole time. The shares sum to 1; before the run all are 0."""
        total = self.total or 1.0
        return {name: seconds / total for name, seconds in self.seconds.items()}

    def on_run_start(self, event: RunStart) -> None:
        """Start the clock: at 0 for a new run, at the saved seconds for one that continues."""
        if event.env_step == event.gradient_step == 0:
            self.seconds = dict.fromkeys(STAGES, 0.0)
        self._started = time.monotonic()
        self._seconds_before = self.total

    def on_collect_end(self, event: CollectEnd) -> None:
        stats = event.stats
        self._add("environment", stats.env_time)
        self._add("acting", stats.act_time)
        self._add("storing", stats.collect_time - stats.env_time - stats.act_time)

    def on_update_end(self, event: UpdateEnd) -> None:
        steps = event.stats.stage_seconds.get("gradient_steps", event.stats.train_time)
        self._add("returns", event.stats.train_time - steps)
        self._add("update", steps)

    def on_evaluation_end(self, event: EvaluationEnd) -> None:
        self._add("evaluation", event.stats.collect_time)

    def on_run_end(self, event: RunEnd) -> None:
        self._update_waiting()
        if self.print_at_end:
            for name, share in self.shares.items():
                sys.stdout.write(f"{name:<12}{self.seconds[name]:>10.3f} s{share:>8.1%}\n")
            sys.stdout.write(f"{'together':<12}{self.total:>10.3f} s\n")

    def _add(self, stage: str, seconds: float) -> None:
        self.seconds[stage] += max(0.0, seconds)
        self._update_waiting()

    def _update_waiting(self) -> None:
        """Set `waiting` to the seconds on the wall clock that no other stage accounts for."""
        elapsed = self._seconds_before + time.monotonic() - self._started
        known = self.total - self.seconds["waiting"]
        self.seconds["waiting"] = max(0.0, elapsed - known)

    def get_state(self) -> Mapping[str, Any]:
        self._update_waiting()
        return {"seconds": dict(self.seconds)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.seconds = dict(state["seconds"])
