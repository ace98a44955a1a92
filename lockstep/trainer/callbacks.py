"""Callbacks: each watches the events of a run and does one thing. None can change the run but to ask for its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from lockstep.state.checks import check_number, check_whole, check_wholes
from lockstep.tracking import BaseLogger, LazyLogger, prune_checkpoints
from lockstep.trainer.checkpoints import save_trainer
from lockstep.trainer.events import (
    CheckpointSaved,
    CollectEnd,
    EpochEnd,
    EvaluationEnd,
    Event,
    RunEnd,
    RunStart,
    UpdateEnd,
)

Stop = str | None


class Callback:
    """Override the events you need. A returned string asks the trainer to stop, with that reason."""

    def on_event(self, event: Event) -> Stop:
        """Dispatches to `on_run_start`, `on_collect_end`, ... by the event's class."""
        handlers: dict[type, Callable[[Any], Stop]] = {
            RunStart: self.on_run_start,
            CollectEnd: self.on_collect_end,
            UpdateEnd: self.on_update_end,
            EvaluationEnd: self.on_evaluation_end,
            CheckpointSaved: self.on_checkpoint_saved,
            EpochEnd: self.on_epoch_end,
            RunEnd: self.on_run_end,
        }
        handler = handlers.get(type(event))
        return None if handler is None else handler(event)

    def on_run_start(self, event: RunStart) -> Stop:
        """The run begins or goes on."""
        return None

    def on_collect_end(self, event: CollectEnd) -> Stop:
        """Data was collected."""
        return None

    def on_update_end(self, event: UpdateEnd) -> Stop:
        """The policy learned from it."""
        return None

    def on_evaluation_end(self, event: EvaluationEnd) -> Stop:
        """The policy was evaluated."""
        return None

    def on_checkpoint_saved(self, event: CheckpointSaved) -> Stop:
        """A checkpoint is on disk."""
        return None

    def on_epoch_end(self, event: EpochEnd) -> Stop:
        """An epoch is over."""
        return None

    def on_run_end(self, event: RunEnd) -> Stop:
        """The run is over."""
        return None

    def get_state(self) -> Mapping[str, Any]:
        """What must survive a resume."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned."""


class LoggingCallback(Callback):
    """Hands statistics to a logger, which its owner closes: a trainer its own, after the last checkpoint."""

    def __init__(self, logger: BaseLogger) -> None:
        self.logger = logger

    def on_collect_end(self, event: CollectEnd) -> Stop:
        """Scope `train/`."""
        if type(self.logger) is not LazyLogger:
            self.logger.log_train_data(event.stats.to_dict(), event.env_step)
        return None

    def on_update_end(self, event: UpdateEnd) -> Stop:
        """Scope `update/`."""
        if type(self.logger) is not LazyLogger:
            self.logger.log_update_data(event.stats.get_loss_stats_dict(), event.gradient_step)
        return None

    def on_evaluation_end(self, event: EvaluationEnd) -> Stop:
        """Scope `test/`, at environment steps; gradient steps where nothing is collected."""
        self.logger.log_test_data(event.stats.to_dict(), event.position)
        return None

    def on_epoch_end(self, event: EpochEnd) -> Stop:
        """Scope `info/`."""
        self.logger.log_info_data(event.stats.info_stat.to_dict(), event.epoch)
        return None


class CheckpointCallback(Callback):
    """Writes full checkpoints to `directory/step_<environment step>` (of a run that collects nothing: gradient step),
    and keeps the newest `num_to_keep`.

    After every `interval`-th epoch and at the end, whatever ended the run. For a trainer made by hand; one that is made
    with a run's folder does so by itself. `restore_trainer(trainer, newest_checkpoint(directory))` goes on.
    """

    def __init__(self, directory: str | Path, *, interval: int = 1, num_to_keep: int = 3) -> None:
        self.interval, self.num_to_keep = check_wholes(interval=interval, num_to_keep=num_to_keep)
        self.directory = Path(directory)
        self._trainer: Any = None
        self._saved_at: tuple[int, int] | None = None

    def on_run_start(self, event: RunStart) -> Stop:
        """Whose checkpoints."""
        self._trainer, self._saved_at = event.trainer, None
        return None

    def on_epoch_end(self, event: EpochEnd) -> Stop:
        """Saves, where it is time."""
        if event.epoch % self.interval == 0:
            self._save(event)
        return None

    def on_run_end(self, event: RunEnd) -> Stop:
        """Saves what is not saved yet of a run that began."""
        if self._trainer is not None and self._saved_at != (event.epoch, event.position):
            self._save(event)
        return None

    def _save(self, event: Event) -> None:
        path = save_trainer(self._trainer, self.directory / f"step_{event.position:012d}")
        # named in the log, so that `resume_from_log` finds it; `restore_trainer` writes the same record again
        self._trainer.logger.save_data(event.epoch, event.env_step, event.gradient_step, lambda *_: path)
        prune_checkpoints(self.directory, self.num_to_keep)
        self._saved_at = event.epoch, event.position


def savers_last(callbacks: Iterable[Callback]) -> list[Callback]:
    """In the order given, but those that save what the others know come after them."""
    return sorted(callbacks, key=lambda callback: isinstance(callback, CheckpointCallback))


def have_saver(callbacks: Iterable[Callback]) -> bool:
    """Does one of them write checkpoints, and their records?"""
    return any(isinstance(callback, CheckpointCallback) for callback in callbacks)


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
        check_number("threshold", threshold)
        check_number("time_limit_s", time_limit_s, above=0.0)
        self.patience: int | None = check_whole("patience", patience, 1, optional=True)
        self.threshold, self.time_limit_s = threshold, time_limit_s
        self.num_without_best = 0
        self._started = time.monotonic()

    def on_run_start(self, event: RunStart) -> Stop:
        """The clock of this process starts; a new run (one that is not resumed) counts from zero."""
        self._started = time.monotonic()
        if event.epoch == event.env_step == 0:
            self.num_without_best = 0
        return None

    def on_evaluation_end(self, event: EvaluationEnd) -> Stop:
        """Threshold and patience."""
        self.num_without_best = 0 if event.is_best else self.num_without_best + 1
        if self.threshold is not None and event.score >= self.threshold:
            return f"score {event.score:.4g} reached the threshold {self.threshold:g}"
        if self.patience is not None and self.num_without_best >= self.patience:
            return f"no better score in {self.patience} evaluations"
        return None

    def on_update_end(self, event: UpdateEnd) -> Stop:
        """Time limit."""
        if self.time_limit_s is not None and time.monotonic() - self._started > self.time_limit_s:
            return f"time limit of {self.time_limit_s:g} s"
        return None

    def get_state(self) -> Mapping[str, Any]:
        """Evaluations since the best one."""
        return {"num_without_best": self.num_without_best}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores the count."""
        self.num_without_best = int(state["num_without_best"])
