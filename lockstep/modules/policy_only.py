"""The default network of algorithms that imitate: a policy without a value function."""

from __future__ import annotations

from torch import Tensor

from lockstep.modules.actor_critic import DefaultActorCriticModule
from lockstep.modules.rl_module import Batch


class DefaultPolicyModule(DefaultActorCriticModule):
    """The policy of `DefaultActorCriticModule`, with the same initial weights, and nothing else."""

    def setup(self) -> None:
        self.inference_only = True
        super().setup()

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        """`"action_dist_inputs"` `[N, D]`."""
        return self._forward(batch)
