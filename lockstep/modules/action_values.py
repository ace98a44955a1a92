"""The default network of algorithms that learn action values: one number for each of the discrete actions."""

from __future__ import annotations

from gymnasium import spaces
from torch import Tensor

from lockstep.modules.actor_critic import DefaultActorCriticModule
from lockstep.modules.layers import mask_logits
from lockstep.modules.model_config import ModelConfig
from lockstep.modules.rl_module import Batch
from lockstep.modules.spaces import ACTION_MASK


class DefaultQModule(DefaultActorCriticModule):
    """Action values `[N, A]`, from one network or, with `dueling`, from advantages and a value: `Q = V + A - mean(A)`
    (Wang et al. 2016, https://arxiv.org/abs/1511.06581, equation 9), each with an encoder of its own unless
    `share_value_network` is set.

    Acting takes the largest of what `policy_head` gives: of the values, or of the advantages, which is the same one.
    Actions that a mask forbids (`"action_mask"` in a Dict observation) have a very low value.
    """

    def setup(self) -> None:
        config = ModelConfig.of(self.model_config)
        if not isinstance(self.action_space, spaces.Discrete):
            raise ValueError(f"action values need a Discrete action space, not {self.action_space}")
        if config.recurrent is not None:
            raise ValueError(f"recurrent={config.recurrent!r}: action values are learned without memory; leave it out")
        super().setup()
        if not config.dueling:
            self.value_encoder = self.value_head = None

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        """`"q_values"` `[N, A]`."""
        if self.value_head is None:
            values = self._run(batch, (self.encoder, self.policy_head))[0]
        else:
            if self.value_encoder is None:
                features = self.encoder(*self._inputs(batch))
                advantages, value = self.policy_head(features), self.value_head(features)
            else:
                both = (self.encoder, self.policy_head), (self.value_encoder, self.value_head)
                advantages, value = self._run(batch, *both)
            values = value + advantages - advantages.mean(-1, keepdim=True)
        return {"q_values": mask_logits(values, batch["obs"][ACTION_MASK]) if self.is_masked else values}

    def compute_values(self, batch: Batch) -> Tensor:
        """The value `[N]` of the best action."""
        return self.forward_train(batch)["q_values"].amax(-1)
