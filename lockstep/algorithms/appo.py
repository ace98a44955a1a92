"""APPO: asynchronous proximal policy optimisation (IMPACT: Luo et al. 2020, https://arxiv.org/abs/1912.00167).

It combines IMPALA's corrected advantages with PPO's clipped surrogate. The surrogate keeps the policy near a target
network, which is updated every few updates of the policy: the policies that acted may differ in age, so none of them
could take this place.

    ratio = pi(a | s) / max(pi_target(a | s), pi_acted(a | s) / rho)                      (equation 4)
    maximise  E[min(ratio A, clip(ratio, 1 - epsilon, 1 + epsilon) A)],  A from V-trace   (algorithm 1)

Defaults: clip 0.4, limit rho of 2, update of the target network after every second update; value loss, entropy,
gradient norm and learning rate as in IMPALA; Adam.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

import torch
from torch import Tensor

from lockstep.algorithms.families.on_policy import OnPolicyLearner, VTraceTraining
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
class APPOTraining(VTraceTraining[ConfigT]):
    """Options of `APPOConfig.training(...)`."""

    clip_param: ScheduleLike = option(0.4, gt=0)
    """Epsilon of the clipped surrogate."""
    target_worker_clipping: float = option(2.0, ge=1)
    """Upper limit of the ratio between the policy that acted and the target network (the paper's rho)."""
    use_kl_loss: bool = False
    """Penalise the KL divergence from the target network."""
    kl_coeff: float = option(1.0, ge=0)
    """Initial coefficient of the adaptive KL penalty."""
    kl_target: float = option(0.01, gt=0)
    """KL divergence that the adaptive penalty aims at."""
    target_network_update_freq: int = option(2, ge=1)
    """Number of updates from one update of the target network to the next."""
    tau: float = option(1.0, gt=0, le=1)
    """Share of the way that an update moves the target network towards the learning network. 1 copies it."""

    def __call__(self, **options: Unpack[APPOOptions]) -> ConfigT:
        return self.change(options)


class APPOLearner(OnPolicyLearner[APPOTraining]):
    """The update of APPO."""

    scheduled = ("clip_param", "entropy_coeff")

    def setup_module(self, module_id: str) -> None:
        """Make the target network and the coefficient of the KL penalty, which are part of the learner's state."""
        super().setup_module(module_id)
        self.register_state(f"{module_id}/target", TargetNetwork(self.module[module_id]))
        config = self.config_of(module_id)
        initial = torch.tensor(config.kl_coeff, dtype=self.dtype, device=self.device)
        self.register_state(f"{module_id}/kl_coeff", initial)

    def required_columns(self, module_id: str) -> tuple[str, ...]:
        names = (Columns.OBS, Columns.ACTIONS, Columns.ACTION_LOGP, Columns.ADVANTAGES, Columns.VALUE_TARGETS)
        config = self.config_of(module_id)
        return (*names, Columns.ACTION_DIST_INPUTS) if config.use_kl_loss else names

    def prepare_batch(self, trajectories: Trajectories, *, module_id: str) -> TensorColumns:
        """Return the columns of a rollout with advantages and value targets by V-trace towards the target network."""
        config = self.config_of(module_id)
        evaluated = self.evaluate(module_id, trajectories)
        target = self.registered[f"{module_id}/target"].module
        target_inputs = self.dist_inputs_of(target, trajectories, evaluated)
        dist_cls = self.module[module_id].action_dist_cls
        target_logp = dist_cls.from_inputs(target_inputs).log_prob(evaluated.actions)
        advantages, value_targets = self.vtrace_advantages(
            module_id, trajectories, evaluated, target_logp=target_logp, weighted=True
        )
        # The denominator of equation 4. It limits the weight of actions that the target network finds much less likely
        # than the policy that acted.
        # An example with the limit 2: for a probability of 0.4 when acting, the denominator is at least 0.2.
        floor = evaluated.old_logp - math.log(config.target_worker_clipping)
        columns = {
            Columns.OBS: evaluated.obs,
            Columns.ACTIONS: evaluated.actions,
            Columns.ACTION_LOGP: torch.maximum(target_logp, floor),
            Columns.ADVANTAGES: advantages,
            Columns.VALUE_TARGETS: value_targets,
        }
        if config.use_kl_loss:
            columns[Columns.ACTION_DIST_INPUTS] = target_inputs
        return self.rows_to_train(columns, evaluated, trajectories)

    def compute_loss_for_module(
        self, *, module_id: str, config: APPOTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the loss of algorithm 1: clipped surrogate around the target network, value error and entropy bonus.

        A KL penalty is optional.
        """
        dist_cls = self.module[module_id].action_dist_cls
        dist = dist_cls.from_inputs(fwd_out[Columns.ACTION_DIST_INPUTS])
        logp = dist.log_prob(batch[Columns.ACTIONS])
        target_logp = batch[Columns.ACTION_LOGP]

        clip_param = self.coefficient(module_id, "clip_param")
        surrogate = clipped_surrogate_loss(logp, target_logp, batch[Columns.ADVANTAGES], clip_param=clip_param)
        clipped = clipped_ratios(logp.detach(), target_logp, clip_param)
        policy_loss, clip_fraction = self.masked_means((surrogate, clipped), batch)
        value_error = 0.5 * (fwd_out[Columns.VF_PREDS] - batch[Columns.VALUE_TARGETS]).square()
        vf_loss = self.masked_mean(value_error, batch)
        entropy = self.masked_mean(dist.entropy(), batch)
        loss = policy_loss + config.vf_loss_coeff * vf_loss - self.coefficient(module_id, "entropy_coeff") * entropy
        self.log(module_id, policy_loss=policy_loss, vf_loss=vf_loss, entropy=entropy, clip_fraction=clip_fraction)

        # The surrogate alone bounds single ratios, not the distance of the whole distribution.
        if config.use_kl_loss:
            target_dist = dist_cls.from_inputs(batch[Columns.ACTION_DIST_INPUTS])
            mean_kl = self.masked_mean(target_dist.kl(dist), batch)
            loss = loss + self.registered[f"{module_id}/kl_coeff"] * mean_kl
            self.log(module_id, mean_kl_loss=mean_kl)
        return loss

    def after_gradient_based_update(self, *, timesteps: Mapping[str, int] | None = None) -> None:
        """Update the target networks, and adapt the coefficients of the KL penalties."""
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
    # The learner adapts the coefficient, and checkpoints contain it: a resumed run refuses another first value.
    first_values = ("kl_coeff",)
    training_class = APPOTraining
    learns_from_tensors = True
    is_asynchronous = True
    training: APPOTraining[Self]
