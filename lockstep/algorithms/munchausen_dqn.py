"""Munchausen DQN: the logarithm of the policy is added to rewards (Vieillard, Pietquin and Geist 2020, "Munchausen
Reinforcement Learning", https://arxiv.org/abs/2007.14430).

The policy is the softmax of the target network's values, divided by a temperature tau. An action that is unlikely under
it gets a lower reward, which widens the gaps between actions and keeps each policy near the previous one. The value of
the next observation is the soft value of the same policy:

    target = r + alpha [tau log pi(a | s)]_l0^0 + gamma sum_a' pi(a' | s') (Q'(s', a') - tau log pi(a' | s'))
    minimise  E[(target - Q(s, a))^2 / 2]                                     (equation 1, with the limit l0)

With `munchausen_coeff=0` it is soft DQN, which in the limit of temperature 0 is DQN without double Q-learning.

Defaults: the paper's coefficient 0.9, temperature 0.03 and lowest logarithm -1 (table 1, appendix B). The rest is as in
DQN, including epsilon-greedy exploration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

from torch import Tensor

from lockstep.algorithms.families.q_learning import QLearner, TargetValueTraining, outputs_of_actions
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
class MunchausenDQNTraining(TargetValueTraining[ConfigT]):
    """Options of `MunchausenDQNConfig.training(...)`."""

    munchausen_coeff: float = option(0.9, ge=0, le=1)
    """Coefficient of the logarithm of the policy that is added to the reward (alpha). 0 is soft DQN."""
    entropy_temperature: float = option(0.03, gt=0, finite=True)
    """Temperature of the softmax policy (tau), in units of the return. The paper's 0.03 is for rewards clipped at 1."""
    lowest_log_policy: float = option(-1.0, le=0, finite=True)
    """Lower limit of the temperature times the logarithm of the policy (l0), which keeps rewards bounded."""

    def __call__(self, **options: Unpack[MunchausenDQNOptions]) -> ConfigT:
        return self.change(options)


class MunchausenDQNLearner(QLearner[MunchausenDQNTraining]):
    """The update of Munchausen DQN."""

    def compute_loss_for_module(
        self, *, module_id: str, config: MunchausenDQNTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the mean squared error of `Q(s, a)` (equation 1, with the limit of section 3)."""
        temperature = config.entropy_temperature
        values, next_values = self.target_q_values(module_id, batch)

        # tau log pi(a | s), limited to [l0, 0].
        log_probs = (values / temperature).log_softmax(-1)
        scaled_log_prob = temperature * outputs_of_actions(log_probs, batch[Columns.ACTIONS])
        bonus = config.munchausen_coeff * scaled_log_prob.clamp(config.lowest_log_policy, 0.0)

        # The mean of Q' - tau log pi under the policy pi, in a form that does not overflow (appendix B.1).
        soft_values = temperature * (next_values / temperature).logsumexp(-1)

        q_values = outputs_of_actions(fwd_out["q_values"], batch[Columns.ACTIONS])
        errors = q_values - (bonus + td_targets(batch, soft_values, config.gamma))
        self.log(module_id, q_mean=self.masked_mean(q_values.detach(), batch), bonus=self.masked_mean(bonus, batch))
        return self.weighted_loss(module_id, batch, 0.5 * errors.square(), errors)


class MunchausenDQNConfig(AlgorithmConfig):
    """`MunchausenDQNConfig().environment("CartPole-v1").build_trainer().run()`."""

    algorithm = "munchausen_dqn"
    explorations = ("epsilon", "noisy")
    learner_class = MunchausenDQNLearner
    training_class = MunchausenDQNTraining
    module_class = DefaultQModule
    is_off_policy = True
    learns_from_tensors = True
    can_sum_rewards = False  # n-step returns would lack the bonuses of all actions but the first
    training: MunchausenDQNTraining[Self]

    def __init__(self) -> None:
        super().__init__()
        self.rl_module(model_config={"activation": "relu", "orthogonal_init": False})
