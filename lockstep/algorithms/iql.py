"""IQL: implicit Q-learning (Kostrikov et al. 2021, "Offline Reinforcement Learning with Implicit Q-Learning").

https://arxiv.org/abs/2110.06169. The losses never evaluate actions that are not in the data:

    V:  minimise E[|tau - 1(u < 0)| u^2],  u = min Q'(s, a) - V(s)     (equation 5)
    Q:  minimise E[(r + gamma V(s') - Q(s, a))^2]                      (equation 6)
    pi: maximise E[min(exp(beta u), 100) log pi(a | s)]                (equation 7)

All three losses are computed with the same parameters, and one backward pass gives all gradients. Actions are in a Box
or discrete.

Defaults: those of the paper for locomotion: expectile 0.7, beta 3, target rate 0.005, batch 256, two layers of 256
units with ReLU, Adam with lr 3e-4; a Gaussian whose mean is squashed by tanh into [-1, 1] and whose standard deviations
do not depend on the observation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, Unpack

import torch
from torch import Tensor

from lockstep.algorithms.families.transitions import (
    RECTIFIED,
    TargetActorCriticTraining,
    TransitionLearner,
    critic_loss,
    td_targets,
    update_target_networks,
    values_of_actions,
)
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.data.columns import Columns
from lockstep.data.groups import CRITIC, POLICY
from lockstep.learner.learner import Outputs
from lockstep.learner.minibatches import TensorColumns
from lockstep.learner.sequences import TARGET_OBS
from lockstep.learner.targets import TargetNetwork
from lockstep.modules import DefaultIQLModule
from lockstep.ops.losses import expectile_loss, exponential_weights
from lockstep.options.schedules import ScheduleLike
from lockstep.options.section import ConfigT, option

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import IQLOptions


@dataclass
class IQLTraining(TargetActorCriticTraining[ConfigT]):
    """Options of `IQLConfig.training(...)`."""

    value_lr: ScheduleLike | None = option(None, ge=0, finite=True)
    """Learning rate of the state value. Defaults to `lr`."""
    expectile: float = option(0.7, gt=0, lt=1)
    """Expectile of the critics' values that the state value estimates. 0.5 is their mean; near 1 it is the value of the
    best action in the data."""
    beta: float = option(3.0, ge=0)
    """Factor of the advantage in the exponential weight of an action. With 0 all weights are equal, which is behaviour
    cloning."""
    exp_adv_max: float = option(100.0, gt=0)
    """Upper limit of the weight of an action."""

    def __call__(self, **options: Unpack[IQLOptions]) -> ConfigT:
        return self.change(options)


class IQLLearner(TransitionLearner[IQLTraining]):
    """The update of IQL."""

    observed_by = (POLICY, CRITIC)
    updates_targets_after_step = True

    def setup_module(self, module_id: str) -> None:
        """Make the target critics, which are part of the learner's state."""
        super().setup_module(module_id)
        self.check_parts(module_id, "critics", "value_head")
        module: Any = self.module[module_id]
        self.register_state(f"{module_id}/target", TargetNetwork(module.critics))

    def configure_optimizers_for_module(self, module_id: str, config: IQLTraining) -> None:
        """Register the optimizers "critic", "value" and "actor". A shared encoder belongs to "actor"."""
        module: Any = self.module[module_id]
        value_encoder = getattr(module, "value_encoder", None)
        value_parts = [module.value_head] if value_encoder is None else [value_encoder, module.value_head]
        owners = {"critic": [module.critics], "value": value_parts, "actor": [module]}

        # "actor" gets all parameters of the module that no other optimizer has.
        assigned: set[int] = set()
        for name, parts in owners.items():
            params = []
            for part in parts:
                params += [param for param in part.parameters() if id(param) not in assigned]
            assigned |= {id(param) for param in params}
            self.register_configured(module_id, name, params, config.lr_of(name), config)

    def compute_loss_for_module(
        self, *, module_id: str, config: IQLTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the sum of the losses of state value (equation 5), critics (6) and policy (7)."""
        module: Any = self.module[module_id]
        with torch.no_grad(), self.mixed_precision():
            target_obs = batch.get(TARGET_OBS, batch[Columns.OBS])
            target_values = self.to_tensor(self.target_of(module_id)(target_obs, batch[Columns.ACTIONS]))
            target_values = values_of_actions(batch, target_values).amin(0)
            next_values = self.to_tensor(module.compute_values({Columns.OBS: batch[Columns.NEXT_OBS]}))

        # u = min Q'(s, a) - V(s)
        advantages = target_values - fwd_out[Columns.VF_PREDS]
        vf_loss = self.masked_mean(expectile_loss(advantages, config.expectile), batch)

        q_values = values_of_actions(batch, fwd_out["q_values"])
        targets = td_targets(batch, next_values, config.gamma)
        loss = critic_loss(batch, q_values, targets, module_id=module_id, learner=self)

        # The policy learns from the advantages, but must not change the state value.
        weights = exponential_weights(advantages.detach(), config.beta, config.exp_adv_max)
        dist = module.action_dist_cls.from_inputs(fwd_out[Columns.ACTION_DIST_INPUTS])
        actor_loss = -self.masked_mean(weights * dist.log_prob(batch[Columns.ACTIONS]), batch)
        self.log(module_id, vf_loss=vf_loss, actor_loss=actor_loss, weight_mean=self.masked_mean(weights, batch))
        return loss + vf_loss + actor_loss

    def after_gradient_step(self) -> None:
        """Update the target critics."""
        update_target_networks(self)


class IQLConfig(AlgorithmConfig):
    """`IQLConfig().environment("Pendulum-v1").offline_data(input_="my/data-v0").build_trainer().run()`."""

    algorithm = "iql"
    learner_class = IQLLearner
    training_class = IQLTraining
    module_class = DefaultIQLModule
    is_offline = True
    squashes_actions = True
    training: IQLTraining[Self]

    def __init__(self) -> None:
        super().__init__()
        self.rl_module(model_config={**RECTIFIED, "squash_mean": True})
