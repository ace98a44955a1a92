"""Networks of action values `Q(s, a)`: several critics as one batched matrix product."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from gymnasium import spaces
from gymnasium.spaces import Space
from torch import Tensor, nn

from lockstep.data.actions import ACTION_MASK, without_mask
from lockstep.modules.action_dist import ActionDist
from lockstep.modules.batched import BatchedMLP
from lockstep.modules.encoders import make_features
from lockstep.modules.layers import mask_logits
from lockstep.modules.model_config import ModelConfig
from lockstep.modules.spaces import split_action_mask


class ActionCritics(nn.Module):
    """`num_critics` networks, each of which says what actions are worth; all are evaluated together.

    For a Box the action goes in beside the observation's features, for a Discrete space one value for each action comes
    out. Features that are learned (of images) are shared by all critics; the layers above them (`hiddens`) are not.
    """

    def __init__(self, observation_space: Space[Any], action_space: Space[Any], config: ModelConfig) -> None:
        super().__init__()
        action_dist = ActionDist(action_space)
        space, self.is_masked = split_action_mask(observation_space, action_dist)
        self.is_discrete = isinstance(action_space, spaces.Discrete)
        self.features = make_features(space, config)
        num_actions = action_dist.noise_size
        num_inputs = self.features.output_size + (0 if self.is_discrete else num_actions)
        gains = (config.hidden_gain, config.value_gain) if config.orthogonal_init else (None, None)
        self.mlp = BatchedMLP(
            config.num_critics,
            num_inputs,
            config.hiddens,
            num_actions if self.is_discrete else 1,
            activation=config.activation,
            hidden_gain=gains[0],
            output_gain=gains[1],
        )

    def forward(
        self, obs: Any, actions: Tensor | None = None, *, frozen: bool = False, first_only: bool = False
    ) -> Tensor:
        """Values `[K, N]` of actions `[N, A]` of a Box, or `[K, N, A]` of all actions of a Discrete space.

        `frozen`: the gradient goes to the actions only. `first_only`: of the first critic alone (K = 1).
        Actions that a mask forbids have a very low value.
        """
        with torch.no_grad() if frozen else nullcontext():
            inputs = self.features(without_mask(obs) if self.is_masked else obs).to(self.mlp.weights[0].dtype)
        if not self.is_discrete:
            if actions is None:
                raise ValueError("critics of a Box action space need actions; give a tensor [N, A]")
            both = torch.cat([inputs, actions.to(inputs.dtype)], -1)
            return self.mlp(both, frozen=frozen, first_only=first_only).squeeze(-1)
        values: Tensor = self.mlp(inputs, frozen=frozen, first_only=first_only)
        return mask_logits(values, obs[ACTION_MASK]) if self.is_masked else values
