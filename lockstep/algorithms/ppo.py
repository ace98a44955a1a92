"""PPO: proximal policy optimisation (Schulman et al. 2017, https://arxiv.org/abs/1707.06347).

Defaults: the paper's for continuous control (table 3: 2048 steps, minibatches of 64, 10 epochs, lr 3e-4, gamma 0.99,
lambda 0.95, clip 0.2), gradient norm 0.5 and Adam epsilon 1e-5 as in the reference code ("The 37 implementation
details of PPO", Huang et al. 2022, details 3 and 11), advantages normalised per minibatch (detail 7). With memory a
minibatch has 8 sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Literal, Self, Unpack

import torch
from torch import Tensor

from lockstep.algorithms.families.on_policy import OnPolicyLearner
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.data.columns import Columns
from lockstep.data.trajectories import Trajectories
from lockstep.learner.config import TrainingSection
from lockstep.learner.learner import Outputs
from lockstep.learner.minibatches import TensorColumns
from lockstep.ops import approximate_kl, clipped_ratios, clipped_surrogate_loss, clipped_value_loss
from lockstep.options.schedules import ScheduleLike
from lockstep.options.section import ConfigT, option

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import PPOOptions


@dataclass
class PPOTraining(TrainingSection[ConfigT]):
    """Options of `PPOConfig.training(...)`."""

    minibatch_size: int | Literal["auto"] | None = "auto"
    num_epochs: int = 10
    grad_clip: float | None = 0.5
    adam_epsilon: float = 1e-5
    lambda_: float = option(0.95, ge=0, le=1)
    """lambda of GAE (Schulman et al. 2016)"""
    clip_param: ScheduleLike = option(0.2, gt=0)
    """epsilon of the clipped surrogate, equation 7"""
    vf_clip_param: float | None = option(None, gt=0)
    """the new value may move this far from the old one; `None`: no clipping"""
    vf_loss_coeff: float = option(0.5, ge=0)
    """how much the value error counts beside the policy's loss"""
    entropy_coeff: ScheduleLike = 0.0
    """how much the entropy is rewarded; 0: not at all"""
    normalize_advantages: Literal["minibatch", "batch"] | None = "minibatch"
    """over which rows advantages are shifted and scaled to mean 0 and deviation 1; `None`: not at all"""
    dual_clip: float | None = option(None, gt=1)
    """lower bound of the surrogate at negative advantages, as a multiple (Ye et al. 2020, equation 5)"""
    target_kl: float | None = option(None, gt=0)
    """stop the passes of an update when the mean KL of a pass exceeds this"""
    kl_coeff: float = option(0.0, ge=0)
    """start of the adaptive KL penalty (equation 8); 0: no penalty"""
    kl_target: float = option(0.01, gt=0)
    """the penalty's target"""

    def __call__(self, **options: Unpack[PPOOptions]) -> ConfigT:
        return self.change(options)


