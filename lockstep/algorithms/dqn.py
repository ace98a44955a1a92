"""DQN: deep Q-learning (Mnih et al. 2015, "Human-level control through deep reinforcement learning").

    minimise  E[(r + gamma max_a' Q'(s', a') - Q(s, a))^2 / 2]        Q': the target network

Extensions are options: double (van Hasselt et al. 2016, https://arxiv.org/abs/1509.06461), dueling (Wang et al. 2016,
`model_config={"dueling": True}`), n-step returns and prioritised replay (`replay(n_step=, prioritized=)`, combined as
in Hessel et al. 2018, https://arxiv.org/abs/1710.02298).

Defaults: batch 32, one gradient step for every 4 steps, gamma 0.99 and initial epsilon 1 as in the paper (extended
data, table 1); double Q-learning; Adam with lr 5e-4. The sizes that the paper counts in millions of frames (memory,
decay of epsilon, interval of the target network) are smaller, for tasks without images. The loss is the squared error.
The paper clips errors at 1, and rewards too; without clipped rewards this would make values the median of the targets,
which ignores rare ends of episodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

import torch.nn.functional as F
from torch import Tensor

from lockstep.algorithms.families.q_learning import ActionValueTraining, QLearner, outputs_of_actions
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
    """Size of an error above which the loss is linear and no longer quadratic. `None` makes it always quadratic. Use 1
    for rewards in [-1, 1] and small values; with large values it lets them grow without bound."""

    def __call__(self, **options: Unpack[DQNOptions]) -> ConfigT:
        return self.change(options)


class DQNLearner(QLearner[DQNTraining]):
    """The update of DQN."""

    def compute_loss_for_module(
        self, *, module_id: str, config: DQNTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the mean loss of the errors of `Q(s, a)` from the target `r + gamma max_a' Q'(s', a')`.

        In n-step transitions r is the discounted sum of n rewards, s' is the observation after n steps, and gamma^n
        takes the place of gamma.
        """
        q_values = outputs_of_actions(fwd_out["q_values"], batch[Columns.ACTIONS])

        # Double Q-learning: the learning network selects the next action, the target network evaluates it. Without it
        # the target network does both, and its value of the next action is simply its highest value.
        target_values, selecting_values = self.next_q_values(module_id, batch)
        if selecting_values is None:
            selecting_values = target_values
        next_values = outputs_of_actions(target_values, selecting_values.argmax(-1))
        targets = td_targets(batch, next_values, config.gamma)

        errors = q_values - targets
        if config.huber_delta is None:
            row_losses = 0.5 * errors.square()
        else:
            row_losses = F.huber_loss(q_values, targets, reduction="none", delta=config.huber_delta)
        self.log(module_id, q_mean=self.masked_mean(q_values.detach(), batch))
        # Prioritised replay weights the losses. The errors become the new priorities of the rows.
        return self.weighted_loss(module_id, batch, row_losses, errors)


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
