"""`OnPolicyAlgorithm`, the base class of algorithms that train on each rollout once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from lockstep.data import map_tree
from lockstep.trainer import OnpolicyTrainer
from lockstep_sb3.common.base_class import BaseAlgorithm, option
from lockstep_sb3.common.buffers import BaseBuffer, DictRolloutBuffer, RolloutBuffer
from lockstep_sb3.common.log_names import ON_POLICY_METRICS, MetricNames
from lockstep_sb3.common.policy_module import policy_spec
from lockstep_sb3.common.utils import obs_as_tensor


class PresentRollout(RolloutBuffer):
    """Observations, actions and rewards of a model's present rollout, for callbacks. It is empty after the update.

    Values and advantages are not there: Lockstep computes them in the update.
    """

    def __init__(self, model: OnPolicyAlgorithm) -> None:
        self.model = model
        BaseBuffer.__init__(
            self, model.n_steps, model.observation_space, model.action_space, model.device, model.n_envs
        )
        self.gae_lambda = model.gae_lambda
        self.gamma = model.gamma

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. Sizes must be those of the model."""
        sizes = {"buffer_size": self.model.n_steps, "n_envs": self.model.n_envs} if name != "model" else {}
        if value != sizes.get(name, value):
            raise ValueError(f"rollout_buffer.{name}={value!r} is not allowed; the model has {sizes[name]}")
        object.__setattr__(self, name, value)

    def reset(self) -> None:
        """Do nothing: a rollout is emptied after the update."""

    @property
    def _steps(self) -> int:
        store = self.model.trainer.buffer if self.model.trainer else None
        return 0 if store is None else int(store.size)

    def _column(self, column: Any) -> Any:
        """Return the steps of a column of the store that are written."""
        return map_tree(lambda leaf: leaf[: self._steps].copy(), column)

    @property
    def pos(self) -> int:  # type: ignore[override]
        """Number of steps in the rollout."""
        return self._steps

    @property
    def full(self) -> bool:  # type: ignore[override]
        """Whether the rollout is complete."""
        return self._steps >= self.buffer_size

    @property
    def observations(self) -> Any:
        """Observations `[steps, environments, ...]`."""
        return self._column(self.model.trainer.buffer.obs)

    @property
    def actions(self) -> np.ndarray:  # type: ignore[override]
        """Actions `[steps, environments, ...]` in the form that the policy gives."""
        actions: np.ndarray = self._column(self.model.trainer.buffer.actions)
        return actions.reshape(*actions.shape[:2], -1)

    @property
    def rewards(self) -> np.ndarray:  # type: ignore[override]
        """Rewards `[steps, environments]`."""
        rewards: np.ndarray = self._column(self.model.trainer.buffer.rewards)
        return rewards


@dataclass(eq=False, repr=False)
class OnPolicyAlgorithm(BaseAlgorithm):
    """Algorithm that trains on each rollout once."""

    activation = nn.Tanh
    critic_name = "vf"
    takes_own_policies = True
    adam_epsilon = 1e-5
    sde_log_std = 0.0
    log_interval = 1

    shares_layers: ClassVar[bool] = True
    """Whether policy and value function may have layers in common."""

    n_steps: int = 2048
    gae_lambda: float = option(0.95, "training.lambda_")
    rollout_buffer_class: type[BaseBuffer] | None = None
    rollout_buffer_kwargs: dict[str, Any] | None = None

    def set_options(self, config: Any, kwargs: dict[str, Any]) -> None:
        if self.rollout_buffer_class not in (None, RolloutBuffer, DictRolloutBuffer):
            self.refuse(f"rollout_buffer_class={self.rollout_buffer_class}", "give RolloutBuffer, or leave it out")
        if self.rollout_buffer_kwargs:
            self.refuse(f"rollout_buffer_kwargs={self.rollout_buffer_kwargs}", "leave it out")
        config.training(train_batch_size=self.n_steps * self.n_envs)

    def set_networks(self, config: Any, kwargs: dict[str, Any]) -> None:
        if not self.policy_name:
            self._set_own_policy(config, kwargs)
            return
        is_asked_to_share = kwargs.get("share_features_extractor") is True
        shares_features = kwargs.get("share_features_extractor", True)
        log_std_init = float(kwargs.pop("log_std_init", 0.0))
        orthogonal = kwargs.pop("ortho_init", True)
        super().set_networks(config, kwargs)
        # The networks of Stable-Baselines3 share the extractor, and nothing above it.
        model = config.rl_module.model_config
        has_extractor = model.encoder is not None or self.is_cnn
        if is_asked_to_share and has_extractor and (model.hiddens or model.value_hiddens):
            # Lockstep's own networks share all layers or none.
            if self.use_sde or not self.takes_own_policies:
                self.refuse("share_features_extractor=True with layers above the extractor", "leave it out")
            self._set_own_policy(config, kwargs)
            return
        is_shared = self.shares_layers and shares_features and has_extractor
        is_shared = is_shared and not (model.hiddens or model.value_hiddens)
        heads = {"orthogonal_init": orthogonal, "log_std_init": log_std_init}
        config.rl_module(model_config={**heads, "vf_share_layers": is_shared})

    def _set_own_policy(self, config: Any, kwargs: dict[str, Any]) -> None:
        """Let the policy class make the network itself, with all keywords."""
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

    @property
    def rollout_buffer(self) -> PresentRollout:
        """Present rollout. It is complete when callbacks are notified of its end."""
        return PresentRollout(self)

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
        return {"n_rollout_steps": self.n_steps, "rollout_buffer": self.rollout_buffer}
