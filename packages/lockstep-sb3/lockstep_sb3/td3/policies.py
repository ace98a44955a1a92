"""Policies of TD3 and DDPG."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from torch import Tensor, nn

from lockstep_sb3.common.live_networks import extractor_of
from lockstep_sb3.common.policies import ActorCriticsPolicy, BasePolicy, target_of


class Actor(BasePolicy):
    """Deterministic policy `tanh(network)` with Lockstep's live layers.

    Args:
        network: Lockstep's network.
        observation_space: Space of the observations.
        action_space: Space of the actions, a Box.
    """

    def __init__(self, network: Any, observation_space: spaces.Space[Any], action_space: spaces.Box) -> None:
        extractor = extractor_of(network.encoder.features)
        super().__init__(observation_space, action_space, features_extractor=extractor, squash_output=True)
        self.features_dim = extractor.features_dim
        self.mu = nn.Sequential(*network.encoder.mlp, network.policy_head, nn.Tanh())

    def forward(self, obs: Any, deterministic: bool = True) -> Tensor:
        """Return actions `[N, A]` in [-1, 1] for a batch of tensors. They have no chance, so nothing else is random."""
        actions: Tensor = self.mu(self.extract_features(obs, self.features_extractor))
        return actions

    def _predict(self, observation: Any, deterministic: bool = False) -> Tensor:
        return self(observation)


class TD3Policy(ActorCriticsPolicy):
    """Actor and critics of TD3 and DDPG, for observations that are vectors."""

    def take_layers(self, network: Any, learner: Any) -> None:
        super().take_layers(network, learner)
        self.actor_target = self.make_actor(target_of(learner))

    def make_actor(self, network: Any) -> Actor:
        return Actor(network, self.observation_space, self.action_space)


MlpPolicy = TD3Policy


class CnnPolicy(TD3Policy):
    """`TD3Policy` for images."""


class MultiInputPolicy(TD3Policy):
    """`TD3Policy` for observations that are dicts."""
