"""SAC: soft actor-critic (Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications").

https://arxiv.org/abs/1812.05905, with the temperature learned (equation 18); for discrete actions as in Christodoulou
2019, https://arxiv.org/abs/1910.07207. Twin critics are one batched product, their target network follows after every
gradient step. All three losses are taken at the same parameters and meet in one backward pass; the policy's sends no
gradient into the critics.

Defaults: those of the paper (table 1): batch 256, two layers of 256 rectified units, Adam with lr 3e-4, tau 0.005,
gamma 0.99, a memory of a million, one gradient step for each environment step, entropy of minus the number of action
dimensions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from gymnasium import spaces
from torch import Tensor, nn

from lockstep.algorithms.config import AlgorithmConfig
from lockstep.data.columns import Columns
from lockstep.learner.config import TrainingSection, require
from lockstep.learner.critics import critic_loss, follow, modules_with_loss, register_actor_and_critic, td_targets
from lockstep.learner.learner import Gradients, Learner, TensorColumns
from lockstep.learner.optimizers import fused_adam
from lockstep.learner.targets import TargetNetwork
from lockstep.modules import DefaultSACModule
from lockstep.state.schedules import ScheduleLike

NOISE, NEXT_NOISE = "action_noise", "next_action_noise"
"""columns: what draws the policy's actions at an observation, and at the one after it"""
DISCRETE_ENTROPY = 0.98
"""share of the highest entropy that "auto" aims at where actions are discrete (Christodoulou 2019)"""


@dataclass
class SACTraining(TrainingSection):
    """Options of `SACConfig.training(...)`."""

    lr: ScheduleLike = 3e-4
    """learning rate of all three optimizers that have none of their own"""
    actor_lr: ScheduleLike | None = None
    """of the policy; `None`: `lr`"""
    critic_lr: ScheduleLike | None = None
    """of the critics; `None`: `lr`"""
    alpha_lr: ScheduleLike | None = None
    """of the temperature; `None`: `lr`"""
    train_batch_size: int = 256
    """transitions in one gradient step, over all learners"""
    tau: float = 0.005
    """how far the target critics go towards those that learn, in each update of them"""
    target_update_interval: int = 1
    """gradient steps between two updates of the target critics"""
    alpha: float | Literal["auto"] = "auto"
    """temperature, the weight of the entropy: a number, or "auto": learned, so that the entropy is `target_entropy`"""
    initial_alpha: float = 1.0
    """where a learned temperature begins"""
    target_entropy: float | Literal["auto"] = "auto"
    """in nats; "auto": minus the number of action dimensions, or 0.98 of the highest for discrete actions"""

    def validate(self) -> None:
        """Raises `ValueError` naming the option, its value and what is allowed."""
        super().validate()
        require("minibatch_size", self.minibatch_size, self.minibatch_size is None, "None (use train_batch_size)")
        require("num_epochs", self.num_epochs, self.num_epochs == 1, "1 (use replay.update_per_step)")
        require("tau", self.tau, 0.0 < self.tau <= 1.0, "above 0 and at most 1")
        interval = self.target_update_interval
        require("target_update_interval", interval, interval >= 1, "at least 1")
        alpha, entropy = self.alpha, self.target_entropy
        require("alpha", alpha, alpha == "auto" if isinstance(alpha, str) else alpha >= 0, 'at least 0, or "auto"')
        require("initial_alpha", self.initial_alpha, self.initial_alpha > 0, "above 0")
        named = entropy == "auto" if isinstance(entropy, str) else math.isfinite(entropy)
        require("target_entropy", entropy, named, 'a number, or "auto"')


