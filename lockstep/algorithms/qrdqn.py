"""QR-DQN: the distribution of returns as quantiles (Dabney et al. 2018, "Distributional Reinforcement Learning with
Quantile Regression", https://arxiv.org/abs/1710.10044).

The network gives for each action `num_quantiles` returns, that of the levels `(i + 1/2) / num_quantiles`; actions are
judged by their means. No range has to be known. Options as DQN's: double, dueling, n-step returns and prioritised
replay.

Defaults: kappa 1 as the paper's QR-DQN-1; its 200 quantiles are shortened to 50, what tasks without images need.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self, Unpack

from torch import Tensor

from lockstep.algorithms.config import AlgorithmConfig
from lockstep.data.columns import Columns
from lockstep.learner import action_values
from lockstep.learner.action_values import ActionValueOptions, ActionValueTraining
from lockstep.learner.learner import Learner, TensorColumns
from lockstep.learner.module_checks import check_parts
from lockstep.learner.targets import follow_targets
from lockstep.modules import DistributionalQModule, EpsilonGreedy, ModelConfig
from lockstep.ops import quantile_huber_loss
from lockstep.state.options import ConfigT, option


class QRDQNOptions(ActionValueOptions, total=False):
    """Options of `QRDQNTraining`."""

    num_quantiles: int
    kappa: float


@dataclass
class QRDQNTraining(ActionValueTraining[ConfigT]):
    """Options of `QRDQNConfig.training(...)`."""

    num_quantiles: int = option(50, ge=2)
    """numbers that stand for the distribution of an action's return"""
    kappa: float = option(1.0, ge=0)
    """errors count by their square up to here, and linearly beyond; 0: always linearly"""

    def __call__(self, **options: Unpack[QRDQNOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options)


class QRDQNLearner(Learner):
    """The update of QR-DQN."""

    def setup_module(self, module_id: str) -> None:
        """The target network is part of the learner's state."""
        if self.should_module_be_updated(module_id):  # others need not have what the loss asks for
            check_parts(self, module_id, "value_outputs", "masked", "mean_values")
        action_values.set_up_target(self, module_id)

    def required_columns(self, module_id: str) -> tuple[str, ...]:
        """What the loss reads (`discounts` and `weights` only where they are there)."""
        return action_values.COLUMNS

    def compute_loss_for_module(self, *, module_id: str, config: Any, batch: TensorColumns, fwd_out: Any) -> Tensor:
        """The quantile Huber loss of the quantiles of `Q(s, a)` against those of `r + gamma Q'(s', best)`."""
        quantiles = action_values.of_actions(fwd_out["value_outputs"], batch[Columns.ACTIONS])
        following = action_values.of_best_next_action(self, module_id, config.double_q, batch)
        discounts = action_values.discounts_of(batch, config.gamma, quantiles.dtype)
        targets = batch[Columns.REWARDS].unsqueeze(-1) + discounts.unsqueeze(-1) * following
        each = quantile_huber_loss(quantiles, targets, kappa=config.kappa)
        means = quantiles.detach().mean(-1)
        self.log(module_id, q_mean=self.masked_mean(means, batch))
        return action_values.loss_of_rows(self, module_id, batch, each, means - targets.mean(-1))

    def after_gradient_step(self) -> None:
        """The target network follows."""
        follow_targets(self)


class QRDQNConfig(AlgorithmConfig):
    """`QRDQNConfig().environment("CartPole-v1").build_trainer().run()`."""

    algorithm = "qrdqn"
    learner_class = QRDQNLearner
    first_values = ("num_quantiles",)
    training_class = QRDQNTraining
    is_off_policy = True

    @property
    def training(self) -> QRDQNTraining[Self]:
        """The update."""
        return self._section("training")

    def default_module_class(self, model_config: Any) -> Any:
        """Distributions of action values."""
        return DistributionalQModule

    def complete_model_config(self, model_config: ModelConfig) -> ModelConfig:
        """The quantiles."""
        return replace(model_config, num_value_outputs=self.training.num_quantiles, value_range=None)

    def exploration(self, action_space: Any) -> EpsilonGreedy | None:
        """Epsilon-greedy."""
        return EpsilonGreedy(self.training.epsilon, int(action_space.n))


__all__ = ["QRDQNConfig", "QRDQNLearner", "QRDQNTraining"]
