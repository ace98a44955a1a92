"""Munchausen DQN: the logarithm of the policy is added to rewards (Vieillard, Pietquin and Geist 2020, "Munchausen
Reinforcement Learning", https://arxiv.org/abs/2007.14430).

The policy is the softmax of the target network's values over a temperature. An action that it finds unlikely is worth
less than its reward says, which widens the gaps between actions and keeps each policy near the one before it. The next
observation has the soft value of the same policy. With `munchausen_coeff=0` this is soft DQN, and for a temperature
that goes to 0 it is then DQN without double Q-learning.

Defaults: the paper's coefficient 0.9, temperature 0.03 and lowest logarithm -1 (table 1, appendix B); everything else
is DQN's. Actions are taken as in DQN, by epsilon.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

from torch import Tensor

from lockstep.algorithms.families.q_learning import FollowedValueTraining, QLearner, of_actions
from lockstep.algorithms.families.transitions import td_targets
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.data.columns import Columns
from lockstep.learner.learner import Outputs
from lockstep.learner.minibatches import TensorColumns
from lockstep.modules import DefaultQModule
from lockstep.options.section import ConfigT, option

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import MunchausenDQNOptions


@dataclass
class MunchausenDQNTraining(FollowedValueTraining[ConfigT]):
    """Options of `MunchausenDQNConfig.training(...)`."""

    munchausen_coeff: float = option(0.9, ge=0, le=1)
    """share of the logarithm of the policy that is added to the reward (alpha); 0: soft DQN"""
    entropy_temperature: float = option(0.03, gt=0, finite=True)
    """temperature of the softmax policy, in units of the return (tau); the paper's 0.03 is for rewards clipped at 1"""
    lowest_log_policy: float = option(-1.0, le=0, finite=True)
    """where the temperature times the logarithm of the policy is cut off (l0), so that no reward is without bound"""

    def __call__(self, **options: Unpack[MunchausenDQNOptions]) -> ConfigT:
        return self.change(options)


class MunchausenDQNLearner(QLearner[MunchausenDQNTraining]):
    """The update of Munchausen DQN."""

    def compute_loss_for_module(
        self, *, module_id: str, config: MunchausenDQNTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the squared error of `Q(s, a)` (equation 1, with the cut-off of section 3)."""
        temperature = config.entropy_temperature
        values, next_values = self.target_q_values(module_id, batch)
        log_policy = temperature * of_actions((values / temperature).log_softmax(-1), batch[Columns.ACTIONS])
        bonus = config.munchausen_coeff * log_policy.clamp(config.lowest_log_policy, 0.0)
        # The mean of q - tau log pi under the policy pi, in the form that does not overflow (appendix B.1).
        soft_values = temperature * (next_values / temperature).logsumexp(-1)
        taken = of_actions(fwd_out["q_values"], batch[Columns.ACTIONS])
        errors = taken - (bonus + td_targets(batch, soft_values, config.gamma))
        self.log(module_id, q_mean=self.masked_mean(taken.detach(), batch), bonus=self.masked_mean(bonus, batch))
        return self.mean_of_rows(module_id, batch, 0.5 * errors.square(), errors)


class MunchausenDQNConfig(AlgorithmConfig):
    """`MunchausenDQNConfig().environment("CartPole-v1").build_trainer().run()`."""

    algorithm = "munchausen_dqn"
    explorations = ("epsilon", "noisy")
    learner_class = MunchausenDQNLearner
    training_class = MunchausenDQNTraining
    module_class = DefaultQModule
    is_off_policy = True
    learns_from_tensors = True
    can_sum_rewards = False  # the probability of an action is added to the reward of its own step
    training: MunchausenDQNTraining[Self]

    def __init__(self) -> None:
        super().__init__()
        self.rl_module(model_config={"activation": "relu", "orthogonal_init": False})
