"""Events of a run, and callbacks that watch them. None can change the run but to ask for its end."""

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
STAGES = ("environment", "acting", "storing", "returns", "update", "evaluation", "waiting")

# -- events ---


@dataclass(frozen=True)
class Event:
    """The base of all events: where the run is."""

    method: ClassVar[str]
    """of a callback: what handles the event, `on_collect_end` for `CollectEnd`"""
    epoch: int
    env_step: int
    gradient_step: int

    def __init_subclass__(cls) -> None:
        cls.method = "on" + re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", cls.__name__)

    @property
    def position(self) -> int:
        """Environment steps; of a run that collects nothing, gradient steps."""
        return self.env_step or self.gradient_step


class TrainerView:
    """A trainer for reading: its public attributes and methods, but none that change the run.

    Lists come as tuples, dicts as read-only mappings and the counters as a copy. Setting an attribute and calling a
    method that changes the run raise `AttributeError`.
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

    def __init__(self, trainer: object) -> None:
        object.__setattr__(self, "_trainer", trainer)

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
    """The run begins or goes on; `trainer` shows it, and cannot be changed."""

    trainer: TrainerView


@dataclass(frozen=True)
class CollectEnd(Event):
    """Data was collected."""

    stats: CollectStats


@dataclass(frozen=True)
class UpdateEnd(Event):
    """The policy learned from it."""

    stats: TrainingStats


@dataclass(frozen=True)
class EvaluationEnd(Event):
    """The policy was evaluated. Epoch and steps are those of this policy; beside training they lie in the past."""

    stats: CollectStats
    score: float
    is_best: bool
    metrics: Mapping[str, float] = field(default_factory=dict)
    """of a `custom_evaluation_function`: its "score" and what else it returned"""


@dataclass(frozen=True)
class CheckpointSaved(Event):
    """A checkpoint is on disk."""

    path: Path


@dataclass(frozen=True)
class EpochEnd(Event):
    """An epoch is over."""

    stats: EpochStats


@dataclass(frozen=True)
class RunEnd(Event):
    """The run is over: `max_epoch`, `stop_fn`, `interrupted`, `error`, or a callback's own reason."""

    reason: str
    info: InfoStats


# -- callbacks ---


class Callback(EnvironmentCallback):
    """Override the events you need, of the run and of environments (`EnvironmentCallback`). A string that an event of
    the run returns asks the trainer to stop, with that reason.

    Events of the run come from the trainer's process, and what is logged into `metrics` there is reported with the
    epoch (`EpochStats.metrics`). Events of environments come from their processes: here they are events of this
    instance, in env runners those of an instance that each makes of the class in the configuration.
    """

    def on_event(self, event: Event) -> Stop:
        """Call `on_run_start`, `on_collect_end`, ... by the event's class."""
        return getattr(self, event.method)(event)

    def on_run_start(self, event: RunStart) -> Stop:
        """Handle the beginning of a run, or of the part of it that goes on."""

    def on_collect_end(self, event: CollectEnd) -> Stop:
        """Handle the end of a collect."""

    def on_update_end(self, event: UpdateEnd) -> Stop:
        """Handle the end of an update."""

    def on_evaluation_end(self, event: EvaluationEnd) -> Stop:
        """Handle the end of an evaluation."""

    def on_checkpoint_saved(self, event: CheckpointSaved) -> Stop:
        """Handle a checkpoint that is on disk."""

    def on_epoch_end(self, event: EpochEnd) -> Stop:
        """Handle the end of an epoch."""

    def on_run_end(self, event: RunEnd) -> Stop:
        """Handle the end of a run."""

    def on_evaluate_start(self) -> None:
        """Handle the beginning of an evaluation."""

    def on_evaluate_end(self, stats: CollectStats) -> None:
        """Handle the end of an evaluation, before its score is compared."""

    def on_checkpoint_loaded(self, path: Path) -> None:
        """Handle a checkpoint from which the trainer has been restored."""


def tell(callbacks: Sequence[Callback], event: str, *args: object) -> None:
    """Call a method of each callback; what one raises goes on, with a note that names it."""
    for callback in callbacks:
        try:
            getattr(callback, event)(*args)
        except Exception as error:
            error.add_note(f"in {type(callback).__name__}.{event}")
            raise


def attach_callbacks(
    callbacks: Sequence[Callback], name: str, collector: CollectorLike, classes: Sequence[type]
) -> None:
    """Have a collector call the callbacks that handle events of environments.

    Env runners make instances of their own, of the `classes` of the configuration. `ValueError` for a callback that the
    collector, which is the trainer's `name`, would not call.
    """
    handlers = [callback for callback in callbacks if overridden_events(callback)]
    if not collector.in_runners:
        collector.set_callbacks(handlers)
        return
    lost = [callback for callback in handlers if type(callback) not in classes]
    if lost:
        raise ValueError(
            f"callbacks={lost!r} handle {overridden_events(lost[0])}, and the {name} collects in env runners, which "
            "cannot be handed an object; give the class: config.callbacks(...)"
        )


def check_callbacks(callbacks: object) -> None:
    """Raise `ValueError` unless it is a list of callbacks, without methods that are named as events and are none."""
    if not isinstance(callbacks, Sequence) or not all(isinstance(each, Callback) for each in callbacks):
        hint = "; put it into one, callbacks=[...]" if isinstance(callbacks, Callback) else ""
        raise ValueError(
            f"callbacks={callbacks!r} is not allowed; it must be a list of lockstep.trainer.Callback{hint}"
        )
    for callback in callbacks:
        if words := misspelt_event(callback):
            raise ValueError(f"callbacks: {words}")


