"""`TrainerLike`: protocol of trainers, for folders that must not import them."""

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
    """Trainer that `config.build_trainer()` returns: an `OnpolicyTrainer`, `OffpolicyTrainer` or `OfflineTrainer`.

    `BaseTrainer` documents the attributes and methods.
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
        """Collector of training data; None in offline training."""
        ...

    @property
    def test_collector(self) -> CollectorLike | None:
        """Collector of evaluation; None without evaluation."""
        ...

    @property
    def buffer(self) -> Any:
        """Rollout store, replay buffer or offline data that the policy learns from."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether the run has all of its epochs or steps."""
        ...

    def run(self, reset_collectors: bool = True, reset_buffer: bool = False) -> InfoStats:
        """Train until the end of the run."""
        ...

    def __iter__(self) -> Self: ...

    def __next__(self) -> EpochStats:
        """Train for one epoch."""
        ...

    def reset(self, reset_collectors: bool = True, reset_buffer: bool = False) -> None:
        """Start a new run."""
        ...

    def close(self) -> None:
        """End the processes and close the environments of the run."""
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
        """Set the modules that learn."""
        ...

    def set_policy_mapping_fn(self, policy_mapping_fn: PolicyMapping) -> None:
        """Set the function that maps agents to modules."""
        ...

    def get_state(self) -> dict[str, Any]:
        """Return the state of the run."""
        ...

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `get_state` returned."""
        ...

    def save_to_path(self, path: str | Path) -> Path:
        """Write a checkpoint."""
        ...

    def restore_from_path(self, path: str | Path | None) -> None:
        """Restore the state of a checkpoint."""
        ...
