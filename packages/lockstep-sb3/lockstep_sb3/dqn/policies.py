"""Policies of DQN."""

from __future__ import annotations

from typing import Any, ClassVar

from gymnasium import spaces
from torch import Tensor, nn

from lockstep_sb3.common.live_networks import extractor_of
from lockstep_sb3.common.policies import BasePolicy, LivePolicy, target_of


class QNetwork(BasePolicy):
    """Action values with Lockstep's live layers.

    Args:
        network: Lockstep's network.
        observation_space: Space of the observations.
        action_space: Space of the actions, a Discrete.
    """

    def __init__(self, network: Any, observation_space: spaces.Space[Any], action_space: spaces.Discrete) -> None:
        extractor = extractor_of(network.encoder.features)
        super().__init__(observation_space, action_space, features_extractor=extractor)
        self.features_dim = extractor.features_dim
        self.q_net = nn.Sequential(*network.encoder.mlp, network.policy_head)

    def forward(self, obs: Any) -> Tensor:
        """Return the values `[N, A]` of all actions, for a batch of tensors."""
        values: Tensor = self.q_net(self.extract_features(obs, self.features_extractor))
        return values

    def _predict(self, observation: Any, deterministic: bool = True) -> Tensor:
        return self(observation).argmax(dim=1).reshape(-1)


class DQNPolicy(LivePolicy):
    """Action values of DQN, `q_net`, and their target network `q_net_target`, for observations that are vectors."""

    network_class: ClassVar[type[QNetwork]] = QNetwork
    """Class of both networks."""

    def take_layers(self, network: Any, learner: Any) -> None:
        self.q_net = self.network_class(network, self.observation_space, self.action_space)
        self.q_net_target = self.network_class(target_of(learner), self.observation_space, self.action_space)

    def _predict(self, observation: Any, deterministic: bool = True) -> Tensor:
        return self.q_net._predict(observation, deterministic)


MlpPolicy = DQNPolicy


class CnnPolicy(DQNPolicy):
    """`DQNPolicy` for images."""


class MultiInputPolicy(DQNPolicy):
    """`DQNPolicy` for observations that are dicts."""
