"""What learners of action values share: options, target networks, the next action, the loss of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor

from lockstep.data.columns import Columns
from lockstep.learner.config import SampledTraining, TrainingOptions
from lockstep.learner.targets import TargetNetwork
from lockstep.state.options import ConfigT, option
from lockstep.state.schedules import ScheduleLike

if TYPE_CHECKING:
    from lockstep.learner.learner import Learner, TensorColumns

COLUMNS = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.NEXT_OBS)
"""what the losses read, and `discounts` and `weights` where they are there"""


class ActionValueOptions(TrainingOptions, total=False):
    """Options of `ActionValueTraining`."""

    epsilon: ScheduleLike
    double_q: bool
    target_update_interval: int
    tau: float


@dataclass
class ActionValueTraining(SampledTraining[ConfigT]):
    """Options that DQN, C51 and QR-DQN have in common."""

    lr: ScheduleLike = 5e-4
    train_batch_size: int = 32
    """transitions in one gradient step, over all learners"""
    grad_clip: float | None = 10.0
    epsilon: ScheduleLike = option(factory=lambda: [[0, 1.0], [10_000, 0.05]], ge=0, le=1)
    """share of actions that are taken by chance while collecting: a number, or a schedule over sampled steps"""
    double_q: bool = True
    """the network that learns picks the next action, the target network says what it is worth"""
    target_update_interval: int = option(250, ge=1)
    """gradient steps between two updates of the target network (not environment steps; with `tau=1` at 10 the values
    of CartPole grow without bound)"""
    tau: float = option(1.0, gt=0, le=1)
    """how far an update takes the target network towards the one that learns; 1: all the way"""

    def __call__(self, **options: Unpack[ActionValueOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options)


def set_up_target(learner: Learner, module_id: str) -> None:
    """The target network is part of the learner's state, as `<module id>/target`."""
    learner.register_state(f"{module_id}/target", TargetNetwork(learner.module[module_id]))


def of_actions(outputs: Tensor, actions: Tensor) -> Tensor:
    """`[N, A, ...]` and actions `[N]` -> `[N, ...]`."""
    index = actions.long().reshape(-1, *(1,) * (outputs.dim() - 1))
    return outputs.gather(1, index.expand(-1, 1, *outputs.shape[2:])).squeeze(1)


@torch.no_grad()
def next_q_values(
    learner: Learner, module_id: str, double_q: bool, batch: TensorColumns
) -> tuple[Tensor, Tensor | None]:
    """The target network's values `[N, A]` of the next actions; with `double_q` also those of the network that learns,
    which picks one of them (van Hasselt et al. 2016), else None.
    """
    module: Any = learner.module[module_id]
    target: Any = learner.registered[f"{module_id}/target"].module
    after = {Columns.OBS: batch[Columns.NEXT_OBS]}
    with learner.mixed_precision():
        values = learner.to_tensor(target.forward_train(after)["q_values"])
        return values, learner.to_tensor(module.forward_train(after)["q_values"]) if double_q else None


@torch.no_grad()
def of_best_next_action(learner: Learner, module_id: str, double_q: bool, batch: TensorColumns) -> Tensor:
    """`[N, ...]`: what the target network gives out for the best next action, which with `double_q` the network that
    learns picks (van Hasselt et al. 2016), else the target network itself.
    """
    module: Any = learner.module[module_id]
    after = {Columns.OBS: batch[Columns.NEXT_OBS]}
    with learner.mixed_precision():
        outputs = learner.to_tensor(learner.registered[f"{module_id}/target"].module.value_outputs(after))
        picking = learner.to_tensor(module.value_outputs(after)) if double_q else outputs
    return of_actions(outputs, module.masked(after, module.mean_values(picking)).argmax(-1))


def discounts_of(batch: TensorColumns, gamma: float, dtype: torch.dtype) -> Tensor:
    """`[N]`: what the value of the next observation is multiplied with. 0 where the episode terminated, not where it
    was truncated; of n steps as the buffer says.
    """
    going_on = (~batch[Columns.TERMINATEDS].bool()).to(dtype)
    return going_on * batch.get(Columns.DISCOUNTS, gamma)


def loss_of_rows(learner: Learner, module_id: str, batch: TensorColumns, each: Tensor, errors: Tensor) -> Tensor:
    """The mean of `each` `[N]` with the rows' weights, if there are any; `errors` `[N]` are left for the priorities."""
    if Columns.WEIGHTS in batch:
        each = each * batch[Columns.WEIGHTS]
    loss = learner.masked_mean(each, batch)
    learner.row_errors[module_id] = errors.detach()
    learner.log(module_id, qf_loss=loss, td_error_mean=learner.masked_mean(errors.detach().abs(), batch))
    return loss
