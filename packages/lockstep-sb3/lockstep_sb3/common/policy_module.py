"""`PolicyModule`, with which Lockstep acts and learns through an `ActorCriticPolicy`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from lockstep.modules import RLModule, RLModuleSpec
from lockstep_sb3.common.policies import ActorCriticPolicy
from lockstep_sb3.common.torch_layers import move_channels_first, with_channels_first

NOT_CALLED = ("forward", "_predict", "predict", "evaluate_actions", "get_distribution", "predict_values")
"""Methods of a policy that `learn` does not call. It needs the parts of their results."""
PARTS = "_build_mlp_extractor, _build, extract_features or _get_action_dist_from_latent"
"""Methods that `learn` calls."""


class PolicyModule(RLModule):
    """Network of PPO, A2C and TRPO that is an `ActorCriticPolicy`.

    `model_config` has the fields of `policy_spec`.
    """

    policy: ActorCriticPolicy

    def setup(self) -> None:
        config = cast(Mapping[str, Any], self.model_config)
        policy_class = config["policy_class"]
        learning_rate = float(config["learning_rate"])
        space = with_channels_first(self.observation_space)
        self.policy = policy_class(space, self.action_space, lambda _: learning_rate, **config["policy_kwargs"])
        self._check_optimizer(config)

    def _check_optimizer(self, config: Mapping[str, Any]) -> None:
        """Raise `ValueError` if the policy has made an optimizer other than the one that learns."""
        made = self.policy.optimizer
        expected = config["optimizer_class"]
        if type(made) is not expected or len(made.param_groups) != 1:
            raise ValueError(
                f"{type(self.policy).__name__} makes an optimizer {type(made).__name__} with {len(made.param_groups)} "
                f"groups of parameters, and the model learns with one group of {expected.__name__}; give the class in "
                "policy_kwargs={'optimizer_class': ..., 'optimizer_kwargs': ...}"
            )

    def _forward(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the outputs for acting: `"action_dist_inputs"` `[N, D]`."""
        policy = self.policy
        features = policy.extract_features(self._observations(batch), policy.pi_features_extractor)
        latent = policy.mlp_extractor.forward_actor(features)
        return {"action_dist_inputs": policy._get_action_dist_from_latent(latent).inputs}

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return `"action_dist_inputs"` `[N, D]` and `"vf_preds"` `[N]`."""
        distribution, values = self.policy.distribution_and_values(self._observations(batch))
        return {"action_dist_inputs": distribution.inputs, "vf_preds": values.squeeze(-1)}

    def compute_values(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the values `[N]`."""
        return self.policy.predict_values(self._observations(batch)).squeeze(-1)

    def _observations(self, batch: Mapping[str, Any]) -> Any:
        """Return the observations with the channels of images first."""
        return move_channels_first(batch["obs"], self.observation_space)


def policy_spec(
    policy_class: type[ActorCriticPolicy],
    policy_kwargs: Mapping[str, Any],
    learning_rate: float,
    optimizer_class: type[torch.optim.Optimizer],
) -> RLModuleSpec:
    """Return the spec of a `PolicyModule`.

    Args:
        policy_class: Class of the policy.
        policy_kwargs: Keyword arguments of the class.
        learning_rate: Initial learning rate, which the policy's `lr_schedule` returns.
        optimizer_class: Class of the optimizer that learns.

    Raises:
        ValueError: The class overrides a method that is not called.
    """
    check_policy_class(policy_class)
    config = {
        "policy_class": policy_class,
        "policy_kwargs": dict(policy_kwargs),
        "learning_rate": learning_rate,
        "optimizer_class": optimizer_class,
    }
    return RLModuleSpec(module_class=PolicyModule, model_config=config)


def check_policy_class(policy_class: type[ActorCriticPolicy]) -> None:
    """Raise `ValueError` if a user's policy class overrides a method that is not called."""
    for name in NOT_CALLED:
        if getattr(policy_class, name) is not getattr(ActorCriticPolicy, name):
            raise ValueError(
                f"{policy_class.__name__} overrides {name}, which learning and acting do not call here; override "
                f"{PARTS} (docs/sb3.md)"
            )
