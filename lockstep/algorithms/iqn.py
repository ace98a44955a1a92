"""IQN: the distribution of returns, at any quantile (Dabney et al. 2018, "Implicit Quantile
Networks for Distributional Reinforcement Learning", https://arxiv.org/abs/1806.06923).

The network gives the return at any level in [0, 1], which is an input of it. Each gradient step draws new levels, from
a stream of the learner's. Actions are judged by their means (risk-neutral). Acting takes the middles of
`num_policy_quantiles` equal parts in the place of drawn levels, so that the same observation gets the same action.
Options as DQN's: double, dueling, n-step returns and prioritised replay.

Defaults: 64 cosines, K of 32 and kappa 1 as in the paper (section 3.2 and appendix); its N and N' of 64 are shortened
to 8, what tasks without images need. Double Q-learning is on as in the other algorithms of this family; the paper's
IQN is without (`double_q=False`).
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
    of_actions,
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
    """levels that are drawn for each transition (the paper's N)"""
    num_target_quantiles: int = option(8, ge=1)
    """levels that are drawn for the value of the next observation (N')"""
    num_policy_quantiles: int = option(32, ge=1)
    """levels whose mean picks an action (K)"""
    num_cosines: int = option(64, ge=1)
    """cosines that stand for a level (n of equation 4)"""
    kappa: float = option(1.0, ge=0)
    """errors count by their square up to here, and linearly beyond; 0: always linearly"""

    def __call__(self, **options: Unpack[IQNOptions]) -> ConfigT:
        return self.change(options)


class IQNLearner(QLearner[IQNTraining]):
    """The update of IQN."""

    parts = ("value_outputs", "masked", "mean_values")

    def noise_columns(self, module_id: str) -> dict[str, int]:
        """Return also what levels are made of: here, for the next action, and for what it is worth."""
        config = self.config_of(module_id)
        return super().noise_columns(module_id) | {
            LEVEL_NOISE: config.num_quantiles,
            NEXT + LEVEL_NOISE: config.num_policy_quantiles,
            TARGET + LEVEL_NOISE: config.num_target_quantiles,
        }

    def compute_loss_for_module(
        self, *, module_id: str, config: IQNTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """The quantile Huber loss (equation 3) of the temporal differences between drawn levels (equation 2)."""
        quantiles = of_actions(fwd_out["value_outputs"], batch[Columns.ACTIONS])
        following = self.best_next_outputs(module_id, batch)
        discounts = discounts_of(batch, config.gamma, quantiles.dtype)
        targets = batch[Columns.REWARDS].unsqueeze(-1) + discounts.unsqueeze(-1) * following
        each = quantile_huber_loss(quantiles, targets, kappa=config.kappa, levels=fwd_out["levels"])
        means = quantiles.detach().mean(-1)
        self.log(module_id, q_mean=self.masked_mean(means, batch))
        return self.mean_of_rows(module_id, batch, each, means - targets.mean(-1))


class IQNConfig(AlgorithmConfig):
    """`IQNConfig().environment("CartPole-v1").build_trainer().run()`."""

    algorithm = "iqn"
    explorations = ("epsilon", "noisy")
    learner_class = IQNLearner
    first_values = ("num_policy_quantiles", "num_cosines")
    training_class = IQNTraining
    module_class = ImplicitQuantileModule
    is_off_policy = True
    training: IQNTraining[Self]

    def complete_model_config(self, model_config: ModelConfig) -> ModelConfig:
        """The quantiles to act by, and the cosines."""
        return replace(
            super().complete_model_config(model_config),
            num_value_outputs=self.training.num_policy_quantiles,
            num_cosines=self.training.num_cosines,
        )
