"""`TrainerLike`: what every trainer has, for the floors below the trainers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from lockstep.learner.config import PoliciesToTrain, PolicyMapping
from lockstep.modules import RLModule, RLModuleSpec
from lockstep.policy.policy import Policy
from lockstep.rollout import CollectorLike
from lockstep.tracking.statistics import CollectStats, EpochStats, InfoStats


class TrainerLike(Protocol):
    """A trainer, as `config.build_trainer()` returns it: an `OnpolicyTrainer`, `OffpolicyTrainer` or `OfflineTrainer`.

    See `BaseTrainer` for what the names mean.
    """

    total_steps: int | None
    max_epoch: int
    epoch: int
    env_step: int
    gradient_step: int
    history: list[EpochStats]
    best_stats: CollectStats | None
    callbacks: list[Any]
    logger: Any
    metrics: Any
    stop_reason: Any

    @property
    def policy(self) -> Policy:
        """The policy that is trained."""
        ...

    @property
    def train_collector(self) -> CollectorLike | None:
        """Collects what is learned from; None for offline training."""
        ...

    @property
    def test_collector(self) -> CollectorLike | None:
        """Collects for evaluation; None without evaluation."""
        ...

    @property
    def buffer(self) -> Any:
        """The rollout store, replay buffer or data that is learned from."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether all epochs or steps were made."""
        ...

    def run(self, reset_collectors: bool = True, reset_buffer: bool = False) -> InfoStats:
        """Run to the end."""
        ...

    def __iter__(self) -> Self: ...

    def __next__(self) -> EpochStats:
        """Run one epoch."""
        ...

    def reset(self, reset_collectors: bool = True, reset_buffer: bool = False) -> None:
        """Start a new run."""
        ...

    def close(self) -> None:
        """End the processes and the environments that were made for the run."""
        ...

    def info(self, with_history: bool = True) -> InfoStats:
        """Return the statistics of the run so far."""
        ...

    def add_module(
        self,
        module_id: str,
        module_spec: RLModuleSpec | RLModule | Mapping[str, Any] | None = None,
        config_overrides: Mapping[str, Any] | None = None,
        init_from: str | Path | None = None,
        *,
        frozen: bool = False,
    ) -> None:
        """Add a module to the run."""
        ...

    def remove_module(self, module_id: str) -> None:
        """Remove a module from the run."""
        ...

    def set_policies_to_train(self, policies_to_train: PoliciesToTrain) -> None:
        """Choose which modules learn."""
        ...

    def set_policy_mapping_fn(self, policy_mapping_fn: PolicyMapping) -> None:
        """Choose which module acts for which agent."""
        ...

    def get_state(self) -> dict[str, Any]:
        """Return the state of the run."""
        ...

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `get_state`."""
        ...

    def save_to_path(self, path: str | Path) -> Path:
        """Write a checkpoint."""
        ...

    def restore_from_path(self, path: str | Path | None) -> None:
        """Continue from a checkpoint."""
        ...
