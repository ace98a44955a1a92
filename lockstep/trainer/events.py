"""Events of a run. Frozen: a callback observes, and may ask to stop."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from lockstep.tracking.statistics import CollectStats, EpochStats, InfoStats, TrainingStats


@dataclass(frozen=True)
class Event:
    """The base of all events: where the run is."""

    epoch: int
    env_step: int
    gradient_step: int

    @property
    def position(self) -> int:
        """Environment steps; of a run that collects nothing, gradient steps."""
        return self.env_step or self.gradient_step


class TrainerView:
    """A trainer for reading: its public attributes and methods, but none that change the run.

    Lists come as tuples and dicts as read-only mappings. Setting an attribute and calling a method that changes the run
    raise `AttributeError`.
    """

    CHANGES = frozenset(
        (
            *("run", "reset", "close", "training_step", "policy_update_fn", "test_step", "set_seed"),
            *("set_state", "set_own_folders", "restore_from_path"),
        )
    )

    def __init__(self, trainer: Any) -> None:
        object.__setattr__(self, "_trainer", trainer)

    def __getattr__(self, name: str) -> Any:
        if name in self.CHANGES:
            _refuse(f"call trainer.{name}()")
        if name.startswith("_"):
            raise AttributeError(f"a trainer seen by a callback has no attribute {name!r}")
        value = getattr(object.__getattribute__(self, "_trainer"), name)
        if isinstance(value, list):
            return tuple(value)
        return MappingProxyType(value) if isinstance(value, dict) else value

    def __setattr__(self, name: str, value: Any) -> None:
        _refuse(f"set trainer.{name}")

    def __delattr__(self, name: str) -> None:
        _refuse(f"delete trainer.{name}")

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._trainer) if name not in self.CHANGES and not name.startswith("_")]


def _refuse(action: str) -> NoReturn:
    raise AttributeError(
        f"a callback observes the run and cannot {action}. To end the run, return the reason as text from an event's "
        "method; to change what it does, give the trainer train_fn or test_fn, or override training_step, "
        "policy_update_fn or test_step in a subclass"
    )


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
