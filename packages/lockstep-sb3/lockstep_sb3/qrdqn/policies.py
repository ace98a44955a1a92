"""Policies of QRDQN of sb3-contrib."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from torch import Tensor

from lockstep_sb3.common.policies import LivePolicy, target_of
from lockstep_sb3.dqn.policies import QNetwork


class QuantileNetwork(QNetwork):
    """Quantiles of the return of each action, with Lockstep's live layers. Arguments: see `QNetwork`."""

    def __init__(self, network: Any, observation_space: spaces.Space[Any], action_space: spaces.Discrete) -> None:
        super().__init__(network, observation_space, action_space)
        self.quantile_net = self.q_net
        del self.q_net
        self.n_quantiles = network.num_outputs

    def forward(self, obs: Any) -> Tensor:
        """Return the quantiles `[N, n_quantiles, A]` of all actions, for a batch of tensors."""
        outputs = self.quantile_net(self.extract_features(obs, self.features_extractor))
        quantiles: Tensor = outputs.unflatten(-1, (-1, self.n_quantiles)).transpose(-1, -2)
        return quantiles

    def _predict(self, observation: Any, deterministic: bool = True) -> Tensor:
        return self(observation).mean(dim=1).argmax(dim=1).reshape(-1)


class QRDQNPolicy(LivePolicy):
    """Quantiles `quantile_net`, and their target network `quantile_net_target`, for observations that are vectors."""

    def take_layers(self, network: Any, learner: Any) -> None:
        self.quantile_net = QuantileNetwork(network, self.observation_space, self.action_space)
        self.quantile_net_target = QuantileNetwork(target_of(learner), self.observation_space, self.action_space)

    def _predict(self, observation: Any, deterministic: bool = True) -> Tensor:
        return self.quantile_net._predict(observation, deterministic)


MlpPolicy = QRDQNPolicy


class CnnPolicy(QRDQNPolicy):
    """`QRDQNPolicy` for images."""


class MultiInputPolicy(QRDQNPolicy):
    """`QRDQNPolicy` for observations that are dicts."""