class LoggingCallback(Callback):
    """Hands statistics to a logger. Whoever made the logger closes it: a trainer, after the last checkpoint."""

    def __init__(self, logger: BaseLogger) -> None:
        self.logger = logger

    def on_collect_end(self, event: CollectEnd) -> None:
        if type(self.logger) is not LazyLogger:
            self.logger.log_train_data(event.stats.to_dict(), event.env_step)

    def on_update_end(self, event: UpdateEnd) -> None:
        if type(self.logger) is not LazyLogger:
            self.logger.log_update_data(event.stats.get_loss_stats_dict(), event.gradient_step)

    def on_evaluation_end(self, event: EvaluationEnd) -> None:
        """Log in the scope `test/`, at environment steps; gradient steps where nothing is collected."""
        self.logger.log_test_data({**event.stats.to_dict(), **event.metrics}, event.position)

    def on_epoch_end(self, event: EpochEnd) -> None:
        metrics = {"metrics": dict(event.stats.metrics)} if event.stats.metrics else {}
        self.logger.log_info_data({**event.stats.info_stat.to_dict(), **metrics}, event.epoch)


class CheckpointCallback(Callback):
    """Writes full checkpoints to `directory/step_<environment step>` (of a run that collects nothing: gradient step),
    and keeps the newest `num_to_keep`.

    After every `interval`-th epoch and at the end, whatever ended the run; the state at an error goes to
    `directory/error`, which `newest_checkpoint` leaves out. For a trainer made by hand; one that is made with a run's
    folder does so by itself. `restore_trainer(trainer, newest_checkpoint(directory))` goes on.
    """

    def __init__(self, directory: str | Path, *, interval: int = 1, num_to_keep: int = 3) -> None:
        self.interval, self.num_to_keep = check_wholes(interval=interval, num_to_keep=num_to_keep)
        self.directory = Path(directory)
        self._trainer: Any = None
        self._attempt = 0
        self._saved_at: tuple[int, int] | None = None

    def on_run_start(self, event: RunStart) -> None:
        self._trainer, self._saved_at = event.trainer, None
        self._attempt = max(event.trainer.attempt, 1 + newest_attempt(self.directory))

    def on_epoch_end(self, event: EpochEnd) -> None:
        if event.epoch % self.interval == 0:
            self._save(event)

    def on_run_end(self, event: RunEnd) -> None:
        """Save what is not saved yet of a run that began."""
        if self._trainer is None or self._saved_at == (event.epoch, event.position):
            return
        if event.reason == "error":
            self._trainer.save_to_path(self.directory / ERROR, attempt=self._attempt)
        elif self._trainer.is_whole:
            self._save(event)

    def _save(self, event: Event) -> None:
        path = self._trainer.save_to_path(self.directory / f"step_{event.position:012d}", attempt=self._attempt)
        # named in the log, so that `resume_from_log` finds it; `restore_trainer` writes the same record again
        self._trainer.logger.save_data(event.epoch, event.env_step, event.gradient_step, lambda *_: path)
        prune_checkpoints(self.directory, self.num_to_keep)
        self._saved_at = event.epoch, event.position


class EarlyStop(Callback):
    """Ends a run at a score, after evaluations without a better one, or after some seconds.

    `threshold`: score that is enough; `patience`: evaluations without a new best; `time_limit_s`: seconds of this
    process. Give at least one.
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
        self.threshold, self.time_limit_s = threshold, time_limit_s
        self.num_without_best = 0
        self._started = time.monotonic()

    def on_run_start(self, event: RunStart) -> None:
        """Start the clock of this process; a new run (one that is not resumed) counts evaluations from zero."""
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
    """Adds up the seconds of a run by stage; `print_at_end` prints a table of them when the run ends.

    `environment`: stepping; `acting`: choosing actions; `storing`: the rest of collection; `returns`: making a batch of
    what was collected (values, returns, advantages; samples of a replay buffer); `update`: gradient steps;
    `evaluation`; `waiting`: all else, as writing checkpoints, callbacks, and whoever iterates over the trainer.
    """

    def __init__(self, *, print_at_end: bool = False) -> None:
        self.print_at_end = print_at_end
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._started, self._before = time.monotonic(), 0.0

    @property
    def total(self) -> float:
        """Seconds of the run, by the wall clock."""
        return sum(self.seconds.values())

    @property
    def shares(self) -> dict[str, float]:
        """Each stage's share of the whole, which is 1; all are 0 before the run."""
        total = self.total
        return {name: seconds / total if total else 0.0 for name, seconds in self.seconds.items()}

    def on_run_start(self, event: RunStart) -> None:
        """Begin a new run at zero, and one that goes on where it was."""
        if event.env_step == event.gradient_step == 0:
            self.seconds = dict.fromkeys(STAGES, 0.0)
        self._started, self._before = time.monotonic(), self.total

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
        self._wait()
        if self.print_at_end:
            for name, share in self.shares.items():
                sys.stdout.write(f"{name:<12}{self.seconds[name]:>10.3f} s{share:>8.1%}\n")
            sys.stdout.write(f"{'together':<12}{self.total:>10.3f} s\n")

    def _add(self, stage: str, seconds: float) -> None:
        self.seconds[stage] += max(0.0, seconds)
        self._wait()

    def _wait(self) -> None:
        """Count what is left of the time on the wall clock as waiting."""
        known = self.total - self.seconds["waiting"]
        self.seconds["waiting"] = max(0.0, self._before + time.monotonic() - self._started - known)

    def get_state(self) -> Mapping[str, Any]:
        self._wait()
        return {"seconds": dict(self.seconds)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.seconds = dict(state["seconds"])
