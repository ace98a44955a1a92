"""`Counters`: the progress of a run in numbers, and `EpochStage`: how far it is with its epoch."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Generic, Protocol, TypeVar, overload

from lockstep.tracking.statistics import CollectStats

Value = TypeVar("Value")


class EpochStage(Enum):
    """How far a run is with its epoch."""

    BETWEEN = auto()
    """No epoch has begun yet, or the last one is over."""
    RUNNING = auto()
    """An epoch has begun, and its statistics are not made yet."""
    UNREPORTED = auto()
    """An epoch is over and in the checkpoint, but callbacks have not received its `EpochEnd`."""


@dataclass(eq=False, repr=False)
class Counters:
    """Progress of a run: plain values, which a new run sets back and a checkpoint holds."""

    epoch: int = 0
    """Number of the epoch that is running, or of the last one."""
    stage: EpochStage = EpochStage.BETWEEN
    epoch_steps: int = 0
    """Steps of the running epoch. Between two epochs: the steps beyond `step_per_epoch`, or, as a negative number,
    those that an epoch lacks that was cut short."""
    env_step: int = 0
    env_episode: int = 0
    gradient_step: int = 0
    test_env_step: int = 0
    """Environment steps of all evaluations."""
    test_episode: int = 0
    """Episodes of all evaluations."""
    last_test_at: int | None = None
    """`position` at the last evaluation."""
    tested_in_train: bool = False
    """Whether `test_in_train` has evaluated in this epoch."""
    best_score: float | None = None
    best_epoch: int | None = None
    stop_reason: str | None = None
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("total", "collect", "update", "test", "env", "act"), 0.0)
    )
    steps_learned_from: int = 0
    """Off-policy: collected steps for which gradient steps are due."""
    updates_made: int = 0
    """Off-policy: gradient steps that were made for them."""
    learning_resumes_at: int = 0
    """Off-policy: environment step before which nothing is learned, because the replay buffer was lost and fills
    again."""
    samples_seen: int = 0
    """Offline: transitions in all gradient steps."""

    # -- where the run is ---

    @property
    def position(self) -> int:
        """Environment steps so far; of a run that collects nothing, gradient steps."""
        return self.env_step or self.gradient_step

    @property
    def where(self) -> tuple[int, int, int]:
        """Epoch, environment steps and gradient steps, as events have them."""
        return self.epoch, self.env_step, self.gradient_step

    @property
    def progress(self) -> tuple[int, ...]:
        """A value that changes whenever something happened that a checkpoint has to hold."""
        return (*self.where, self.test_episode, self.in_epoch)

    @property
    def in_epoch(self) -> bool:
        """Whether an epoch has begun and is not over."""
        return self.stage is EpochStage.RUNNING

    # -- what happens ---

    def begin_epoch(self) -> None:
        """Count the next epoch, unless a restored run continues within one."""
        if not self.in_epoch:
            self.epoch += 1
            self.stage = EpochStage.RUNNING

    def continue_epoch(self, step_per_epoch: int) -> None:
        """Reopen the last epoch, which was cut short, for the steps that it lacks."""
        self.stage = EpochStage.RUNNING
        self.epoch_steps += step_per_epoch

    def end_epoch(self, step_per_epoch: int) -> None:
        """Close the epoch; its surplus steps count for the next one. Its end is reported after the checkpoint."""
        self.stage = EpochStage.UNREPORTED
        self.tested_in_train = False
        self.epoch_steps -= step_per_epoch

    def count_collect(self, stats: CollectStats) -> None:
        """Count the steps, episodes and seconds of a collect."""
        self.env_step += stats.n_collected_steps
        self.epoch_steps += stats.n_collected_steps
        self.env_episode += stats.n_collected_episodes
        self.seconds["collect"] += stats.collect_time
        self.seconds["env"] += stats.env_time
        self.seconds["act"] += stats.act_time

    def count_test(self, stats: CollectStats) -> None:
        """Count the steps, episodes and seconds of an evaluation."""
        self.test_env_step += stats.n_collected_steps
        self.test_episode += stats.n_collected_episodes
        self.seconds["test"] += stats.collect_time

    # -- state ---

    def get_state(self) -> dict[str, Any]:
        """Return the values by name. The stage is two flags, as in the checkpoints of all versions."""
        state = copy.deepcopy(vars(self))
        stage = state.pop("stage")
        return {
            **state,
            "in_epoch": stage is EpochStage.RUNNING,
            "epoch_end_due": stage is EpochStage.UNREPORTED,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Counters:
        """Return the counters that `get_state` described; those that an older version did not have are 0.

        The reason for which that run ended is left out: the run that continues has not ended.
        """
        counters = cls()
        for name in (vars(counters).keys() - {"stage"}) & state.keys():
            setattr(counters, name, copy.deepcopy(state[name]))
        if state["in_epoch"]:
            counters.stage = EpochStage.RUNNING
        elif state["epoch_end_due"]:
            counters.stage = EpochStage.UNREPORTED
        counters.stop_reason = None
        return counters


class HasCounters(Protocol):
    """A trainer, as far as its counters know it."""

    counters: Counters


class Counter(Generic[Value]):
    """An attribute of a trainer that is the value of this name in `trainer.counters`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, trainer: None, owner: type) -> Counter[Value]: ...
    @overload
    def __get__(self, trainer: HasCounters, owner: type) -> Value: ...
    def __get__(self, trainer: HasCounters | None, owner: type) -> Any:
        return self if trainer is None else getattr(trainer.counters, self._name)

    def __set__(self, trainer: HasCounters, value: Value) -> None:
        setattr(trainer.counters, self._name, value)