class PPOLearner(OnPolicyLearner[PPOTraining]):
    """The update of PPO."""

    scheduled = ("clip_param", "entropy_coeff")
    loss_has_kernel = True

    def setup_module(self, module_id: str) -> None:
        """Make the coefficient of the KL penalty a part of the state."""
        super().setup_module(module_id)
        start = torch.tensor(self.config_of(module_id).kl_coeff, dtype=self.dtype, device=self.device)
        self.register_state(f"{module_id}/kl_coeff", start)

    def required_columns(self, module_id: str) -> tuple[str, ...]:
        config = self.config_of(module_id)
        names = [Columns.OBS, Columns.ACTIONS, Columns.ACTION_LOGP, Columns.ADVANTAGES, Columns.VALUE_TARGETS]
        if config.vf_clip_param is not None:
            names.append(Columns.VF_PREDS)
        if config.kl_coeff > 0:
            names.append(Columns.ACTION_DIST_INPUTS)
        return tuple(names)

    def prepare_batch(self, trajectories: Trajectories, *, module_id: str) -> TensorColumns:
        """Return advantages and value targets of a rollout, computed once, and what the policy that acted gave."""
        config = self.config_of(module_id)
        rollout = self.evaluate(module_id, trajectories)
        advantages, targets = self.generalized_advantages(module_id, trajectories, rollout)
        columns = {
            Columns.OBS: rollout.obs,
            Columns.ACTIONS: rollout.actions,
            Columns.ACTION_LOGP: rollout.old_logp,
            Columns.ADVANTAGES: advantages,
            Columns.VALUE_TARGETS: targets,
        }
        if config.vf_clip_param is not None:
            columns[Columns.VF_PREDS] = rollout.old_values
        if config.kl_coeff > 0:
            columns[Columns.ACTION_DIST_INPUTS] = rollout.old_dist_inputs
        columns = self.rows_to_train(columns, rollout, trajectories)
        if config.normalize_advantages == "batch":
            columns[Columns.ADVANTAGES] = self.normalized(columns[Columns.ADVANTAGES], columns)
        return columns

    def compute_loss_for_module(
        self, *, module_id: str, config: PPOTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return equation 9: clipped surrogate, value loss, entropy bonus; all means over the global minibatch."""
        dist_cls = self.module[module_id].action_dist_cls
        dist = dist_cls.from_inputs(fwd_out[Columns.ACTION_DIST_INPUTS])
        logp, old_logp = dist.log_prob(batch[Columns.ACTIONS]), batch[Columns.ACTION_LOGP]
        advantages = batch[Columns.ADVANTAGES]
        if config.normalize_advantages == "minibatch":
            advantages = self.normalized(advantages, batch)

        clip_param = self.coefficient(module_id, "clip_param")
        surrogate = clipped_surrogate_loss(
            logp, old_logp, advantages, clip_param=clip_param, dual_clip=config.dual_clip
        )
        old_values = batch.get(Columns.VF_PREDS)
        value_error = clipped_value_loss(
            fwd_out[Columns.VF_PREDS], batch[Columns.VALUE_TARGETS], old_values, config.vf_clip_param
        )
        kl = approximate_kl(logp.detach(), old_logp)
        clipped = clipped_ratios(logp.detach(), old_logp, clip_param)
        rows = (surrogate, value_error, dist.entropy(), kl, clipped)
        policy_loss, vf_loss, entropy, mean_kl, clip_fraction = self.masked_means(rows, batch)
        loss = policy_loss + config.vf_loss_coeff * vf_loss - self.coefficient(module_id, "entropy_coeff") * entropy

        if config.kl_coeff > 0:
            old = dist_cls.from_inputs(batch[Columns.ACTION_DIST_INPUTS])
            mean_kl = self.masked_mean(old.kl(dist), batch)
            loss = loss + self.registered[f"{module_id}/kl_coeff"] * mean_kl
        self.log(
            module_id,
            policy_loss=policy_loss,
            vf_loss=vf_loss,
            entropy=entropy,
            mean_kl_loss=mean_kl,
            clip_fraction=clip_fraction,
        )
        return loss

    def should_stop_passes(self) -> bool | Tensor:
        """Return whether the mean KL of the last pass is above `target_kl`."""
        limits = {module_id: self.config_of(module_id).target_kl for module_id in self.learning_modules()}
        above = [
            self.metrics.pass_mean(module_id, "mean_kl_loss") > limit
            for module_id, limit in limits.items()
            if limit is not None
        ]
        return reduce(torch.logical_or, above) if above else False

    def after_gradient_based_update(self, *, timesteps: Mapping[str, int] | None = None) -> None:
        """Adapt the KL penalty (section 4)."""
        for module_id in self.learning_modules():
            config = self.config_of(module_id)
            if config.kl_coeff > 0:
                self.adapt_kl_coefficient(module_id, config.kl_target)


class PPOConfig(AlgorithmConfig):
    """`PPOConfig().environment("CartPole-v1").training(lr=3e-4).build_trainer().run()`."""

    algorithm = "ppo"
    explorations = ("gsde",)
    learns_from_tensors = True
    learner_class = PPOLearner
    first_values = ("kl_coeff",)
    training_class = PPOTraining
    training: PPOTraining[Self]
