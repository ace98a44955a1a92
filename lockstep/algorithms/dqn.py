"""DQN: deep Q-learning (Mnih et al. 2015, "Human-level control through deep reinforcement learning").

Extensions as options: double (van Hasselt et al. 2016, https://arxiv.org/abs/1509.06461), dueling (Wang et al. 2016,
`model_config={"dueling": True}`), n-step returns and prioritised replay (`replay(n_step=, prioritized=)`, combined as
in Hessel et al. 2018, https://arxiv.org/abs/1710.02298).

Defaults: batch 32, one gradient step for every 4 steps, gamma 0.99, errors clipped at 1 (Huber) and epsilon from 1 as
in the paper (extended data, table 1); double Q-learning on; Adam with lr 5e-4; what there is counted in millions of
frames (memory, epsilon's way, target network) is shortened to what tasks without images need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self, Unpack

import torch.nn.functional as F
from torch import Tensor

from lockstep.algorithms.config import AlgorithmConfig
from lockstep.data.columns import Columns
from lockstep.learner import action_values
from lockstep.learner.action_values import ActionValueOptions, ActionValueTraining
from lockstep.learner.fused import fused_q_loss, load_fused_q
from lockstep.learner.learner import Learner, TensorColumns
from lockstep.learner.targets import follow_targets
from lockstep.modules import DefaultQModule, EpsilonGreedy
from lockstep.state.options import ConfigT, option


class DQNOptions(ActionValueOptions, total=False):
    """Options of `DQNTraining`."""

    huber_delta: float | None


@dataclass
class DQNTraining(ActionValueTraining[ConfigT]):
    """Options of `DQNConfig.training(...)`."""

    huber_delta: float | None = option(1.0, gt=0)
    """errors count by their square up to here, and linearly beyond; `None`: always by their square"""

    def __call__(self, **options: Unpack[DQNOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options)


class DQNLearner(Learner):
    """The update of DQN."""

    def setup_module(self, module_id: str) -> None:
        """The target network is part of the learner's state."""
        action_values.set_up_target(self, module_id)
        load_fused_q(self, module_id)

    def required_columns(self, module_id: str) -> tuple[str, ...]:
        """What the loss reads (`discounts` and `weights` only where they are there)."""
        return action_values.COLUMNS

    def compute_loss_for_module(self, *, module_id: str, config: Any, batch: TensorColumns, fwd_out: Any) -> Tensor:
        """The error of `Q(s, a)` against `r + gamma max Q'(s', .)`, with n steps for one where the batch says so."""
        fused = fused_q_loss(self, module_id, config, batch, fwd_out)
        if fused is not None:  # the same numbers from one compiled kernel
            return fused
        taken = action_values.of_actions(fwd_out["q_values"], batch[Columns.ACTIONS])
        values, picking = action_values.next_q_values(self, module_id, config.double_q, batch)
        following = action_values.of_actions(values, (values if picking is None else picking).argmax(-1))
        discounts = action_values.discounts_of(batch, config.gamma, taken.dtype)
        targets = batch[Columns.REWARDS] + discounts * following
        errors = taken - targets
        if config.huber_delta is None:
            each = 0.5 * errors.square()
        else:
            each = F.huber_loss(taken, targets, reduction="none", delta=config.huber_delta)
        self.log(module_id, q_mean=self.masked_mean(taken.detach(), batch))
        return action_values.loss_of_rows(self, module_id, batch, each, errors)

    def after_gradient_step(self) -> None:
        """The target network follows."""
        follow_targets(self)


class DQNConfig(AlgorithmConfig):
    """`DQNConfig().environment("CartPole-v1").build_trainer().run()`."""

    algorithm = "dqn"
    learner_class = DQNLearner
    training_class = DQNTraining
    is_off_policy = True

    @property
    def training(self) -> DQNTraining[Self]:
        """The update."""
        return self._section("training")

    def default_module_class(self, model_config: Any) -> Any:
        """Action values."""
        return DefaultQModule

    def exploration(self, action_space: Any) -> EpsilonGreedy | None:
        """Epsilon-greedy."""
        return EpsilonGreedy(self.training.epsilon, int(action_space.n))


__all__ = ["DQNConfig", "DQNLearner", "DQNTraining"]
