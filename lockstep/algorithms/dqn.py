"""DQN: deep Q-learning (Mnih et al. 2015, "Human-level control through deep reinforcement learning").

Extensions as options: double (van Hasselt et al. 2016, https://arxiv.org/abs/1509.06461), dueling (Wang et al. 2016,
`model_config={"dueling": True}`), n-step returns and prioritised replay (`replay(n_step=, prioritized=)`, combined as
in Hessel et al. 2018, https://arxiv.org/abs/1710.02298).

Defaults: batch 32, one gradient step for every 4 steps, gamma 0.99 and epsilon from 1 as in the paper (extended data,
table 1); double Q-learning on; Adam with lr 5e-4; what there is counted in millions of frames (memory, epsilon's way,
target network) is shortened to what tasks without images need. Errors count by their square: clipped at 1, as in the
paper, where rewards are clipped too, they lead to the median of the targets, which leaves rare ends of episodes out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

import torch.nn.functional as F
from torch import Tensor

from lockstep.algorithms.families.q_learning import ActionValueTraining, QLearner, of_actions
from lockstep.algorithms.families.transitions import td_targets
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.data.columns import Columns
from lockstep.learner.learner import Outputs
from lockstep.learner.minibatches import TensorColumns
from lockstep.modules import DefaultQModule
from lockstep.options.section import ConfigT, option

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import DQNOptions


@dataclass
class DQNTraining(ActionValueTraining[ConfigT]):
    """Options of `DQNConfig.training(...)`."""

    huber_delta: float | None = option(None, gt=0)
    """errors count by their square up to here, and linearly beyond; `None`: always by their square. 1 where rewards are
    clipped to [-1, 1] and values are small; where values are large it lets them grow without bound"""

    def __call__(self, **options: Unpack[DQNOptions]) -> ConfigT:
        return self.change(options)


class DQNLearner(QLearner[DQNTraining]):
    """The update of DQN."""

    def compute_loss_for_module(
        self, *, module_id: str, config: DQNTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the error of `Q(s, a)` against `r + gamma max Q'(s', .)`, of n steps where the batch says so."""
        taken = of_actions(fwd_out["q_values"], batch[Columns.ACTIONS])
        values, picking = self.next_q_values(module_id, batch)
        following = of_actions(values, (values if picking is None else picking).argmax(-1))
        targets = td_targets(batch, following, config.gamma)
        errors = taken - targets
        if config.huber_delta is None:
            each = 0.5 * errors.square()
        else:
            each = F.huber_loss(taken, targets, reduction="none", delta=config.huber_delta)
        self.log(module_id, q_mean=self.masked_mean(taken.detach(), batch))
        return self.mean_of_rows(module_id, batch, each, errors)


class DQNConfig(AlgorithmConfig):
    """`DQNConfig().environment("CartPole-v1").build_trainer().run()`."""

    algorithm = "dqn"
    explorations = ("epsilon", "noisy")
    learner_class = DQNLearner
    training_class = DQNTraining
    module_class = DefaultQModule
    is_off_policy = True
    learns_from_tensors = True
    training: DQNTraining[Self]

    def __init__(self) -> None:
        super().__init__()
        self.rl_module(model_config={"activation": "relu", "orthogonal_init": False})
