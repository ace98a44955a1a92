"""`SoftActorCriticLearner`: critics with soft values, a policy that keeps its entropy, a learned temperature."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, Unpack

import torch
from gymnasium import spaces
from torch import Tensor, nn

from lockstep.algorithms.families.transitions import COLUMNS, actor_and_critics
from lockstep.data.columns import Columns
from lockstep.learner.config import SampledTraining, TrainingOptions
from lockstep.learner.learner import Learner, Outputs
from lockstep.learner.minibatches import TensorColumns
from lockstep.learner.targets import TargetNetwork
from lockstep.state.options import ConfigT, option
from lockstep.state.schedules import ScheduleLike

NOISE, NEXT_NOISE = "action_noise", "next_action_noise"
"""columns: what draws the policy's actions at an observation, and at the one after it"""
DISCRETE_ENTROPY = 0.98
"""share of the highest entropy that "auto" aims at where actions are discrete (Christodoulou 2019)"""


class SoftActorCriticOptions(TrainingOptions, total=False):
    """Options of `SoftActorCriticTraining`."""

    actor_lr: ScheduleLike | None
    critic_lr: ScheduleLike | None
    alpha_lr: ScheduleLike | None
    tau: float
    target_update_interval: int
    alpha: float | Literal["auto"]
    initial_alpha: float
    target_entropy: float | Literal["auto"]


