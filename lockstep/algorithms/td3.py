"""TD3: twin delayed deterministic policy gradient, and DDPG (Fujimoto et al. 2018, Lillicrap et al. 2016).

https://arxiv.org/abs/1802.09477. TD3 takes the smaller of two critics, smooths the target policy's action with noise,
and updates the policy in every second step of the critics (algorithm 1):

    a' = clip(pi'(s') + clip(noise, -c, c), -1, 1),  y = r + gamma min_k Q'_k(s', a')
    critics:  minimise  E[sum_k (Q_k(s, a) - y)^2 / 2]
    policy:   maximise  E[Q_1(s, pi(s))]

Without these three changes it is DDPG, https://arxiv.org/abs/1509.02971: `TD3Config.ddpg()`. Both losses are computed
with the same parameters, and one backward pass gives all gradients. The policy's loss sends no gradient into the
critics.

Defaults: those of the authors' published code: batch 256, two layers of 256 units with ReLU, Adam with lr 3e-4, tau
0.005, gamma 0.99, noise 0.1 while collecting and 0.2 (limited to 0.5) in targets, a replay buffer of a million
transitions, and one gradient step for each environment step. Noise is in units of actions in [-1, 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

from torch import Tensor

from lockstep.algorithms.families.transitions import (
    RECTIFIED,
    DelayedActorCriticLearner,
    DelayedActorCriticTraining,
)
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.learner.learner import Outputs
from lockstep.learner.minibatches import TensorColumns
from lockstep.modules import DefaultTD3Module
from lockstep.options.schedules import ScheduleLike
from lockstep.options.section import ConfigT, option

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import TD3Options


@dataclass
class TD3Training(DelayedActorCriticTraining[ConfigT]):
    """Options of `TD3Config.training(...)`."""

    exploration_noise: ScheduleLike = option(0.1, ge=0)
    """Standard deviation of the noise on actions while collecting: a number, or a schedule over sampled steps."""

    def __call__(self, **options: Unpack[TD3Options]) -> ConfigT:
        return self.change(options)


class TD3Learner(DelayedActorCriticLearner[TD3Training]):
    """The update of TD3."""

    def compute_loss_for_module(
        self, *, module_id: str, config: TD3Training, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the loss of the critics (algorithm 1), plus the policy's loss in steps in which the policy learns."""
        loss = self.critic_loss(module_id, config, batch, fwd_out)
        if not self.policy_learns(module_id):
            return loss
        # Values of the policy's own actions by the first critic, whose parameters get no gradient from this loss.
        _, values = self.policy_values(module_id, batch)
        actor_loss = -self.masked_mean(values, batch)
        self.log(module_id, actor_loss=actor_loss)
        return loss + actor_loss


class TD3Config(AlgorithmConfig):
    """`TD3Config().environment("Pendulum-v1").build_trainer().run()`."""

    algorithm = "td3"
    explorations = ("normal", "ou")
    learner_class = TD3Learner
    training_class = TD3Training
    module_class = DefaultTD3Module
    is_off_policy = True
    learns_from_tensors = True
    squashes_actions = True
    training: TD3Training[Self]

    def __init__(self) -> None:
        super().__init__()
        self.replay(capacity=1_000_000, update_per_step=1.0)
        self.rl_module(model_config=RECTIFIED)

    @classmethod
    def ddpg(cls) -> Self:
        """Return the configuration of DDPG: one critic, no delay of the policy, and no noise on target actions."""
        config = cls().training(policy_delay=1, target_noise=0.0)
        return config.rl_module(model_config={"num_critics": 1})
