"""`ModuleConnectors`: all transforms around one network, used alike when acting and when learning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lockstep.connectors.observations import ObsPipeline
from lockstep.connectors.rewards import NormalizeRewards
from lockstep.data.trajectories import Trajectories

Tree = Any


@dataclass
class ModuleConnectors:
    """Observation pipeline, reward scaling and the map from the module's actions to the environment's.

    Their statistics are frozen while a rollout is collected and learned from; `update` moves them once after the
    gradient steps, so that the policy that acted and the one that is compared with it see the same numbers.
    """

    obs: ObsPipeline = field(default_factory=lambda: ObsPipeline())
    rewards: NormalizeRewards | None = None
    actions: Any = None
    """connector from module actions to environment actions; `None`: as they are"""

    def learning_rewards(self, trajectories: Trajectories) -> np.ndarray:
        """Rewards `[T, B]` as the estimator reads them; takes them into the statistics first."""
        if self.rewards is None:
            return trajectories.rewards
        return self.rewards(trajectories.rewards, trajectories.dones, trajectories.valid)

    def update(self, flat_obs: Tree, rows: np.ndarray | None) -> None:
        """Moves the observation statistics over the raw rows `[N, ...]` (those in `rows`)."""
        self.obs.update(flat_obs, rows)

    def get_state(self) -> dict[str, Any]:
        """State of the statistics."""
        return {
            "obs": self.obs.get_state(),
            "rewards": None if self.rewards is None else self.rewards.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned."""
        self.obs.set_state(state["obs"])
        if self.rewards is not None:
            self.rewards.set_state(state["rewards"])