@dataclass
class SoftActorCriticTraining(SampledTraining[ConfigT]):
    """Options that SAC and CQL have in common."""

    lr: ScheduleLike = 3e-4
    """learning rate of all optimizers that have none of their own"""
    actor_lr: ScheduleLike | None = option(None, ge=0, finite=True)
    """of the policy; `None`: `lr`"""
    critic_lr: ScheduleLike | None = option(None, ge=0, finite=True)
    """of the critics; `None`: `lr`"""
    alpha_lr: ScheduleLike | None = option(None, ge=0, finite=True)
    """of the temperature; `None`: `lr`"""
    train_batch_size: int = 256
    tau: float = option(0.005, gt=0, le=1)
    """how far the target critics go towards those that learn, in each update of them"""
    target_update_interval: int = option(1, ge=1)
    """gradient steps between two updates of the target critics"""
    alpha: float | Literal["auto"] = option("auto", ge=0)
    """temperature, the weight of the entropy: a number, or "auto": learned, so that the entropy is `target_entropy`"""
    initial_alpha: float = option(1.0, gt=0)
    """where a learned temperature begins"""
    target_entropy: float | Literal["auto"] = option("auto", finite=True)
    """in nats; "auto": minus the number of action dimensions, or 0.98 of the highest for discrete actions"""

    def __call__(self, **options: Unpack[SoftActorCriticOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options)


Training = TypeVar("Training", bound=SoftActorCriticTraining[Any])


class SoftActorCriticLearner(Learner[Training]):
    """The family of SAC and CQL. Target critics and temperature are part of the learner's state."""

    def setup_module(self, module_id: str) -> None:
        """Make the target critics, `<module id>/target`, and the temperature, `<module id>/log_alpha`."""
        parts = ["critics.is_discrete"] if self.is_discrete(module_id) else ["critics.is_discrete", "sample"]
        self.check_parts(module_id, *parts)
        config = self.config_of(module_id)
        module: Any = self.module[module_id]
        self.register_state(f"{module_id}/target", TargetNetwork(module.critics))
        first = config.initial_alpha if config.alpha == "auto" else config.alpha
        log_alpha = torch.tensor(math.log(first) if first > 0 else -math.inf, dtype=self.dtype, device=self.device)
        self.register_state(f"{module_id}/log_alpha", nn.Parameter(log_alpha, requires_grad=config.alpha == "auto"))

    def configure_optimizers_for_module(self, module_id: str, config: Training) -> None:
        """Register "actor", "critic" and, where the temperature is learned, "alpha"."""
        actor, critics = actor_and_critics(self.module[module_id])
        for name, params, lr in (("actor", actor, config.actor_lr), ("critic", critics, config.critic_lr)):
            self.register_adam(module_id, name, params, config.lr if lr is None else lr, config.adam_epsilon)
        if config.alpha == "auto":
            lr = config.lr if config.alpha_lr is None else config.alpha_lr
            self.register_adam(module_id, "alpha", [self.registered[f"{module_id}/log_alpha"]], lr, config.adam_epsilon)

    def required_columns(self, module_id: str) -> tuple[str, ...]:
        """Return what the loss reads (`discounts` and `weights` only where they are there)."""
        return COLUMNS

    def noise_columns(self, module_id: str) -> dict[str, int]:
        """Return, for a Box, the random numbers of two actions for each row."""
        if self.is_discrete(module_id):
            return {}
        return dict.fromkeys((NOISE, NEXT_NOISE), self.module[module_id].action_dist_cls.noise_size)

    def after_gradient_step(self) -> None:
        """Let the target critics follow, as `target_update_interval` and `tau` say."""
        for module_id in self.optimizers.module_ids_with_loss():
            config = self.config_of(module_id)
            target: TargetNetwork = self.registered[f"{module_id}/target"]
            target.after_gradient_step(self.optimizers, config.target_update_interval, config.tau)

    def is_discrete(self, module_id: str) -> bool:
        """Return whether actions are choices."""
        return isinstance(self.module[module_id].action_space, spaces.Discrete)

    @torch.no_grad()
    def soft_next_values(self, module_id: str, batch: TensorColumns, alpha: Tensor | float) -> Tensor:
        """Return the soft value `[N]` (Haarnoja et al. 2018, equation 3) of the next observation.

        By the smallest target critic.
        """
        module: Any = self.module[module_id]
        critics = self.registered[f"{module_id}/target"].module
        after = {Columns.OBS: batch[Columns.NEXT_OBS]}
        if NEXT_NOISE in batch:
            actions, logp = module.sample(after, batch[NEXT_NOISE])
            return self.to_tensor(critics(after[Columns.OBS], actions).amin(0)) - alpha * logp
        log_probs = self._log_probs(module_id, module.forward_inference(after))
        values = self.to_tensor(critics(after[Columns.OBS]).amin(0))
        return (log_probs.exp() * (values - alpha * log_probs)).sum(-1)

    def policy_terms(
        self, module_id: str, batch: TensorColumns, fwd_out: Outputs, alpha: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return what each row adds to the policy's loss, and the log-density of its action, `[N]` each.

        Of a discrete policy both are means over all actions.
        """
        module: Any = self.module[module_id]
        if self.is_discrete(module_id):
            log_probs = self._log_probs(module_id, fwd_out)
            probs, values = log_probs.exp(), fwd_out["q_values"].detach().amin(0)
            return (probs * (alpha * log_probs - values)).sum(-1), (probs * log_probs).sum(-1)
        dist = module.action_dist_cls.from_inputs(fwd_out[Columns.ACTION_DIST_INPUTS])
        actions, logp = dist.sample_with_log_prob(batch[NOISE])
        values = self.to_tensor(module.critics(batch[Columns.OBS], actions, frozen=True).amin(0))
        return alpha * logp - values, logp

    def _log_probs(self, module_id: str, outputs: Outputs) -> Tensor:
        """Return `[N, A]` of a discrete policy."""
        dist: Any = self.module[module_id].action_dist_cls.from_inputs(
            self.to_tensor(outputs[Columns.ACTION_DIST_INPUTS])
        )
        return dist.log_probs

    def temperature_loss(self, module_id: str, batch: TensorColumns, neg_entropy: Tensor) -> Tensor | float:
        """Return the loss of a learned temperature (equation 18), 0 of a fixed one; log entropy and temperature."""
        config = self.config_of(module_id)
        log_alpha = self.registered[f"{module_id}/log_alpha"]
        entropy = -self.masked_mean(neg_entropy.detach(), batch)
        self.log(module_id, entropy=entropy, alpha=log_alpha.detach().exp())
        if config.alpha != "auto":
            return 0.0
        missing = neg_entropy.detach() + self.target_entropy(module_id)
        alpha_loss = self.masked_mean(-log_alpha * missing, batch)
        self.log(module_id, alpha_loss=alpha_loss)
        return alpha_loss

    def target_entropy(self, module_id: str) -> float:
        """Return what the entropy is to be, in nats."""
        config = self.config_of(module_id)
        if config.target_entropy != "auto":
            return float(config.target_entropy)
        space: Any = self.module[module_id].action_space
        if isinstance(space, spaces.Discrete):
            return DISCRETE_ENTROPY * math.log(int(space.n))
        return -float(math.prod(space.shape))
