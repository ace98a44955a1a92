"""The default network of actor-critic algorithms, for every observation space and every simple action space.

Initialised like PPO's reference implementation: orthogonal weights with gain sqrt(2) in hidden layers, 0.01 in the
policy's last layer (nearly uniform actions at first), 1 in the value's, zero biases; Gaussian policies have one learned
log-deviation for each action dimension, independent of the observation (Huang et al. 2022, "The 37 Implementation
Details of Proximal Policy Optimization", core details 2 and 13, continuous-control details 1 to 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.data.actions import ACTION_MASK, without_mask
from lockstep.modules.encoders import Encoder
from lockstep.modules.layers import initialise, mask_logits, policy_head, run_networks
from lockstep.modules.model_config import ModelConfig
from lockstep.modules.rl_module import Batch, RLModule

NO_VALUES = "this module was built with inference_only=True and has no value function"


class DefaultActorCriticModule(RLModule):
    """Holds a policy and a value function, in two networks or on one shared encoder.

    Acting runs the policy only. Observations of a Dict with the key `"action_mask"` restrict discrete actions to those
    whose mask is not 0; the network sees what is beside the mask.
    """

    def setup(self) -> None:
        config = ModelConfig.of(self.model_config)
        if config.recurrent is not None:
            raise ValueError(f"recurrent={config.recurrent!r} needs RecurrentActorCriticModule; this one has no memory")
        space, self.is_masked = self.action_dist_cls.split_mask(self.observation_space)
        self.encoder = Encoder(space, config)
        self.policy_head, self.log_std = policy_head(self.encoder.output_size, self.action_dist_cls, config)
        self.value_encoder: Encoder | None = None  # None: the policy's encoder, or no value function at all
        self.value_head: nn.Linear | None = None
        if not self.inference_only:
            if not config.share_value_network:
                self.value_encoder = Encoder(space, config)
            gain = config.value_gain if config.orthogonal_init else None
            self.value_head = initialise(nn.Linear(self.encoder.output_size, 1), gain)

    def _forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return what acting needs: `"action_dist_inputs"` `[N, D]`."""
        return {"action_dist_inputs": self._policy(batch, *self._run(batch, (self.encoder, self.policy_head)))}

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        """Return `"action_dist_inputs"` `[N, D]` and `"vf_preds"` `[N]`."""
        value_encoder, value_head = self.value_encoder, self.value_head
        if value_head is None:
            raise RuntimeError(NO_VALUES)
        if value_encoder is None:
            features = self.encoder(*self._inputs(batch))
            inputs, values = self.policy_head(features), value_head(features)
        else:
            inputs, values = self._run(batch, (self.encoder, self.policy_head), (value_encoder, value_head))
        return {"action_dist_inputs": self._policy(batch, inputs), "vf_preds": values.squeeze(-1)}

    def compute_values(self, batch: Batch) -> Tensor:
        """Return state values `[N]`. `RuntimeError` for a module built with `inference_only`."""
        if self.value_head is None:
            raise RuntimeError(NO_VALUES)
        return self._run(batch, (self.value_encoder or self.encoder, self.value_head))[0].squeeze(-1)

    def get_non_inference_attributes(self) -> list[str]:
        return ["value_encoder", "value_head"]

    def _run(self, batch: Batch, *networks: tuple[Encoder, nn.Linear]) -> Sequence[Tensor]:
        """Run encoders with their heads, together where that is faster."""
        obs, dtype = self._inputs(batch)
        return run_networks(*(encoder.with_head(obs, dtype, head) for encoder, head in networks))

    def _inputs(self, batch: Batch) -> tuple[Any, torch.dtype]:
        return without_mask(batch["obs"]) if self.is_masked else batch["obs"], self.policy_head.weight.dtype

    def _policy(self, batch: Batch, inputs: Tensor) -> Tensor:
        if self.log_std is not None:
            inputs = torch.cat([inputs, self.log_std.expand_as(inputs)], dim=-1)
        if self.is_masked:
            inputs = mask_logits(inputs, batch["obs"][ACTION_MASK])
        return inputs


class DefaultPolicyModule(DefaultActorCriticModule):
    """Holds the policy of `DefaultActorCriticModule`, with the same initial weights, and nothing else (imitation)."""

    def setup(self) -> None:
        self.inference_only = True
        super().setup()

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        """Return `"action_dist_inputs"` `[N, D]`."""
        return self._forward(batch)
