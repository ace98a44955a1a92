"""A2C: synchronous advantage actor-critic (Mnih et al. 2016, https://arxiv.org/abs/1602.01783).

    A_t = r_t + gamma r_t+1 + ... + gamma^n V(s_t+n) - V(s_t)
    maximise  E[A log pi(a | s)] - c1 E[A^2 / 2] + c2 E[entropy of pi(. | s)]           (algorithm S3)

Defaults: 5 steps of each environment, one gradient step on the whole batch, entropy 0.01, gradient norm 0.5. Adam with
lr 7e-4 replaces the paper's RMSprop. GAE with lambda 1 is the paper's n-step advantage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

from torch import Tensor

from lockstep.algorithms.families.on_policy import OnPolicyLearner
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.data.columns import Columns
from lockstep.data.trajectories import Trajectories
from lockstep.learner.config import TrainingSection
from lockstep.learner.learner import Outputs
from lockstep.learner.minibatches import TensorColumns
from lockstep.options.schedules import ScheduleLike
from lockstep.options.section import ConfigT, option

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import A2COptions


@dataclass
class A2CTraining(TrainingSection[ConfigT]):
    """Options of `A2CConfig.training(...)`."""

    lr: ScheduleLike = 7e-4
    train_batch_size: int = 40
    grad_clip: float | None = 0.5
    adam_epsilon: float = 1e-5
    lambda_: float = option(1.0, ge=0, le=1)
    """Lambda of GAE. 1 gives n-step advantages."""
    vf_loss_coeff: float = option(0.5, ge=0)
    """Weight of the value loss."""
    entropy_coeff: ScheduleLike = 0.01
    """Weight of the entropy bonus. 0 gives no bonus."""
    normalize_advantages: bool = False
    """Normalise the advantages of a batch to mean 0 and standard deviation 1."""

    def __call__(self, **options: Unpack[A2COptions]) -> ConfigT:
        return self.change(options)


class A2CLearner(OnPolicyLearner[A2CTraining]):
    """The update of A2C."""

    scheduled = ("entropy_coeff",)

    def required_columns(self, module_id: str) -> tuple[str, ...]:
        return (Columns.OBS, Columns.ACTIONS, Columns.ADVANTAGES, Columns.VALUE_TARGETS)

    def prepare_batch(self, trajectories: Trajectories, *, module_id: str) -> TensorColumns:
        """Return the columns of a rollout with its advantages and value targets."""
        evaluated = self.evaluate(module_id, trajectories)
        advantages, targets = self.generalized_advantages(module_id, trajectories, evaluated)
        columns = {
            Columns.OBS: evaluated.obs,
            Columns.ACTIONS: evaluated.actions,
            Columns.ADVANTAGES: advantages,
            Columns.VALUE_TARGETS: targets,
        }
        return self.rows_to_train(columns, evaluated, trajectories)

    def compute_loss_for_module(
        self, *, module_id: str, config: A2CTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the loss of algorithm S3: policy gradient, squared value error and entropy bonus."""
        dist = self.module[module_id].action_dist_cls.from_inputs(fwd_out[Columns.ACTION_DIST_INPUTS])
        advantages = batch[Columns.ADVANTAGES]
        if config.normalize_advantages:
            advantages = self.normalized(advantages, batch)

        policy_loss = -self.masked_mean(dist.log_prob(batch[Columns.ACTIONS]) * advantages, batch)
        value_error = 0.5 * (fwd_out[Columns.VF_PREDS] - batch[Columns.VALUE_TARGETS]).square()
        vf_loss = self.masked_mean(value_error, batch)
        entropy = self.masked_mean(dist.entropy(), batch)
        self.log(module_id, policy_loss=policy_loss, vf_loss=vf_loss, entropy=entropy)
        return policy_loss + config.vf_loss_coeff * vf_loss - self.coefficient(module_id, "entropy_coeff") * entropy


class A2CConfig(AlgorithmConfig):
    """`A2CConfig().environment("CartPole-v1").build_trainer().run()`."""

    algorithm = "a2c"
    explorations = ("gsde",)
    learns_from_tensors = True
    learner_class = A2CLearner
    training_class = A2CTraining
    training: A2CTraining[Self]
