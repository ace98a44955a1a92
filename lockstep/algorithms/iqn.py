"""IQN: the distribution of returns, at any quantile (Dabney et al. 2018, "Implicit Quantile Networks for Distributional
Reinforcement Learning", https://arxiv.org/abs/1806.06923).

The quantile level in [0, 1] is an input of the network, whose output is the quantile of the return. Each gradient step
draws new levels from a random stream of the learner. The best action has the highest mean (a risk-neutral policy). When
acting, the midpoints of `num_policy_quantiles` equal intervals replace the random levels, so that equal observations
give equal actions. The options are those of DQN: double, dueling, n-step returns and prioritised replay.

    delta_ij = r + gamma Z_tau'_j(s', best) - Z_tau_i(s, a)             (equation 2)
    minimise  E[sum_i mean_j rho_tau_i(delta_ij)]                       (equation 3)

Here rho is the quantile Huber loss, tau_i and tau'_j are random levels.

Defaults: 64 cosines, K of 32 and kappa 1 as in the paper (section 3.2 and appendix); N and N' are 8 in place of the
paper's 64, for tasks without images. Double Q-learning is on, as in the other algorithms of this family; the paper's
IQN does not use it (`double_q=False`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, Unpack

from torch import Tensor

from lockstep.algorithms.families.q_learning import (
    NEXT,
    TARGET,
    ActionValueTraining,
    QLearner,
    outputs_of_actions,
)
from lockstep.algorithms.families.transitions import discounts_of
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.data.columns import Columns
from lockstep.learner.learner import Outputs
from lockstep.learner.minibatches import TensorColumns
from lockstep.modules import LEVEL_NOISE, ImplicitQuantileModule, ModelConfig
from lockstep.ops import quantile_huber_loss
from lockstep.options.section import ConfigT, option

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import IQNOptions


@dataclass
class IQNTraining(ActionValueTraining[ConfigT]):
    """Options of `IQNConfig.training(...)`."""

    num_quantiles: int = option(8, ge=1)
    """Number of random levels for each transition (the paper's N)."""
    num_target_quantiles: int = option(8, ge=1)
    """Number of random levels for the value of the next observation (N')."""
    num_policy_quantiles: int = option(32, ge=1)
    """Number of levels whose mean selects an action (K)."""
    num_cosines: int = option(64, ge=1)
    """Number of cosines that encode a level (n of equation 4)."""
    kappa: float = option(1.0, ge=0)
    """Size of an error above which the loss is linear and no longer quadratic. 0 makes it always linear."""

    def __call__(self, **options: Unpack[IQNOptions]) -> ConfigT:
        return self.change(options)


class IQNLearner(QLearner[IQNTraining]):
    """The update of IQN."""

    required_parts = ("value_outputs", "masked", "mean_values")

    def noise_columns(self, module_id: str) -> dict[str, int]:
        """Return the noise columns of `QLearner`, and columns of noise from which quantile levels are made.

        Levels are drawn three times: for the present values, for the selection of the next action (by the learning
        network with double Q-learning), and for the value of that action by the target network.
        """
        config = self.config_of(module_id)
        return super().noise_columns(module_id) | {
            LEVEL_NOISE: config.num_quantiles,
            NEXT + LEVEL_NOISE: config.num_policy_quantiles,
            TARGET + LEVEL_NOISE: config.num_target_quantiles,
        }

    def compute_loss_for_module(
        self, *, module_id: str, config: IQNTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the quantile Huber loss (equation 3) of temporal differences between random levels (equation 2)."""
        quantiles = outputs_of_actions(fwd_out["value_outputs"], batch[Columns.ACTIONS])
        next_quantiles = self.best_next_outputs(module_id, batch)
        discounts = discounts_of(batch, config.gamma, quantiles.dtype)
        targets = batch[Columns.REWARDS].unsqueeze(-1) + discounts.unsqueeze(-1) * next_quantiles
        row_losses = quantile_huber_loss(quantiles, targets, kappa=config.kappa, levels=fwd_out["levels"])

        # The error of the means is the priority of a transition.
        means = quantiles.detach().mean(-1)
        self.log(module_id, q_mean=self.masked_mean(means, batch))
        return self.weighted_loss(module_id, batch, row_losses, errors=means - targets.mean(-1))


class IQNConfig(AlgorithmConfig):
    """`IQNConfig().environment("CartPole-v1").build_trainer().run()`."""

    algorithm = "iqn"
    explorations = ("epsilon", "noisy")
    learns_from_tensors = True
    learner_class = IQNLearner
    # The network in a checkpoint was built with these numbers, so a resumed run refuses other values. The numbers of
    # levels in training may change: levels are an input of the network.
    first_values = ("num_policy_quantiles", "num_cosines")
    training_class = IQNTraining
    module_class = ImplicitQuantileModule
    is_off_policy = True
    training: IQNTraining[Self]

    def complete_model_config(self, model_config: ModelConfig) -> ModelConfig:
        """Add the numbers of quantiles for acting and of cosines to the configuration of the network."""
        return replace(
            super().complete_model_config(model_config),
            num_value_outputs=self.training.num_policy_quantiles,
            num_cosines=self.training.num_cosines,
        )
