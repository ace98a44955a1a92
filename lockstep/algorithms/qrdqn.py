"""QR-DQN: the distribution of returns as quantiles (Dabney et al. 2018, "Distributional Reinforcement Learning with
Quantile Regression", https://arxiv.org/abs/1710.10044).

The network gives for each action `num_quantiles` returns, that of the levels `(i + 1/2) / num_quantiles`; actions are
judged by their means. No range has to be known. Options as DQN's: double, dueling, n-step returns and prioritised
replay.

Defaults: kappa 1 as the paper's QR-DQN-1; its 200 quantiles are shortened to 50, what tasks without images need.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, Unpack

from torch import Tensor

from lockstep.algorithms.families.q_learning import ActionValueTraining, QLearner, of_actions
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
    """numbers that stand for the distribution of an action's return"""
    kappa: float = option(1.0, ge=0)
    """errors count by their square up to here, and linearly beyond; 0: always linearly"""

    def __call__(self, **options: Unpack[QRDQNOptions]) -> ConfigT:
        return self.change(options)


class QRDQNLearner(QLearner[QRDQNTraining]):
    """The update of QR-DQN."""

    parts = ("value_outputs", "masked", "mean_values")

    def compute_loss_for_module(
        self, *, module_id: str, config: QRDQNTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """The quantile Huber loss of the quantiles of `Q(s, a)` against those of `r + gamma Q'(s', best)`."""
        quantiles = of_actions(fwd_out["value_outputs"], batch[Columns.ACTIONS])
        following = self.best_next_outputs(module_id, batch)
        discounts = discounts_of(batch, config.gamma, quantiles.dtype)
        targets = batch[Columns.REWARDS].unsqueeze(-1) + discounts.unsqueeze(-1) * following
        each = quantile_huber_loss(quantiles, targets, kappa=config.kappa)
        means = quantiles.detach().mean(-1)
        self.log(module_id, q_mean=self.masked_mean(means, batch))
        return self.mean_of_rows(module_id, batch, each, means - targets.mean(-1))


class QRDQNConfig(AlgorithmConfig):
    """`QRDQNConfig().environment("CartPole-v1").build_trainer().run()`."""

    algorithm = "qrdqn"
    explorations = ("epsilon", "noisy")
    learner_class = QRDQNLearner
    first_values = ("num_quantiles",)
    training_class = QRDQNTraining
    module_class = DistributionalQModule
    is_off_policy = True
    learns_from_tensors = True
    training: QRDQNTraining[Self]

    def complete_model_config(self, model_config: ModelConfig) -> ModelConfig:
        """The quantiles."""
        completed = super().complete_model_config(model_config)
        return replace(completed, num_value_outputs=self.training.num_quantiles, value_range=None)
