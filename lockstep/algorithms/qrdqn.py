"""QR-DQN: the distribution of returns as quantiles (Dabney et al. 2018, "Distributional Reinforcement Learning with
Quantile Regression", https://arxiv.org/abs/1710.10044).

For each action the outputs of the network are `num_quantiles` quantiles of the return, at the levels
`(i + 1/2) / num_quantiles`. The best action has the highest mean. The range of the returns need not be known. The
options are those of DQN: double, dueling, n-step returns and prioritised replay.

    minimise  E[sum_i mean_j rho_i(r + gamma theta'_j(s', best) - theta_i(s, a))]     (algorithm 1)

Here rho_i is the quantile Huber loss at level i (equation 10).

Defaults: kappa 1 as in the paper's QR-DQN-1; 50 quantiles in place of its 200, for tasks without images.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, Unpack

from torch import Tensor

from lockstep.algorithms.families.q_learning import ActionValueTraining, QLearner, outputs_of_actions
from lockstep.algorithms.families.transitions import discounts_of
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.data.columns import Columns
from lockstep.learner.learner import Outputs
from lockstep.learner.minibatches import TensorColumns
from lockstep.modules import DistributionalQModule, ModelConfig
from lockstep.ops import quantile_huber_loss
from lockstep.options.section import ConfigT, option

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import QRDQNOptions


@dataclass
class QRDQNTraining(ActionValueTraining[ConfigT]):
    """Options of `QRDQNConfig.training(...)`."""

    num_quantiles: int = option(50, ge=2)
    """Number of quantiles of each action's return."""
    kappa: float = option(1.0, ge=0)
    """Size of an error above which the loss is linear and no longer quadratic. 0 makes it always linear."""

    def __call__(self, **options: Unpack[QRDQNOptions]) -> ConfigT:
        return self.change(options)


class QRDQNLearner(QLearner[QRDQNTraining]):
    """The update of QR-DQN."""

    required_parts = ("value_outputs", "masked", "mean_values")

    def compute_loss_for_module(
        self, *, module_id: str, config: QRDQNTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the quantile Huber loss between the quantiles of `Q(s, a)` and of `r + gamma Q'(s', best)`."""
        quantiles = outputs_of_actions(fwd_out["value_outputs"], batch[Columns.ACTIONS])
        next_quantiles = self.best_next_outputs(module_id, batch)
        discounts = discounts_of(batch, config.gamma, quantiles.dtype)
        targets = batch[Columns.REWARDS].unsqueeze(-1) + discounts.unsqueeze(-1) * next_quantiles
        row_losses = quantile_huber_loss(quantiles, targets, kappa=config.kappa)

        # The error of the means is the priority of a transition.
        means = quantiles.detach().mean(-1)
        self.log(module_id, q_mean=self.masked_mean(means, batch))
        return self.weighted_loss(module_id, batch, row_losses, errors=means - targets.mean(-1))


class QRDQNConfig(AlgorithmConfig):
    """`QRDQNConfig().environment("CartPole-v1").build_trainer().run()`."""

    algorithm = "qrdqn"
    explorations = ("epsilon", "noisy")
    learner_class = QRDQNLearner
    # The shape of the network depends on it, and checkpoints contain the network: a resumed run refuses another value.
    first_values = ("num_quantiles",)
    training_class = QRDQNTraining
    module_class = DistributionalQModule
    is_off_policy = True
    learns_from_tensors = True
    training: QRDQNTraining[Self]

    def complete_model_config(self, model_config: ModelConfig) -> ModelConfig:
        """Add the number of quantiles to the configuration of the network."""
        completed = super().complete_model_config(model_config)
        return replace(completed, num_value_outputs=self.training.num_quantiles, value_range=None)
