"""`Counters`: the progress of a run in numbers, and `EpochStage`: its progress within an epoch."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Generic, Protocol, TypeVar, overload

from lockstep.tracking.statistics import CollectStats

Value = TypeVar("Value")
StepCounts = tuple[int, int, int]
"""Epoch, environment steps and gradient steps."""


class EpochStage(Enum):
    """Progress of a run within an epoch."""

    BETWEEN = auto()
    """No epoch has begun yet, or the last one has ended and was reported."""
    RUNNING = auto()
    """An epoch has begun, and its statistics do not exist yet."""
    UNREPORTED = auto()
    """An epoch has ended and is in the checkpoint, but callbacks have not received its `EpochEnd`.

    The event comes after the checkpoint, so a run that is killed in between must emit it when it is resumed."""


@dataclass(eq=False, repr=False)
class Counters:
    """Progress of a run as plain values. A new run sets them to their defaults, and a checkpoint contains them."""

    # Checkpoints store these values under the names of the fields: a renamed field cannot be read from older ones.
    epoch: int = 0
    """Number of the running epoch or, between two epochs, of the last one. 0 before the first."""
    stage: EpochStage = EpochStage.BETWEEN
    """Progress within the epoch."""
    epoch_steps: int = 0
    """Number of steps in the running epoch. Between two epochs: the surplus over `step_per_epoch`, which counts for the
    next epoch; negative if the last epoch was cut short."""
    env_step: int = 0
    """Number of environment steps for training."""
    env_episode: int = 0
    """Number of finished training episodes."""
    gradient_step: int = 0
    """Number of gradient steps."""
    test_env_step: int = 0
    """Number of environment steps in all evaluations."""
    test_episode: int = 0
    """Number of episodes in all evaluations."""
    last_test_at: int | None = None
    """`position` at the last evaluation."""
    tested_in_train: bool = False
    """Whether `test_in_train` has evaluated in this epoch."""
    best_score: float | None = None
    """Highest score of an evaluation."""
    best_epoch: int | None = None
    """Epoch of the evaluation with the highest score."""
    stop_reason: str | None = None
    """Reason to stop the run. None while it should continue."""
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("total", "collect", "update", "test", "env", "act"), 0.0)
    )
    """Seconds of the run by activity. `env` and `act` are parts of `collect`."""
    steps_learned_from: int = 0
    """Off-policy: number of steps of the whole run that count for gradient steps. Steps with random actions, and steps
    that fill a lost replay buffer again, do not."""
    updates_made: int = 0
    """Off-policy: number of gradient steps of the whole run that were made for `steps_learned_from`."""
    learning_resumes_at: int = 0
    """Off-policy: environment step before which nothing is learned, because the replay buffer was lost and has to fill
    again."""
    samples_seen: int = 0
    """Offline: number of transitions in all gradient steps."""

    # -- position of the run ---

    @property
    def position(self) -> int:
        """Number of environment steps; in a run that collects nothing, number of gradient steps."""
        return self.env_step or self.gradient_step

    @property
    def step_counts(self) -> StepCounts:
        """Epoch, environment steps and gradient steps: the first three fields of every event."""
        return self.epoch, self.env_step, self.gradient_step

    @property
    def progress(self) -> tuple[int, ...]:
        """Value that changes whenever the run has advanced, so that a new checkpoint would differ from the last one."""
        return (*self.step_counts, self.test_episode, self.in_epoch)

    @property
    def in_epoch(self) -> bool:
        """Whether an epoch has begun and has not ended."""
        return self.stage is EpochStage.RUNNING

    # -- changes ---

    def begin_epoch(self) -> None:
        """Begin the next epoch, unless the run was restored in the middle of one."""
        if not self.in_epoch:
            self.epoch += 1
            self.stage = EpochStage.RUNNING

    def continue_epoch(self, step_per_epoch: int) -> None:
        """Reopen the last epoch, which was cut short, for its missing steps."""
        self.stage = EpochStage.RUNNING
        # `end_epoch` has subtracted the whole length, which left a negative number.
        self.epoch_steps += step_per_epoch

    def end_epoch(self, step_per_epoch: int) -> None:
        """End the epoch. Its surplus steps count for the next one; callbacks are notified after the checkpoint."""
        self.stage = EpochStage.UNREPORTED
        self.tested_in_train = False
        self.epoch_steps -= step_per_epoch

    def count_collect(self, stats: CollectStats) -> None:
        """Add the steps, episodes and seconds of a collect."""
        self.env_step += stats.n_collected_steps
        self.epoch_steps += stats.n_collected_steps
        self.env_episode += stats.n_collected_episodes
        self.seconds["collect"] += stats.collect_time
        self.seconds["env"] += stats.env_time
        self.seconds["act"] += stats.act_time

    def count_test(self, stats: CollectStats) -> None:
        """Add the steps, episodes and seconds of an evaluation."""
        self.test_env_step += stats.n_collected_steps
        self.test_episode += stats.n_collected_episodes
        self.seconds["test"] += stats.collect_time

    # -- state ---

    def get_state(self) -> dict[str, Any]:
        """Return the values by name."""
        state = copy.deepcopy(vars(self))
        # Checkpoints of all versions store the stage as two flags.
        stage = state.pop("stage")
        return {
            **state,
            "in_epoch": stage is EpochStage.RUNNING,
            "epoch_end_due": stage is EpochStage.UNREPORTED,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Counters:
        """Return the counters of a saved state. Values that an older version did not save keep their defaults."""
        counters = cls()
        for name in (vars(counters).keys() - {"stage"}) & state.keys():
            setattr(counters, name, copy.deepcopy(state[name]))
        if state["in_epoch"]:
            counters.stage = EpochStage.RUNNING
        elif state["epoch_end_due"]:
            counters.stage = EpochStage.UNREPORTED
        counters.stop_reason = None  # the run that continues has not ended
        return counters


class HasCounters(Protocol):
    """Protocol of a trainer with counters."""

    counters: Counters


class Counter(Generic[Value]):
    """Attribute of a trainer that reads and sets the value with the same name in `trainer.counters`."""

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
