"""What a trainer tells its callbacks. Frozen: a callback observes, and may ask to stop."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.tracking.statistics import CollectStats, EpochStats, InfoStats, TrainingStats


@dataclass(frozen=True)
class Event:
    """Where the run is."""

    epoch: int
    env_step: int
    gradient_step: int

    @property
    def position(self) -> int:
        """Environment steps; of a run that collects nothing, gradient steps."""
        return self.env_step or self.gradient_step


@dataclass(frozen=True)
class RunStart(Event):
    """The run begins or goes on; `trainer` is for reading."""

    trainer: Any


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
    """The policy was evaluated."""

    stats: CollectStats
    score: float
    is_best: bool


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
