"""TD3+BC: TD3 with a policy that stays near the data (Fujimoto & Gu 2021, "A Minimalist Approach to Offline
Reinforcement Learning").

https://arxiv.org/abs/2106.06860. The critics are those of TD3. The policy learns in every second step:

    maximise  E[lambda Q(s, pi(s)) - (pi(s) - a)^2],  lambda = alpha / E|Q(s, pi(s))|     (equations 3 and 5)

Observations are normalised with the statistics of the data (`environment(normalize_observations=True)`).

Defaults: those of the paper: alpha 2.5, batch 256, two layers of 256 units with ReLU, Adam with lr 3e-4, tau 0.005,
target noise 0.2 (limited to 0.5).
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
from lockstep.data.columns import Columns
from lockstep.learner.learner import Outputs
from lockstep.learner.minibatches import TensorColumns
from lockstep.modules import DefaultTD3Module
from lockstep.options.section import ConfigT, option

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import TD3BCOptions


@dataclass
class TD3BCTraining(DelayedActorCriticTraining[ConfigT]):
    """Options of `TD3BCConfig.training(...)`."""

    alpha: float = option(2.5, ge=0)
    """Weight of the critics relative to the distance from the data's actions. 0 is pure imitation."""

    def __call__(self, **options: Unpack[TD3BCOptions]) -> ConfigT:
        return self.change(options)


class TD3BCLearner(DelayedActorCriticLearner[TD3BCTraining]):
    """The update of TD3+BC."""

    def compute_loss_for_module(
        self, *, module_id: str, config: TD3BCTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the loss of TD3's critics, plus the policy's loss (equation 5) in steps in which it learns."""
        loss = self.critic_loss(module_id, config, batch, fwd_out)
        if not self.policy_learns(module_id):
            return loss

        actions, values = self.policy_values(module_id, batch)
        # Mean size of the values, as a constant without gradient. Divided by it, the values are about 1, so `alpha` has
        # the same effect for small and for large rewards.
        value_scale = self.masked_mean(values.detach().abs(), batch)
        distance = self.masked_mean((actions - batch[Columns.ACTIONS]).square().mean(-1), batch)
        actor_loss = distance - config.alpha / value_scale.clamp(min=1e-8) * self.masked_mean(values, batch)
        self.log(module_id, actor_loss=actor_loss, bc_loss=distance)
        return loss + actor_loss


class TD3BCConfig(AlgorithmConfig):
    """`TD3BCConfig().environment("Pendulum-v1").offline_data(input_="my/data-v0").build_trainer().run()`."""

    algorithm = "td3_bc"
    learner_class = TD3BCLearner
    training_class = TD3BCTraining
    module_class = DefaultTD3Module
    is_offline = True
    squashes_actions = True
    training: TD3BCTraining[Self]

    def __init__(self) -> None:
        super().__init__()
        self.environment(normalize_observations=True)
        self.rl_module(model_config=RECTIFIED)
