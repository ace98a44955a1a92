"""CrossQ: SAC without target networks (Bhatt et al. 2024, "CrossQ: Batch Normalization in Deep Reinforcement Learning
for Greater Sample Efficiency and Simplicity").

https://openreview.net/forum?id=PczQtTsTIX. The critics normalise their features over the batch. (s, a) and (s', a') are
rows of the same batch, so both are normalised with the same statistics, and targets can come from the learning critics:

    y = r + gamma (min_k Q_k(s', a') - alpha log pi(a' | s')),  without gradient
    minimise  E[sum_k (Q_k(s, a) - y)^2 / 2]                                        (equation 1)

Policy and temperature learn in every third step, from critics with running statistics. Actions are in a Box.

It is not an option of SAC, because SAC's targets and their two options would have no meaning with it, and the network,
the policy delay and five defaults would change with the option.

Defaults: those of the paper and its published code (github.com/adityab/CrossQ): two critics of two layers of 2048
units with ReLU, batch renormalisation (momentum 0.99, running statistics used after 100,000 batches), policy delay 3,
Adam with lr 1e-3 and betas (0.5, 0.999), and 5,000 random steps at the beginning. The rest is as in SAC. There are
three differences: the published code also normalises the features of the policy, trains the policy with critics that
have already made their step, and leaves the betas of the temperature at (0.9, 0.999). Here policy and temperature are
those of SAC, in the same gradient step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, Unpack

import torch
from torch import Tensor

from lockstep.algorithms.families.transitions import (
    NEXT_NOISE,
    POLICY_DELAY,
    RECTIFIED,
    SoftActorCriticLearner,
    SoftActorCriticTraining,
    critic_loss,
    next_inputs,
    td_targets,
)
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.data.columns import Columns
from lockstep.data.trees import map_tree
from lockstep.learner.learner import Outputs
from lockstep.learner.minibatches import TensorColumns
from lockstep.modules import DefaultCrossQModule
from lockstep.options.schedules import ScheduleLike
from lockstep.options.section import ConfigT, option

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import CrossQOptions


@dataclass
class CrossQTraining(SoftActorCriticTraining[ConfigT]):
    """Options of `CrossQConfig.training(...)`."""

    lr: ScheduleLike = 1e-3
    """Learning rate of all optimizers without a learning rate of their own."""
    optimizer_kwargs: dict[str, Any] = option(factory=lambda: {"betas": (0.5, 0.999)})
    policy_delay: int = option(3, ge=1)
    """Number of gradient steps of the critics for each step of the policy and the temperature."""

    def __call__(self, **options: Unpack[CrossQOptions]) -> ConfigT:
        return self.change(options)


class CrossQLearner(SoftActorCriticLearner[CrossQTraining]):
    """The update of CrossQ."""

    has_target_critics = False
    interval_options = (POLICY_DELAY,)

    def compute_loss_for_module(
        self, *, module_id: str, config: CrossQTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the critics' loss (equation 1), plus those of policy and temperature in the steps where they learn."""
        alpha = self.registered[f"{module_id}/log_alpha"].detach().exp()
        with self.mixed_precision():
            values, next_values = self.joint_values(module_id, batch, alpha)
        targets = td_targets(batch, next_values, config.gamma)
        loss = critic_loss(batch, values, targets, module_id=module_id, learner=self)
        if not self.policy_learns(module_id):
            return loss

        with self.mixed_precision():
            policy_terms, neg_entropy = self.policy_terms(module_id, batch, fwd_out, alpha)
        actor_loss = self.masked_mean(policy_terms, batch)
        self.log(module_id, actor_loss=actor_loss)
        return loss + actor_loss + self.temperature_loss(module_id, batch, neg_entropy)

    def joint_values(self, module_id: str, batch: TensorColumns, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values `[K, N]` of the batch's actions, and the soft values `[N]` of the next observations.

        Both are computed as rows of one batch. Its statistics are those of the real rows of all learners.
        """
        module: Any = self.module[module_id]
        mask = batch.get(Columns.LOSS_MASK)
        if mask is not None:  # one half of the joint batch is the observations, the other the next observations
            mask = torch.cat([mask, mask])
        has_rows = self.rows_in_step > 0
        next_batch = next_inputs(batch)
        with torch.no_grad():
            next_actions, next_logp = module.sample(next_batch, batch[NEXT_NOISE])
        values, next_values = module.critics.joint_values(
            (batch[Columns.OBS], batch[Columns.ACTIONS]),
            (next_batch[Columns.OBS], next_actions),
            lambda features: self.reducer.mean_of_rows(features, mask, has_rows),
        )
        return self.to_tensor(values), self.to_tensor(next_values.detach().amin(0)) - alpha * next_logp

    def forward_train(self, batch: dict[str, TensorColumns]) -> dict[str, Outputs]:
        """Return the policy's outputs by module. They are empty in the steps in which the policy does not learn."""
        outputs: dict[str, Outputs] = {}
        with self.mixed_precision():
            for module_id, columns in batch.items():
                learns = self.policy_learns(module_id)
                outputs[module_id] = self.module[module_id].forward_inference(columns) if learns else {}
        return map_tree(self.to_tensor, outputs)

    def num_steps_of(self, module_id: str) -> int:
        """Return the number of steps of a module's critics, which have no target network that counts them."""
        return self.lifetime.get(f"{module_id}/critic_steps", 0)

    def after_gradient_step(self) -> None:
        """Count the steps of the critics that have learned, see `num_steps_of`."""
        for entry in self.optimizers:
            if entry.name == "critic" and entry.has_loss:
                self.count(f"{entry.module_id}/critic_steps", 1)


class CrossQConfig(AlgorithmConfig):
    """`CrossQConfig().environment("Pendulum-v1").build_trainer().run()`."""

    algorithm = "crossq"
    explorations = ("normal", "ou", "gsde")
    learner_class = CrossQLearner
    # The temperature begins with one of these options. A checkpoint contains it, so a resumed run continues with that
    # value and refuses other values of both options.
    first_values = ("alpha", "initial_alpha")
    training_class = CrossQTraining
    module_class = DefaultCrossQModule
    is_off_policy = True
    learns_from_tensors = True
    squashes_actions = True
    training: CrossQTraining[Self]

    def __init__(self) -> None:
        super().__init__()
        self.replay(capacity=1_000_000, learning_starts=5_000, update_per_step=1.0)
        networks = {"critic_hiddens": (2048, 2048), "free_log_std": False, "squash_actions": True}
        self.rl_module(model_config={**RECTIFIED, **networks})
