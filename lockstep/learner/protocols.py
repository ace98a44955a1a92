"""Protocols: the members of a learner that its own parts use."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from torch import Tensor

from lockstep.connectors import ModuleConnectors
from lockstep.learner.config import FrameworkSection, TrainingSection
from lockstep.learner.inputs import WhoLearns
from lockstep.learner.optimizers import OptimizerSet
from lockstep.modules import MultiRLModule
from lockstep.options.schedules import Schedule
from lockstep.state.streams import RandomStreams
from lockstep.tracking.metrics import Metrics


class StatefulLearner(Protocol):
    """What is saved and restored of a learner, and the two methods through which it is."""

    framework: FrameworkSection
    policies_to_train: WhoLearns
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
