"""Policies of TQC of sb3-contrib."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lockstep_sb3.common.policies import ContinuousCritic
from lockstep_sb3.sac.policies import Actor as Actor
from lockstep_sb3.sac.policies import SACPolicy


class Critic(ContinuousCritic):
    """Critics whose values are quantiles."""

    def forward(self, obs: Any, actions: Tensor) -> Tensor:
        """Return the quantiles `[N, critics, quantiles]`; arguments: see `ContinuousCritic.forward`."""
        return self.outputs_of(obs, actions).transpose(0, 1)


class TQCPolicy(SACPolicy):
    """Actor and critics of TQC, for observations that are vectors."""

    critic_class = Critic


MlpPolicy = TQCPolicy


class CnnPolicy(TQCPolicy):
    """`TQCPolicy` for images."""


class MultiInputPolicy(TQCPolicy):
    """`TQCPolicy` for observations that are dicts."""
