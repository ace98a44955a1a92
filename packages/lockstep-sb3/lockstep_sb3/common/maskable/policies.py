"""Policy classes of `MaskablePPO` for `MaskablePPO(MaskableActorCriticPolicy, env)`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lockstep_sb3.common.distributions import Distribution, make_proba_distribution
from lockstep_sb3.common.maskable.boundary import choices_of
from lockstep_sb3.common.policies import ActorCriticPolicy

FORBIDDEN = -1e9
"""Logit of a choice that a mask forbids."""


class MaskableActorCriticPolicy(ActorCriticPolicy):
    """Policy and value function of `MaskablePPO`, for observations that are vectors."""

    def take_layers(self, network: Any, learner: Any) -> None:
        super().take_layers(network, learner)
        # Each number of MultiBinary is a choice between 0 and 1, with a logit and a mask entry for either.
        self.action_dist = make_proba_distribution(choices_of(self.action_space))

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[Any, Any]:
        """Return actions of the environment for one observation or a batch, and `state`.

        Arguments: see `MaskablePPO.predict`.
        """
        if self._model is None:
            if action_masks is not None:
                raise ValueError(f"{type(self).__name__} takes action_masks as the policy of a model: model.policy")
            return super().predict(observation, state, episode_start, deterministic)
        result: tuple[Any, Any] = self._model.predict(observation, state, episode_start, deterministic, action_masks)
        return result

    def forward(self, obs: Any, deterministic: bool = False, action_masks: Any = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions `[N, ...]`, values `[N, 1]` and log-probabilities `[N]`; see `get_distribution`."""
        distribution, values = self.distribution_and_values(obs)
        distribution = self._masked(distribution, action_masks)
        actions = distribution.get_actions(deterministic)
        log_prob = distribution.log_prob(actions)
        return actions.reshape(-1, *(self.action_space.shape or ())), values, log_prob

    def get_distribution(self, obs: Any, action_masks: Any = None) -> Distribution:
        """Return the action distributions of observations `[N, ...]`.

        Args:
            obs: Tensor, or a dict of tensors, `[N, ...]`.
            action_masks: Masks `[N, entries]`. None allows every action.
        """
        return self._masked(super().get_distribution(obs), action_masks)

    def evaluate_actions(
        self, obs: Any, actions: Tensor, action_masks: Any = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the values `[N, 1]`, the log-probabilities of `actions` `[N]` and the entropies `[N]`, with gradients.

        Arguments: see `ActorCriticPolicy.evaluate_actions` and `get_distribution`.
        """
        distribution, values = self.distribution_and_values(obs)
        distribution = self._masked(distribution, action_masks)
        return values, distribution.log_prob(actions), distribution.entropy()

    def _masked(self, distribution: Distribution, action_masks: Any) -> Distribution:
        """Return the distribution with very low logits for the choices that a mask forbids."""
        if action_masks is None:
            return distribution
        allowed = torch.as_tensor(action_masks, dtype=torch.bool, device=distribution.inputs.device)
        logits = distribution.inputs.masked_fill(~allowed.reshape(distribution.inputs.shape), FORBIDDEN)
        return distribution.proba_distribution(logits)


class MaskableActorCriticCnnPolicy(MaskableActorCriticPolicy):
    """`MaskableActorCriticPolicy` for images."""


class MaskableMultiInputActorCriticPolicy(MaskableActorCriticPolicy):
    """`MaskableActorCriticPolicy` for observations that are dicts."""
