"""Policies of SAC."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from gymnasium import spaces
from torch import Tensor

from lockstep.modules import StateDependentHead
from lockstep_sb3.common.distributions import SquashedDiagGaussianDistribution
from lockstep_sb3.common.live_networks import LiveRows, extractor_of
from lockstep_sb3.common.policies import ActorCriticsPolicy, BasePolicy
from lockstep_sb3.common.preprocessing import get_action_dim


class Actor(BasePolicy):
    """Tanh-squashed Gaussian policy with Lockstep's live layers.

    Args:
        network: Lockstep's network.
        observation_space: Space of the observations.
        action_space: Space of the actions, a Box.
    """

    def __init__(self, network: Any, observation_space: spaces.Space[Any], action_space: spaces.Box) -> None:
        extractor = extractor_of(network.encoder.features)
        super().__init__(observation_space, action_space, features_extractor=extractor, squash_output=True)
        self.features_dim = extractor.features_dim
        self.latent_pi = network.encoder.mlp
        self.head = network.policy_head
        self.log_std_bounds = network.log_std_bounds
        self.use_sde = isinstance(self.head, StateDependentHead)
        self.num_actions = get_action_dim(action_space)
        self.action_dist = SquashedDiagGaussianDistribution(self.num_actions)

    @property
    def mu(self) -> LiveRows:
        """Last layer of the means, before tanh."""
        return LiveRows(self.head, slice(0, self.num_actions))

    @property
    def log_std(self) -> Any:
        """Last layer of the log standard deviations; with state-dependent exploration the parameter of its noise."""
        return self.head.log_std if self.use_sde else LiveRows(self.head, slice(self.num_actions, None))

    def get_std(self) -> Tensor:
        """Return the standard deviations of state-dependent exploration. `ValueError` without it."""
        if not self.use_sde:
            raise ValueError("get_std() is for use_sde=True; get_action_dist_params(obs) returns log_std")
        std: Tensor = self.head.log_std.exp()
        return std

    def get_action_dist_params(self, obs: Any) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return means and log standard deviations `[N, A]` before tanh, and an empty dict."""
        latent = self.latent_pi(self.extract_features(obs, self.features_extractor))
        outputs = self.head(latent)
        # Slices and not `chunk`, which torch exports to ONNX in a form that older versions do not read.
        means = outputs[..., : self.num_actions]
        log_std = outputs[..., self.num_actions :]
        if self.log_std_bounds is not None:
            log_std = torch.clamp(log_std, *self.log_std_bounds)
        return means, log_std, {}

    def forward(self, obs: Any, deterministic: bool = False) -> Tensor:
        """Return actions `[N, A]` in [-1, 1] for a batch of tensors."""
        means, log_std, _ = self.get_action_dist_params(obs)
        return self.action_dist.actions_from_params(means, log_std, deterministic=deterministic)

    def action_log_prob(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Return random actions `[N, A]` in [-1, 1] and their log densities `[N]`, both with gradients."""
        means, log_std, _ = self.get_action_dist_params(obs)
        return self.action_dist.log_prob_from_params(means, log_std)

    def _predict(self, observation: Any, deterministic: bool = False) -> Tensor:
        return self(observation, deterministic)


class SACPolicy(ActorCriticsPolicy):
    """Actor and critics of SAC, for observations that are vectors."""

    actor_class: ClassVar[type[Actor]] = Actor

    def make_actor(self, network: Any) -> Actor:
        return self.actor_class(network, self.observation_space, self.action_space)


MlpPolicy = SACPolicy


class CnnPolicy(SACPolicy):
    """`SACPolicy` for images."""


class MultiInputPolicy(SACPolicy):
    """`SACPolicy` for observations that are dicts."""
