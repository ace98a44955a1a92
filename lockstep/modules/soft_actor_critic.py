"""The default network of SAC: a stochastic policy, and critics of actions."""

from __future__ import annotations

from dataclasses import replace

import torch
from gymnasium import spaces
from torch import Tensor

from lockstep.modules.action_critics import ActionCritics
from lockstep.modules.actor_critic import NO_VALUES, DefaultActorCriticModule
from lockstep.modules.model_config import ModelConfig
from lockstep.modules.rl_module import Batch
from lockstep.ops.distributions import SquashedGaussian


class DefaultSACModule(DefaultActorCriticModule):
    """Policy and critics (`ActionCritics`), each with networks of its own.

    A Box gets a tanh-squashed Gaussian in [-1, 1] whose deviations are outputs of the network, their logarithms within
    `log_std_bounds` (Haarnoja et al. 2018, appendix C); a Discrete space a Categorical. `ValueError` for other spaces.
    """

    def setup(self) -> None:
        box = isinstance(self.action_space, spaces.Box)
        if not box and not isinstance(self.action_space, spaces.Discrete):
            raise ValueError(f"SAC needs a Box or Discrete action space, not {self.action_space}")
        given = ModelConfig.of(self.model_config)
        self.model_config = config = replace(
            given, squash_actions=box, free_log_std=False, share_value_network=True, dueling=False
        )
        super().setup()
        self.value_head = None
        self.log_std_bounds = config.log_std_bounds if box else None
        self.critics = None if self.inference_only else ActionCritics(self.observation_space, self.action_space, config)

    def _policy(self, batch: Batch, inputs: Tensor) -> Tensor:
        if self.log_std_bounds is None:
            return super()._policy(batch, inputs)
        mean, log_std = inputs.chunk(2, dim=-1)
        return torch.cat([mean, log_std.clamp(*self.log_std_bounds)], dim=-1)

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        """`"action_dist_inputs"` `[N, D]`, and `"q_values"`: `[K, N]` of `batch["actions"]`, or of a Discrete space
        `[K, N, A]` of all actions.
        """
        if self.critics is None:
            raise RuntimeError(NO_VALUES)
        return {**self._forward(batch), "q_values": self.critics(batch["obs"], batch.get("actions"))}

    def sample(self, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Of a Box: the actions `[N, A]` that `noise` `[N, A]` selects, and their log-density `[N]`; differentiable."""
        inputs = self._forward(batch)["action_dist_inputs"].to(noise.dtype)
        dist = self.action_dist_cls.from_inputs(inputs)
        if not isinstance(dist, SquashedGaussian):
            raise TypeError(f"actions of {self.action_space} are not drawn by noise; use forward_train")
        return dist.sample_with_log_prob(noise)

    def compute_values(self, batch: Batch) -> Tensor:
        """The value `[N]` of the best action, as far as the critics and the policy know: without entropy."""
        if self.critics is None:
            raise RuntimeError(NO_VALUES)
        if self.critics.is_discrete:
            best: Tensor = self.critics(batch["obs"]).amin(0).amax(-1)
            return best
        dist = self.action_dist_cls.from_inputs(self._forward(batch)["action_dist_inputs"])
        values: Tensor = self.critics(batch["obs"], dist.mode()).amin(0)
        return values

    def get_non_inference_attributes(self) -> list[str]:
        return ["critics"]
