"""All transforms around one network, used alike when acting and when learning."""

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
    """Holds the pipeline of observations, the scaling of rewards, and what brings actions to the environment.

    Their statistics are frozen while a rollout is collected and learned from; `update` moves them once after the
    gradient steps, so that the policy that acted and the one that is compared with it see the same numbers.
    """

    obs: ObsPipeline = field(default_factory=lambda: ObsPipeline())
    rewards: NormalizeRewards | None = None
    actions: Any = None
    """connector from module actions to environment actions; `None`: as they are"""
    join: Callable[[RunningMoments], RunningMoments] | None = None
    """with several learners: from the moments of what this one has seen to those of what all have seen"""
    gather: Callable[[Any], list[Any]] | None = None
    """with several learners: returns what each of them hands in"""

    @property
    def acting_names(self) -> tuple[str, ...]:
        """The names of the connectors that acting needs: all but the rewards'."""
        acting = [*self.obs.connectors, *([] if self.actions is None else [self.actions])]
        return tuple(type(connector).__name__ for connector in acting)

    def learning_rewards(self, trajectories: Trajectories) -> np.ndarray:
        """Take rewards into the statistics, and return them `[T, B]` as the estimator reads them."""
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
        """Take the raw rows `[N, ...]`, or those in `rows`, into the statistics of observations."""
        self.obs.update(flat_obs, rows, self.join)

    def get_state(self) -> dict[str, Any]:
        """Return the statistics."""
        return {"obs": self.obs.get_state(), "rewards": None if self.rewards is None else self.rewards.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `get_state` gave."""
        self.obs.set_state(state["obs"])
        if self.rewards is not None:
            self.rewards.set_state(state["rewards"])