class SACLearner(Learner):
    """The update of SAC."""

    def setup_module(self, module_id: str) -> None:
        """Target critics and temperature are part of the learner's state."""
        config: Any = self.config_of(module_id)
        module: Any = self.module[module_id]
        self.register_state(f"{module_id}/target", TargetNetwork(module.critics))
        first = config.initial_alpha if config.alpha == "auto" else config.alpha
        log_alpha = torch.tensor(math.log(first) if first > 0 else -math.inf, dtype=self.dtype, device=self.device)
        self.register_state(f"{module_id}/log_alpha", nn.Parameter(log_alpha, requires_grad=config.alpha == "auto"))

    def configure_optimizers_for_module(self, module_id: str, config: Any) -> None:
        """Three: "actor", "critic" and, where the temperature is learned, "alpha"."""
        register_actor_and_critic(self, module_id, config)
        if config.alpha == "auto":
            lr = config.lr if config.alpha_lr is None else config.alpha_lr
            log_alpha = self.registered[f"{module_id}/log_alpha"]
            self.optimizers.register(module_id, "alpha", fused_adam(config.adam_epsilon), [log_alpha], lr)

    def required_columns(self, module_id: str) -> tuple[str, ...]:
        """What the loss reads (`discounts` and `weights` only where they are there)."""
        return (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.NEXT_OBS)

    def noise_columns(self, module_id: str) -> dict[str, int]:
        """For a Box: the random numbers of two actions for each row."""
        if isinstance(self.module[module_id].action_space, spaces.Discrete):
            return {}
        return dict.fromkeys((NOISE, NEXT_NOISE), self.module[module_id].action_dist_cls.noise_size)

    def compute_loss_for_module(self, *, module_id: str, config: Any, batch: TensorColumns, fwd_out: Any) -> Tensor:
        """Critics (equations 5 and 6), policy (equation 9, the smallest critic), temperature (equation 18)."""
        log_alpha = self.registered[f"{module_id}/log_alpha"]
        alpha = log_alpha.detach().exp()
        discrete = isinstance(self.module[module_id].action_space, spaces.Discrete)
        with self.mixed_precision():
            following = self.next_values(module_id, batch, alpha)
            terms = self.discrete_terms if discrete else self.box_terms
            policy_terms, neg_entropy = terms(module_id, batch, fwd_out, alpha)
        values = fwd_out["q_values"]
        if discrete:
            index = batch[Columns.ACTIONS].long().expand(len(values), -1).unsqueeze(-1)
            values = values.gather(-1, index).squeeze(-1)
        loss = critic_loss(self, module_id, batch, values, td_targets(batch, following, config.gamma))
        actor_loss = self.masked_mean(policy_terms, batch)
        missing = neg_entropy.detach() + self.target_entropy(module_id)
        entropy = -self.masked_mean(neg_entropy.detach(), batch)
        self.log(module_id, actor_loss=actor_loss, entropy=entropy, alpha=alpha)
        if config.alpha != "auto":
            return loss + actor_loss
        alpha_loss = self.masked_mean(-log_alpha * missing, batch)
        self.log(module_id, alpha_loss=alpha_loss)
        return loss + actor_loss + alpha_loss

    @torch.no_grad()
    def next_values(self, module_id: str, batch: TensorColumns, alpha: Tensor) -> Tensor:
        """`[N]`: soft value (equation 3) of the next observation, by the smallest target critic."""
        module: Any = self.module[module_id]
        critics = self.registered[f"{module_id}/target"].module
        after = {Columns.OBS: batch[Columns.NEXT_OBS]}
        if NEXT_NOISE in batch:
            actions, logp = module.sample(after, batch[NEXT_NOISE])
            return self.to_tensor(critics(after[Columns.OBS], actions).amin(0)) - alpha * logp
        log_probs = self.log_probs(module_id, module.forward_inference(after))
        values = self.to_tensor(critics(after[Columns.OBS]).amin(0))
        return (log_probs.exp() * (values - alpha * log_probs)).sum(-1)

    def box_terms(self, module_id: str, batch: TensorColumns, fwd_out: Any, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """What each row adds to the policy's loss, and the log-density of its action, `[N]` each."""
        module: Any = self.module[module_id]
        dist = module.action_dist_cls.from_inputs(fwd_out[Columns.ACTION_DIST_INPUTS])
        actions, logp = dist.sample_with_log_prob(batch[NOISE])
        values = self.to_tensor(module.critics(batch[Columns.OBS], actions, frozen=True).amin(0))
        return alpha * logp - values, logp

    def discrete_terms(
        self, module_id: str, batch: TensorColumns, fwd_out: Any, alpha: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same as means over all actions: the policy's loss and minus the entropy."""
        log_probs = self.log_probs(module_id, fwd_out)
        probs, values = log_probs.exp(), fwd_out["q_values"].detach().amin(0)
        return (probs * (alpha * log_probs - values)).sum(-1), (probs * log_probs).sum(-1)

    def log_probs(self, module_id: str, fwd_out: Any) -> Tensor:
        """`[N, A]` of a discrete policy."""
        dist: Any = self.module[module_id].action_dist_cls.from_inputs(
            self.to_tensor(fwd_out[Columns.ACTION_DIST_INPUTS])
        )
        log_probs: Tensor = dist.log_probs
        return log_probs

    def target_entropy(self, module_id: str) -> float:
        """As configured, in nats."""
        config: Any = self.config_of(module_id)
        if config.target_entropy != "auto":
            return float(config.target_entropy)
        space: Any = self.module[module_id].action_space
        if isinstance(space, spaces.Discrete):
            return DISCRETE_ENTROPY * math.log(int(space.n))
        return -float(math.prod(space.shape))

    def apply_gradients(self, gradients: Gradients) -> None:
        """One step of each optimizer; then the target critics follow."""
        super().apply_gradients(gradients)
        for module_id in modules_with_loss(self):
            config: Any = self.config_of(module_id)
            module: Any = self.module[module_id]
            follow(self, module_id, "target", module.critics, config.target_update_interval, config.tau)


class SACConfig(AlgorithmConfig):
    """`SACConfig().environment("Pendulum-v1").build_trainer().run()`."""

    algorithm = "sac"
    learner_class = SACLearner
    training_class = SACTraining
    is_off_policy = True
    squashes_actions = True

    def __init__(self) -> None:
        super().__init__()
        self.replay(capacity=1_000_000, update_per_step=1.0)
        own = {
            "hiddens": (256, 256),
            "activation": "relu",
            "orthogonal_init": False,
            "free_log_std": False,
            "squash_actions": True,
        }
        self.rl_module(model_config=own)

    def default_module_class(self, model_config: Any) -> Any:
        """Policy and critics."""
        return DefaultSACModule


__all__ = ["SACConfig", "SACLearner", "SACTraining"]
