"""`QLearner`: learns the values of discrete actions against those of a target network."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import torch
from torch import Tensor

from lockstep.algorithms.families.transitions import TransitionLearner, follow_targets, next_inputs, pattern_of_targets
from lockstep.data.columns import Columns
from lockstep.learner.config import SampledTraining
from lockstep.learner.minibatches import TensorColumns
from lockstep.learner.sequences import TARGET_OBS
from lockstep.learner.targets import TargetNetwork
from lockstep.modules import LEVEL_NOISE, WEIGHT_NOISE
from lockstep.options.schedules import ScheduleLike
from lockstep.options.section import ConfigT, option

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import ActionValueOptions


@dataclass
class FollowedValueTraining(SampledTraining[ConfigT]):
    """Options of all algorithms that learn action values with a target network."""

    lr: ScheduleLike = 5e-4
    train_batch_size: int = 32
    """transitions in one gradient step, over all learners"""
    grad_clip: float | None = 10.0
    epsilon: ScheduleLike = option(factory=lambda: [[0, 1.0], [10_000, 0.05]], ge=0, le=1)
    """share of actions that are taken by chance while collecting: a number, or a schedule over sampled steps"""
    target_update_interval: int = option(50, ge=1)
    """gradient steps between two updates of the target network (not environment steps). Values see one step further
    ahead with each: with a horizon of `1 / (1 - gamma)` steps they take some three times as many updates to settle"""
    tau: float = option(1.0, gt=0, le=1)
    """how far an update takes the target network towards the one that learns; 1: all the way"""


@dataclass
class ActionValueTraining(FollowedValueTraining[ConfigT]):
    """Options that DQN, C51, QR-DQN and IQN have in common: targets are the value of the best next action."""

    double_q: bool = True
    """the network that learns picks the next action, the target network says what it is worth"""

    def __call__(self, **options: Unpack[ActionValueOptions]) -> ConfigT:
        return self.change(options)


Training = TypeVar("Training", bound=FollowedValueTraining)
NEXT, TARGET = "next_", "target_"
"""Prefixes of the names of random numbers for the next observation, for the learning network and for its target."""


class QLearner(TransitionLearner[Training]):
    """The family of DQN, C51, QR-DQN, IQN and Munchausen DQN. The target network is part of the learner's state."""

    parts: tuple[str, ...] = ()
    """what the loss asks of a network besides `forward_train`"""

    updates_targets_after_step = True

    def setup_module(self, module_id: str) -> None:
        """Check the network, and make its target, `<module id>/target`, when the learner is built."""
        super().setup_module(module_id)
        if self.parts and self.should_module_be_updated(module_id):
            self.check_parts(module_id, *self.parts)
        self.register_state(f"{module_id}/target", TargetNetwork(self.module[module_id]))

    def noise_columns(self, module_id: str) -> dict[str, int]:
        """Return the columns of random numbers for noisy weights, each with its number of values per row.

        One is for the observation, and two are for the next observation: of the learning network and of its target.
        """
        size = getattr(self.module[module_id], "noise_size", 0)
        return dict.fromkeys((WEIGHT_NOISE, NEXT + WEIGHT_NOISE, TARGET + WEIGHT_NOISE), size) if size else {}

    def after_gradient_step(self) -> None:
        """Let target networks follow, as `target_update_interval` and `tau` say."""
        follow_targets(self, "target_update_interval")

    def pattern(self, num_steps: int) -> Hashable:
        return pattern_of_targets(self, "target_update_interval", num_steps)

    # -- what comes next ---

    def is_double(self, module_id: str) -> bool:
        """Return whether the network that learns picks the next action; False where there is no option `double_q`."""
        return bool(getattr(self.config_of(module_id), "double_q", False))

    @torch.no_grad()
    def next_q_values(self, module_id: str, batch: TensorColumns) -> tuple[Tensor, Tensor | None]:
        """Return the target network's values `[N, A]` of the next actions, and what picks one of them.

        With `double_q` that is the network that learns (van Hasselt et al. 2016), else None: the values themselves.
        """
        after, target_after = noisy_next_inputs(batch), noisy_next_inputs(batch, of_target=True)
        target = self.registered[f"{module_id}/target"].module
        with self.mixed_precision():
            values = self.to_tensor(target.forward_train(target_after)["q_values"])
            if not self.is_double(module_id):
                return values, None
            return values, self.to_tensor(self.module[module_id].forward_train(after)["q_values"])

    @torch.no_grad()
    def target_q_values(self, module_id: str, batch: TensorColumns) -> tuple[Tensor, Tensor]:
        """Return the target network's values `[N, A]` of the actions here, and of the next ones."""
        target = self.registered[f"{module_id}/target"].module
        after = noisy_next_inputs(batch, of_target=True)
        here = {**after, Columns.OBS: batch.get(TARGET_OBS, batch[Columns.OBS])}  # with the same noise in the weights
        with self.mixed_precision():
            values = self.to_tensor(target.forward_train(here)["q_values"])
            return values, self.to_tensor(target.forward_train(after)["q_values"])

    @torch.no_grad()
    def best_next_outputs(self, module_id: str, batch: TensorColumns) -> Tensor:
        """Return `[N, ...]`, what the target network gives for the best next action of a distributional network.

        With `double_q` the network that learns picks it (van Hasselt et al. 2016), else the target network itself.
        """
        module: Any = self.module[module_id]
        target = self.registered[f"{module_id}/target"].module
        after, target_after = noisy_next_inputs(batch), noisy_next_inputs(batch, of_target=True)
        with self.mixed_precision():
            outputs = picking = self.to_tensor(target.value_outputs(target_after))
            if self.is_double(module_id):
                picking = self.to_tensor(module.value_outputs(after))
            elif LEVEL_NOISE in after:  # the action is judged by levels of its own
                picking = self.to_tensor(target.value_outputs({**target_after, LEVEL_NOISE: after[LEVEL_NOISE]}))
        return of_actions(outputs, module.masked(after, module.mean_values(picking)).argmax(-1))

    # -- the loss ---

    def mean_of_rows(self, module_id: str, batch: TensorColumns, each: Tensor, errors: Tensor) -> Tensor:
        """Return the mean of `each` `[N]` with the rows' weights, if any; `errors` `[N]` are left for priorities."""
        if Columns.WEIGHTS in batch:
            each = each * batch[Columns.WEIGHTS]
        loss = self.masked_mean(each, batch)
        self.row_errors[module_id] = errors.detach()
        self.log(module_id, qf_loss=loss, td_error_mean=self.masked_mean(errors.detach().abs(), batch))
        return loss


def noisy_next_inputs(batch: TensorColumns, *, of_target: bool = False) -> TensorColumns:
    """Return `next_inputs`, and the random numbers that the network, or its target, takes there."""
    found, prefix = next_inputs(batch, of_target=of_target), TARGET if of_target else NEXT
    for name in (WEIGHT_NOISE, LEVEL_NOISE):
        if prefix + name in batch:
            found[name] = batch[prefix + name]
    return found


def of_actions(outputs: Tensor, actions: Tensor) -> Tensor:
    """Return `[N, ...]`, the outputs `[N, A, ...]` of the actions `[N]`."""
    index = actions.long().reshape(-1, *(1,) * (outputs.dim() - 1))
    return outputs.gather(1, index.expand(-1, 1, *outputs.shape[2:])).squeeze(1)
