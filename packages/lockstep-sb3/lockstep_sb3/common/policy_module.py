"""`PolicyModule`, with which Lockstep acts and learns through an `ActorCriticPolicy`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from gymnasium.vector.utils import batch_space
from torch import Tensor

from lockstep.modules import RLModule, RLModuleSpec
from lockstep_sb3.common.distributions import Distribution
from lockstep_sb3.common.policies import ActorCriticPolicy
from lockstep_sb3.common.preprocessing import obs_as_tensor
from lockstep_sb3.common.torch_layers import move_channels_first, with_channels_first

NOT_CALLED = ("forward", "_predict", "evaluate_actions", "get_distribution", "predict_values")
"""Methods of a policy that `learn` does not call: it needs the parts of their results. An override must give the same
results as the method of `ActorCriticPolicy`."""
NUM_SAMPLES = 8
"""Number of observations for which the results are compared."""
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
        check_overrides(self.policy)

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
    """
    config = {
        "policy_class": policy_class,
        "policy_kwargs": dict(policy_kwargs),
        "learning_rate": learning_rate,
        "optimizer_class": optimizer_class,
    }
    return RLModuleSpec(module_class=PolicyModule, model_config=config)


def check_overrides(policy: ActorCriticPolicy) -> None:
    """Raise `ValueError` if an override of a method that is not called changes its results.

    Many programs override `forward` and its like with the code that they have anyway. The results are compared for some
    observations, with equal random numbers.
    """
    policy_class = type(policy)
    if policy_class.predict is not ActorCriticPolicy.predict:
        raise ValueError(
            f"{policy_class.__name__} overrides predict, which acting does not call here; override {PARTS}"
        )
    overridden = [name for name in NOT_CALLED if getattr(policy_class, name) is not getattr(ActorCriticPolicy, name)]
    if not overridden:
        return
    space = batch_space(policy.observation_space, NUM_SAMPLES)
    space.seed(0)
    obs = obs_as_tensor(space.sample(), policy.device)
    was_training = policy.training
    policy.eval()
    with torch.no_grad():
        actions = ActorCriticPolicy.forward(policy, obs)[0]
        arguments = {"evaluate_actions": (obs, actions), "forward": (obs, False), "_predict": (obs, False)}
        for name in overridden:
            expected = _results(getattr(ActorCriticPolicy, name), policy, *arguments.get(name, (obs,)))
            found = _results(getattr(policy_class, name), policy, *arguments.get(name, (obs,)))
            is_same = len(found) == len(expected) and all(map(_is_close, found, expected))
            if not is_same:
                raise ValueError(
                    f"{policy_class.__name__} overrides {name} with other results than the method of "
                    f"ActorCriticPolicy. Learning and acting do not call it here; override {PARTS} (docs/sb3.md)"
                )
    policy.train(was_training)


def _results(method: Any, policy: ActorCriticPolicy, *arguments: Any) -> list[Any]:
    """Return the tensors that a method of a policy returns, with fixed random numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        results = method(policy, *arguments)
    parts = results if isinstance(results, tuple) else (results,)
    return [part.inputs if isinstance(part, Distribution) else part for part in parts]


def _is_close(found: Any, expected: Any) -> bool:
    """Return whether two results are equal up to rounding."""
    if found is None or expected is None:
        return found is expected
    return found.shape == expected.shape and torch.allclose(found.float(), expected.float(), rtol=1e-4, atol=1e-5)
