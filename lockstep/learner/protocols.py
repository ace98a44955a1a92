"""Protocols: the members of a learner that its own parts use."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from lockstep.connectors import ModuleConnectors
from lockstep.data.trajectories import Trajectories
from lockstep.learner.config import FrameworkSection, TrainingSection
from lockstep.learner.inputs import TrainedModules
from lockstep.learner.many.reduction import Reducer
from lockstep.learner.many.sharding import Agreement
from lockstep.learner.metrics import FirstValues, Results
from lockstep.learner.minibatches import TensorColumns
from lockstep.learner.novelty import IntrinsicReward
from lockstep.learner.optimizers import OptimizerSet, RegisteredOptimizer
from lockstep.learner.step import StepContext
from lockstep.learner.watch import GradientWatch
from lockstep.modules import MultiRLModule
from lockstep.options.schedules import Schedule
from lockstep.state.streams import RandomStreams
from lockstep.tracking.metrics import Metrics


class StatefulLearner(Protocol):
    """What is saved and restored of a learner, and the two methods through which it is."""

    framework: FrameworkSection
    policies_to_train: TrainedModules
    optimizers: OptimizerSet
    connectors: dict[str, ModuleConnectors]
    coefficients: dict[tuple[str, str], tuple[Schedule, Tensor]]
    registered: dict[str, Any]
    lifetime: dict[str, int]
    weights_seq_no: int
    metrics: Metrics
    streams: RandomStreams

    @property
    def config(self) -> TrainingSection:
        """Training options."""

    @property
    def module_configs(self) -> Mapping[str, TrainingSection]:
        """Training options by the id of a module that has its own."""

    @property
    def module(self) -> MultiRLModule:
        """All networks, by module id."""

    def get_state(
        self,
        components: Collection[str] | str | None = None,
        *,
        not_components: Collection[str] | str | None = None,
        inference_only: bool = False,
    ) -> dict[str, Any]:
        """Return everything mutable, or only the named components."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the components in `state`."""


class CompiledSteps(Protocol):
    """Gradient steps of a learner as compiled code."""

    def run(self, columns: Mapping[str, TensorColumns], indices: Mapping[str, Tensor | None]) -> bool:
        """Take one gradient step; return False where it must be taken eagerly instead."""


class SteppedLearner(StatefulLearner, Protocol):
    """Learner whose gradient steps are compiled, or recorded in a CUDA graph: the hooks and state that this needs."""

    device: torch.device
    dtype: torch.dtype
    reducer: Reducer
    gradient_watch: GradientWatch
    seconds: dict[str, float]
    row_errors: dict[str, Tensor]
    row_values: dict[str, Tensor]

    @property
    def compiled(self) -> CompiledSteps | None:
        """Compiled gradient steps; None where they are taken eagerly."""

    def config_of(self, module_id: str) -> TrainingSection:
        """Return the training options of one module."""

    def learning_modules(self) -> list[str]:
        """Return the ids of the modules that learn."""

    def modules_with_memory(self) -> dict[str, bool]:
        """Return whether each module has memory, by module id."""

    def novelty_of(self, module_id: str) -> IntrinsicReward | None:
        """Return the intrinsic reward of a module; None without one."""

    def noise_columns(self, module_id: str) -> dict[str, int]:
        """Return the width of each column of random numbers that the loss reads."""

    def pattern(self, num_steps: int) -> Hashable:
        """Return which of the coming gradient steps differ from the others."""

    def compiled_variant(self) -> Hashable:
        """Return what the operations of the present gradient step depend on besides shapes."""

    # -- an update, in this order ---

    def before_gradient_based_update(self, *, timesteps: Mapping[str, int] | None = None) -> None:
        """Move schedules to the given time."""

    def follow_replaced_parameters(self) -> None:
        """Adapt optimizers, targets and compiled code to parameters that were replaced."""

    def prepare_batch(self, trajectories: Trajectories, *, module_id: str) -> TensorColumns:
        """Return the train batch of a rollout."""

    def in_step(self, rows: int, stand_ins: frozenset[str] | None = None) -> AbstractContextManager[StepContext]:
        """Return the context of a gradient step on `rows` rows."""

    def _update(self, batch: dict[str, TensorColumns]) -> tuple[dict[str, dict[str, Any]], dict[str, Tensor]]:
        """Take one gradient step eagerly; return outputs and losses."""

    def forward_and_losses(
        self, batch: dict[str, TensorColumns]
    ) -> tuple[dict[str, dict[str, Any]], dict[str, Tensor]]:
        """Return outputs and losses by module id."""

    def has_loss(self, entry: RegisteredOptimizer, losses: Collection[str]) -> bool:
        """Return whether an optimizer is stepped on the losses of these modules."""

    def postprocess_gradients(self, gradients: dict[nn.Parameter, Tensor]) -> dict[nn.Parameter, Tensor]:
        """Clip gradients."""

    def after_gradient_step(self) -> None:
        """Let target networks follow."""

    def should_stop_passes(self) -> bool | Tensor:
        """Return whether to end the update after this pass."""

    def note_sampler(self, module_id: str, versions: np.ndarray | Tensor) -> None:
        """Record which weights the rows were collected with."""

    def end_update(
        self,
        timesteps: Mapping[str, int],
        agreed: Agreement,
        trajectories: Mapping[str, Trajectories],
        first_values: FirstValues,
    ) -> None:
        """Run the hooks that follow the last gradient step."""

    def summarize(self, trained: Mapping[str, int], counts: dict[str, int], seconds: float) -> Results:
        """Return the numbers of the update by module id."""

    def count(self, name: str, amount: int) -> int:
        """Add to a lifetime counter and return it."""

    def to_tensor(self, value: np.ndarray | Tensor) -> Tensor:
        """Return an array on the learner's device, in its dtype."""
