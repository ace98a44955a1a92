"""The default network of IQL: a policy, a state value, and critics of actions."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from torch import Tensor

from lockstep.modules.action_critics import ActionCritics
from lockstep.modules.actor_critic import NO_VALUES, DefaultActorCriticModule
from lockstep.modules.rl_module import Batch


class DefaultIQLModule(DefaultActorCriticModule):
    """Policy and state value as `DefaultActorCriticModule` has them, and critics (`ActionCritics`) beside.

    `ValueError` for other action spaces than a Box or a Discrete one.
    """

    def setup(self) -> None:
        if not isinstance(self.action_space, spaces.Box | spaces.Discrete):
            raise ValueError(f"IQL needs a Box or Discrete action space, not {self.action_space}")
        super().setup()
        config: Any = self.model_config
        self.critics = None if self.inference_only else ActionCritics(self.observation_space, self.action_space, config)

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        """`"action_dist_inputs"` `[N, D]`, `"vf_preds"` `[N]`, and `"q_values"`: `[K, N]` of `batch["actions"]`, or of
        a Discrete space `[K, N, A]` of all actions.
        """
        if self.critics is None:
            raise RuntimeError(NO_VALUES)
        return {**super().forward_train(batch), "q_values": self.critics(batch["obs"], batch["actions"])}

    def get_non_inference_attributes(self) -> list[str]:
        return [*super().get_non_inference_attributes(), "critics"]
