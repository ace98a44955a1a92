"""APPO: asynchronous proximal policy optimisation (IMPACT: Luo et al. 2020, https://arxiv.org/abs/1912.00167).

IMPALA's corrected advantages with PPO's clipped surrogate. The surrogate stays near a target network, which follows
every few updates: those that acted may be older, each by another number of updates.

Defaults: clip 0.4, limit 2 of the weight between the one who acted and the target network, target network at every
second update; value loss, entropy, gradient norm and learning rate as in IMPALA. Adam.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

import torch
from torch import Tensor

from lockstep.algorithms.families.on_policy import CorrectedTraining, OnPolicyLearner
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.data.columns import Columns
from lockstep.data.trajectories import Trajectories
from lockstep.learner.learner import Outputs
from lockstep.learner.minibatches import TensorColumns
from lockstep.learner.targets import TargetNetwork
from lockstep.ops import clipped_ratios, clipped_surrogate_loss
from lockstep.options.schedules import ScheduleLike
from lockstep.options.section import ConfigT, option

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import APPOOptions


@dataclass
class APPOTraining(CorrectedTraining[ConfigT]):
    """Options of `APPOConfig.training(...)`."""

    clip_param: ScheduleLike = option(0.4, gt=0)
    """epsilon of the clipped surrogate"""
    target_worker_clipping: float = option(2.0, ge=1)
    """upper limit of the ratio between the policy that acted and the target network (the paper's rho)"""
    use_kl_loss: bool = False
    """penalise the KL divergence from the target network"""
    kl_coeff: float = option(1.0, ge=0)
    """start of the adaptive penalty"""
    kl_target: float = option(0.01, gt=0)
    """the penalty's target"""
    target_network_update_freq: int = option(2, ge=1)
    """updates between two of the target network"""
    tau: float = option(1.0, gt=0, le=1)
    """how far an update takes the target network towards the one that learns; 1: all the way"""

    def __call__(self, **options: Unpack[APPOOptions]) -> ConfigT:
        return self.change(options)


class APPOLearner(OnPolicyLearner[APPOTraining]):
    """The update of APPO."""

    scheduled = ("clip_param", "entropy_coeff")

    def setup_module(self, module_id: str) -> None:
        """Make the target network and the coefficient of the KL penalty parts of the state."""
        super().setup_module(module_id)
        self.register_state(f"{module_id}/target", TargetNetwork(self.module[module_id]))
        config = self.config_of(module_id)
        start = torch.tensor(config.kl_coeff, dtype=self.dtype, device=self.device)
        self.register_state(f"{module_id}/kl_coeff", start)

    def required_columns(self, module_id: str) -> tuple[str, ...]:
        names = (Columns.OBS, Columns.ACTIONS, Columns.ACTION_LOGP, Columns.ADVANTAGES, Columns.VALUE_TARGETS)
        config = self.config_of(module_id)
        return (*names, Columns.ACTION_DIST_INPUTS) if config.use_kl_loss else names

    def prepare_batch(self, trajectories: Trajectories, *, module_id: str) -> TensorColumns:
        """Return V-trace from the policy that acted to the target network, and what to compare with."""
        config = self.config_of(module_id)
        rollout = self.evaluate(module_id, trajectories)
        target = self.registered[f"{module_id}/target"].module
        target_inputs = self.inputs_under(target, trajectories, rollout)
        dist_cls = self.module[module_id].action_dist_cls
        target_logp = dist_cls.from_inputs(target_inputs).log_prob(rollout.actions)
        advantages, value_targets = self.correct(
            module_id, trajectories, rollout, target_logp=target_logp, weighted=True
        )
        # Equation 4: new / max(target, acted / limit), so that one who acted far from the target weighs no more.
        floor = rollout.old_logp - math.log(config.target_worker_clipping)
        columns = {
            Columns.OBS: rollout.obs,
            Columns.ACTIONS: rollout.actions,
            Columns.ACTION_LOGP: torch.maximum(target_logp, floor),
            Columns.ADVANTAGES: advantages,
            Columns.VALUE_TARGETS: value_targets,
        }
        if config.use_kl_loss:
            columns[Columns.ACTION_DIST_INPUTS] = target_inputs
        return self.rows_to_train(columns, rollout, trajectories)

    def compute_loss_for_module(
        self, *, module_id: str, config: APPOTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the clipped surrogate around the target network (algorithm 1), value error, entropy, KL penalty."""
        dist_cls = self.module[module_id].action_dist_cls
        dist = dist_cls.from_inputs(fwd_out[Columns.ACTION_DIST_INPUTS])
        logp, target_logp = dist.log_prob(batch[Columns.ACTIONS]), batch[Columns.ACTION_LOGP]
        clip_param = self.coefficient(module_id, "clip_param")
        surrogate = clipped_surrogate_loss(logp, target_logp, batch[Columns.ADVANTAGES], clip_param=clip_param)
        clipped = clipped_ratios(logp.detach(), target_logp, clip_param)
        policy_loss, clip_fraction = self.masked_means((surrogate, clipped), batch)
        value_error = 0.5 * (fwd_out[Columns.VF_PREDS] - batch[Columns.VALUE_TARGETS]).square()
        vf_loss = self.masked_mean(value_error, batch)
        entropy = self.masked_mean(dist.entropy(), batch)
        loss = policy_loss + config.vf_loss_coeff * vf_loss - self.coefficient(module_id, "entropy_coeff") * entropy
        self.log(module_id, policy_loss=policy_loss, vf_loss=vf_loss, entropy=entropy, clip_fraction=clip_fraction)
        if config.use_kl_loss:
            target = dist_cls.from_inputs(batch[Columns.ACTION_DIST_INPUTS])
            mean_kl = self.masked_mean(target.kl(dist), batch)
            loss = loss + self.registered[f"{module_id}/kl_coeff"] * mean_kl
            self.log(module_id, mean_kl_loss=mean_kl)
        return loss

    def after_gradient_based_update(self, *, timesteps: Mapping[str, int] | None = None) -> None:
        """Let target networks follow, and KL penalties adapt."""
        for module_id in self.learning_modules():
            config = self.config_of(module_id)
            if config.use_kl_loss:
                self.adapt_kl_coefficient(module_id, config.kl_target)
            target: TargetNetwork = self.registered[f"{module_id}/target"]
            target.after_gradient_step(self.optimizers, config.target_network_update_freq, config.tau)


class APPOConfig(AlgorithmConfig):
    """`APPOConfig().environment("CartPole-v1").build_trainer().run()`."""

    algorithm = "appo"
    learner_class = APPOLearner
    first_values = ("kl_coeff",)
    training_class = APPOTraining
    is_asynchronous = True
    training: APPOTraining[Self]
