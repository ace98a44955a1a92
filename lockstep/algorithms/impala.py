"""IMPALA: importance weighted actor-learner architecture (Espeholt et al. 2018, https://arxiv.org/abs/1802.01561).

The learning policy may be some updates ahead of the policy mu that acted. V-trace corrects for the difference:

    rho = min(rho_bar, pi(a | s) / mu(a | s))                                             importance weight
    maximise  E[rho (r + gamma v' - V(s)) log pi(a | s)],  v' the next V-trace target     (section 4.2)

Value targets and advantages are computed once for each update, with its initial parameters. The importance weight of
the policy gradient is computed with the parameters of each gradient step. With one gradient step per update, which is
the default, this is the paper's algorithm.

Defaults: value loss 0.5, entropy 0.01 and gradient norm 40 (table D.3); Adam in place of RMSprop.
"""

from __future__ import annotations

from typing import Any, Self

from torch import Tensor

from lockstep.algorithms.families.on_policy import OnPolicyLearner, VTraceTraining
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.data.columns import Columns
from lockstep.data.trajectories import Trajectories
from lockstep.learner.learner import Outputs
from lockstep.learner.minibatches import TensorColumns


class IMPALALearner(OnPolicyLearner[VTraceTraining[Any]]):
    """The update of IMPALA."""

    scheduled = ("entropy_coeff",)

    def required_columns(self, module_id: str) -> tuple[str, ...]:
        names = (Columns.OBS, Columns.ACTIONS, Columns.ADVANTAGES, Columns.VALUE_TARGETS)
        config = self.config_of(module_id)
        return (*names, Columns.ACTION_LOGP) if config.vtrace else names

    def prepare_batch(self, trajectories: Trajectories, *, module_id: str) -> TensorColumns:
        """Return the columns of a rollout with V-trace targets and advantages (section 4.1)."""
        config = self.config_of(module_id)
        evaluated = self.evaluate(module_id, trajectories)
        advantages, value_targets = self.vtrace_advantages(module_id, trajectories, evaluated)
        columns = {
            Columns.OBS: evaluated.obs,
            Columns.ACTIONS: evaluated.actions,
            Columns.ADVANTAGES: advantages,
            Columns.VALUE_TARGETS: value_targets,
        }
        if config.vtrace:
            columns[Columns.ACTION_LOGP] = evaluated.old_logp
        return self.rows_to_train(columns, evaluated, trajectories)

    def compute_loss_for_module(
        self, *, module_id: str, config: VTraceTraining[Any], batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the loss of section 4.2: policy gradient with importance weights, value error and entropy bonus."""
        dist = self.module[module_id].action_dist_cls.from_inputs(fwd_out[Columns.ACTION_DIST_INPUTS])
        logp = dist.log_prob(batch[Columns.ACTIONS])
        advantages = batch[Columns.ADVANTAGES]
        if config.vtrace:
            # A constant weight: the gradient flows through log pi only.
            ratios = (logp.detach() - batch[Columns.ACTION_LOGP]).exp()
            self.log(module_id, mean_importance_weight=self.masked_mean(ratios, batch))
            limit = config.vtrace_clip_pg_rho_threshold
            weights = ratios if limit is None else ratios.clamp(max=limit)
            advantages = weights * advantages

        policy_loss = -self.masked_mean(logp * advantages, batch)
        value_error = 0.5 * (fwd_out[Columns.VF_PREDS] - batch[Columns.VALUE_TARGETS]).square()
        vf_loss = self.masked_mean(value_error, batch)
        entropy = self.masked_mean(dist.entropy(), batch)
        self.log(module_id, policy_loss=policy_loss, vf_loss=vf_loss, entropy=entropy)
        return policy_loss + config.vf_loss_coeff * vf_loss - self.coefficient(module_id, "entropy_coeff") * entropy


class IMPALAConfig(AlgorithmConfig):
    """`IMPALAConfig().environment("CartPole-v1").build_trainer().run()`."""

    algorithm = "impala"
    learner_class = IMPALALearner
    training_class = VTraceTraining
    learns_from_tensors = True
    is_asynchronous = True
    training: VTraceTraining[Self]
