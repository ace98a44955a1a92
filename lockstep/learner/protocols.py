"""Protocols that stand for `Learner` in the modules that `learner.py` imports.

Those modules get a learner as an argument, but cannot import its class: the import would be circular.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
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
    """Learner whose state is saved and restored: its state, and the two methods that read and write it."""

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
        """Common training section of all modules."""

    @property
    def module_configs(self) -> Mapping[str, TrainingSection]:
        """Training sections of the modules that have their own, by module id."""

    @property
    def module(self) -> MultiRLModule:
        """All networks by module id."""

    def get_state(
        self,
        components: Collection[str] | str | None = None,
        *,
        not_components: Collection[str] | str | None = None,
        inference_only: bool = False,
    ) -> dict[str, Any]:
        """Return the whole state, or only some components of it."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the components in `state`, all or none."""


class CompiledSteps(Protocol):
    """Compiled gradient steps of a learner."""

    def run(self, columns: Mapping[str, TensorColumns], indices: Mapping[str, Tensor | None]) -> bool:
        """Take one gradient step on the rows `indices` of the columns; return False if it must be taken eagerly."""


class SteppedLearner(StatefulLearner, Protocol):
    """Learner whose gradient steps are compiled or captured in a CUDA graph.

    These are the hooks and the state that compiling and capturing use.
    """

    device: torch.device
    dtype: torch.dtype
    reducer: Reducer
    gradient_watch: GradientWatch
    seconds: dict[str, float]
    row_errors: dict[str, Tensor]
    row_values: dict[str, Tensor]
    overridden_methods: frozenset[str]

    @property
    def compiled(self) -> CompiledSteps | None:
        """Compiled gradient steps; None if steps are eager."""

    def config_of(self, module_id: str) -> TrainingSection:
        """Return the training section of a module."""

    def learning_modules(self) -> list[str]:
        """Return the ids of the modules that are not frozen."""

    def modules_with_memory(self) -> dict[str, bool]:
        """Return whether each module has memory, by module id."""

    def novelty_of(self, module_id: str) -> IntrinsicReward | None:
        """Return the intrinsic reward of a module; None without one."""

    def noise_columns(self, module_id: str) -> dict[str, int]:
        """Return the columns of standard normal numbers that the loss draws actions with: their widths by name."""

    def pattern(self, num_steps: int) -> Hashable:
        """Return a key of the coming `num_steps` gradient steps: equal keys mean equal operations, step by step."""

    def compiled_variant(self) -> Hashable:
        """Return a key of everything besides shapes that the operations of the present gradient step depend on."""

    # -- methods of an update, in the order of their calls ---

    def before_gradient_based_update(self, *, timesteps: Mapping[str, int] | None = None) -> None:
        """Set schedules to their values at the present time."""

    def follow_replaced_parameters(self) -> None:
        """Adapt optimizers, targets and compiled code to parameters that were replaced since the last update."""

    def prepare_batch(self, trajectories: Trajectories, *, module_id: str) -> TensorColumns:
        """Return the train batch of a module, `{column: [N, ...]}`."""

    def in_step(self, rows: int, stand_ins: frozenset[str] | None = None) -> AbstractContextManager[StepContext]:
        """Return a context in which the present gradient step has `rows` rows."""

    def _update(self, batch: dict[str, TensorColumns]) -> tuple[dict[str, dict[str, Any]], dict[str, Tensor]]:
        """Take one eager gradient step; return outputs and losses by module id."""

    def forward_and_losses(
        self, batch: dict[str, TensorColumns]
    ) -> tuple[dict[str, dict[str, Any]], dict[str, Tensor]]:
        """Return the outputs of the networks, and the losses, both by module id."""

    def has_loss(self, entry: RegisteredOptimizer, losses: Collection[str]) -> bool:
        """Return whether an optimizer is stepped in a gradient step with losses of these modules."""

    def postprocess_gradients(self, gradients: dict[nn.Parameter, Tensor]) -> dict[nn.Parameter, Tensor]:
        """Return the gradients after clipping."""

    def constrain_weights(self, stepped: Sequence[RegisteredOptimizer]) -> None:
        """Change weights in place so that they satisfy a constraint."""

    def after_gradient_step(self) -> None:
        """Update target networks."""

    def should_stop_passes(self) -> bool | Tensor:
        """Return whether the update ends with the present pass."""

    def note_sampler(self, module_id: str, versions: np.ndarray | Tensor) -> None:
        """Record the age of the weights that acted (the "sampler"). `versions` `[N]` are their versions in each row."""

    def end_update(
        self,
        timesteps: Mapping[str, int],
        agreement: Agreement,
        trajectories: Mapping[str, Trajectories],
        first_values: FirstValues,
    ) -> None:
        """End an update after its gradient steps: hooks and statistics."""

    def summarize(self, trained: Mapping[str, int], counts: dict[str, int], seconds: float) -> Results:
        """Return the results of the update by module id."""

    def count(self, name: str, amount: int) -> int:
        """Add `amount` to a lifetime counter, and return the counter."""

    def to_tensor(self, value: np.ndarray | Tensor) -> Tensor:
        """Return an array as a tensor on the learner's device, with floats in its dtype."""
