"""`OnPolicyAlgorithm`, the base class of algorithms that train on each rollout once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lockstep.trainer import OnpolicyTrainer
from lockstep_sb3.common.base_class import BaseAlgorithm, option
from lockstep_sb3.common.log_names import ON_POLICY_METRICS, MetricNames
from lockstep_sb3.common.policy_module import policy_spec
from lockstep_sb3.common.utils import obs_as_tensor


@dataclass(eq=False, repr=False)
class OnPolicyAlgorithm(BaseAlgorithm):
    """Algorithm that trains on each rollout once."""

    activation = nn.Tanh
    critic = "vf"
    takes_own_policies = True
    adam_epsilon = 1e-5
    sde_log_std = 0.0
    log_interval = 1

    shares_layers: ClassVar[bool] = True
    """Whether policy and value function may have layers in common."""

    n_steps: int = 2048
    gae_lambda: float = option(0.95, "training.lambda_")
    rollout_buffer_class: Any = option(None, None)
    rollout_buffer_kwargs: Any = option(None, None)

    def set_options(self, config: Any, kwargs: dict[str, Any]) -> None:
        config.training(train_batch_size=self.n_steps * self.n_envs)

    def set_networks(self, config: Any, kwargs: dict[str, Any]) -> None:
        if not self.policy_name:
            self._set_own_policy(config, kwargs)
            return
        shares_features = kwargs.get("share_features_extractor", True)
        log_std_init = float(kwargs.pop("log_std_init", 0.0))
        orthogonal = kwargs.pop("ortho_init", True)
        super().set_networks(config, kwargs)
        # The networks of Stable-Baselines3 share the extractor, and nothing above it.
        model = config.rl_module.model_config
        has_extractor = model.encoder is not None or self.is_cnn
        is_shared = self.shares_layers and shares_features and has_extractor
        is_shared = is_shared and not (model.hiddens or model.value_hiddens)
        heads = {"orthogonal_init": orthogonal, "log_std_init": log_std_init}
        config.rl_module(model_config={**heads, "vf_share_layers": is_shared})

    def _set_own_policy(self, config: Any, kwargs: dict[str, Any]) -> None:
        """Let a policy class of the user's own make the network, with all keywords."""
        if self.use_sde:
            self.refuse(f"use_sde=True with {self.policy_class.__name__}", "it needs a policy of the package")
        kwargs.clear()
        policy_kwargs = dict(self.policy_kwargs or {})
        optimizer_class = policy_kwargs.get("optimizer_class", torch.optim.Adam)
        if config.training.optimizer == "rmsprop":
            optimizer_class = torch.optim.RMSprop
            options = config.training.optimizer_kwargs
            policy_kwargs |= {"optimizer_class": optimizer_class, "optimizer_kwargs": dict(options)}
        rate = self.learning_rate(1.0) if callable(self.learning_rate) else self.learning_rate
        policy_class: Any = self.policy_class
        spec = policy_spec(policy_class, policy_kwargs, float(rate), optimizer_class)
        config.rl_module(rl_module_spec=spec)

    def make_buffer(self) -> None:
        return None

    def make_trainer(self, **options: Any) -> OnpolicyTrainer:
        options["step_per_collect"] = self.n_steps * self.n_envs
        options["batch_size"] = self.config.training.minibatch_size
        return OnpolicyTrainer(repeat_per_collect=self.config.training.num_epochs, **options)

    def update_trainer(self) -> None:
        self.trainer.step_per_collect = self.n_steps * self.n_envs
        self.trainer.batch_size = self.config.training.minibatch_size
        self.trainer.repeat_per_collect = self.config.training.num_epochs

    def log_unit(self) -> int:
        return (self.num_timesteps - self._steps_before) // (self.n_steps * self.n_envs)

    @property
    def metric_names(self) -> MetricNames:
        return ON_POLICY_METRICS

    def count_updates(self, gradient_steps: int) -> int:
        return int(getattr(self, "n_epochs", 1))

    def scheduled_values(self) -> dict[str, float]:
        log_std = getattr(self.lockstep.module, "log_std", None)
        return {} if log_std is None else {"train/std": float(log_std.detach().exp().mean())}

    def computed_values(self) -> dict[str, Callable[[], Any]]:
        return {
            "actions": lambda: self.step_result.actions,
            "clipped_actions": lambda: self._acting.to_env(self.step_result.actions),
            "obs_tensor": lambda: obs_as_tensor(self.step_result.acted_on, self.device),
            "values": lambda: self._evaluated_step()[0],
            "log_probs": lambda: self._evaluated_step()[1],
        }

    def _evaluated_step(self) -> tuple[Tensor, Tensor]:
        """Return the values `[B, 1]` and the log-probabilities `[B]` of the present step."""
        actions = torch.as_tensor(self.locals["actions"], device=self.device)
        with torch.no_grad():
            values, log_probs, _ = self.policy.evaluate_actions(self.locals["obs_tensor"], actions)
        return values, log_probs

    def rollout_values(self) -> dict[str, Any]:
        return {"n_rollout_steps": self.n_steps}
