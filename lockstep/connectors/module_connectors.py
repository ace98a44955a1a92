"""`ModuleConnectors`: all transforms around one network, used alike when acting and when learning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lockstep.connectors.observations import ObsPipeline
from lockstep.connectors.rewards import NormalizeRewards
from lockstep.data.trajectories import Trajectories
from lockstep.ops.statistics import RunningMoments

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
    join: Callable[[RunningMoments], RunningMoments] | None = None
    """with several learners: the moments of what all of them have seen, of those that this one has seen"""
    gather: Callable[[Any], list[Any]] | None = None
    """with several learners: what each of them hands in"""

    @property
    def acting_names(self) -> tuple[str, ...]:
        """The names of the connectors that acting needs: all but the rewards'."""
        acting = [*self.obs.connectors, *([] if self.actions is None else [self.actions])]
        return tuple(type(connector).__name__ for connector in acting)

    def learning_rewards(self, trajectories: Trajectories) -> np.ndarray:
        """Rewards `[T, B]` as the estimator reads them; takes them into the statistics first."""
        if self.rewards is None:
            return trajectories.rewards
        seen = self.rewards.moments_of(
            trajectories.rewards, trajectories.dones, trajectories.valid, trajectories.owned, trajectories.place
        )
        if self.gather is not None:
            self.rewards.share_returns(self.gather)
        self.rewards.moments.merge(seen if self.join is None else self.join(seen))
        return self.rewards.scale(trajectories.rewards)

    def update(self, flat_obs: Tree, rows: np.ndarray | None) -> None:
        """Moves the observation statistics over the raw rows `[N, ...]` (those in `rows`)."""
        self.obs.update(flat_obs, rows, self.join)

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
