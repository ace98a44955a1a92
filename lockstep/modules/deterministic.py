"""The default network of TD3 and DDPG: a policy without chance, and critics of actions."""

from __future__ import annotations

from gymnasium import spaces
from torch import Tensor, nn

from lockstep.modules.action_critics import ActionCritics
from lockstep.modules.action_dist import ActionDist
from lockstep.modules.actor_critic import NO_VALUES
from lockstep.modules.encoders import Encoder
from lockstep.modules.layers import initialise, run_networks
from lockstep.modules.model_config import ModelConfig
from lockstep.modules.rl_module import Batch, RLModule


class DefaultTD3Module(RLModule):
    """Policy `tanh(network)` in [-1, 1], and critics (`ActionCritics`). `ValueError` for other spaces than a Box."""

    def setup(self) -> None:
        if not isinstance(self.action_space, spaces.Box):
            raise ValueError(f"a deterministic policy needs a Box action space, not {self.action_space}")
        self.model_config = config = ModelConfig.of(self.model_config)
        if config.recurrent is not None:
            raise ValueError(f"recurrent={config.recurrent!r}: this policy has no memory; leave it out")
        self.encoder = Encoder(self.observation_space, config)
        head = nn.Linear(self.encoder.output_size, self.action_dist_cls.input_size)
        self.policy_head = initialise(head, config.policy_gain if config.orthogonal_init else None)
        self.critics = None if self.inference_only else ActionCritics(self.observation_space, self.action_space, config)

    @property
    def action_dist_cls(self) -> ActionDist:
        """Deterministic, squashed by tanh."""
        if self._action_dist is None:
            self._action_dist = ActionDist(self.action_space, squashed=True, deterministic=True)
        return self._action_dist

    def _forward(self, batch: Batch) -> dict[str, Tensor]:
        """Acting: `"action_dist_inputs"` `[N, A]`, before the tanh."""
        network = self.encoder.with_head(batch["obs"], self.policy_head.weight.dtype, self.policy_head)
        return {"action_dist_inputs": run_networks(network)[0]}

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        """`"action_dist_inputs"` `[N, A]`, and `"q_values"` `[K, N]` of `batch["actions"]`."""
        if self.critics is None:
            raise RuntimeError(NO_VALUES)
        return {**self._forward(batch), "q_values": self.critics(batch["obs"], batch["actions"])}

    def compute_actions(self, batch: Batch) -> Tensor:
        """The policy's actions `[N, A]` in [-1, 1]; differentiable."""
        return self._forward(batch)["action_dist_inputs"].tanh()

    def compute_values(self, batch: Batch) -> Tensor:
        """The value `[N]` of the policy's action, by the first critic."""
        if self.critics is None:
            raise RuntimeError(NO_VALUES)
        values: Tensor = self.critics(batch["obs"], self.compute_actions(batch), first_only=True)[0]
        return values

    def get_non_inference_attributes(self) -> list[str]:
        return ["critics"]
