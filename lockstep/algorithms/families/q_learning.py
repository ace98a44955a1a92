"""`QLearner`: base class of learners of action values with a target network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import torch
from torch import Tensor

from lockstep.algorithms.families.transitions import (
    TARGET_UPDATE_INTERVAL,
    TransitionLearner,
    next_inputs,
    update_target_networks,
)
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
class TargetValueTraining(SampledTraining[ConfigT]):
    """Options of all algorithms that learn action values with a target network."""

    lr: ScheduleLike = 5e-4
    train_batch_size: int = 32
    """Number of transitions in one gradient step, over all learners."""
    grad_clip: float | None = 10.0
    epsilon: ScheduleLike = option(factory=lambda: [[0, 1.0], [10_000, 0.05]], ge=0, le=1)
    """Probability of a random action while collecting: a number, or a schedule over sampled steps."""
    target_update_interval: int = option(50, ge=1)
    """Number of gradient steps (not environment steps) from one update of the target network to the next. With each
    update values look one step further ahead: with a horizon of `1 / (1 - gamma)` steps they need about three times as
    many updates to settle."""
    tau: float = option(1.0, gt=0, le=1)
    """Share of the way that an update moves the target network towards the learning network. 1 copies it."""


@dataclass
class ActionValueTraining(TargetValueTraining[ConfigT]):
    """Options of DQN, C51, QR-DQN and IQN, whose targets are values of the best next action."""

    double_q: bool = True
    """Select the next action with the learning network, and evaluate it with the target network."""

    def __call__(self, **options: Unpack[ActionValueOptions]) -> ConfigT:
        return self.change(options)


Training = TypeVar("Training", bound=TargetValueTraining)
NEXT = "next_"
"""Prefix of the learning network's noise columns at the next observation."""
TARGET = "target_"
"""Prefix of the target network's noise columns at the next observation."""


class QLearner(TransitionLearner[Training]):
    """Base class of the learners of DQN, C51, QR-DQN, IQN and Munchausen DQN.

    The learner's state contains the target network, `<module id>/target`.
    """

    required_parts: tuple[str, ...] = ()
    """Methods and attributes that the loss needs of a network, in addition to `forward_train`."""

    updates_targets_after_step = True
    interval_options: tuple[str, ...] = (TARGET_UPDATE_INTERVAL,)

    def setup_module(self, module_id: str) -> None:
        """Check the network, and make its target network."""
        super().setup_module(module_id)
        if self.required_parts and self.should_module_be_updated(module_id):
            self.check_parts(module_id, *self.required_parts)
        self.register_state(f"{module_id}/target", TargetNetwork(self.module[module_id]))

    def noise_columns(self, module_id: str) -> dict[str, int]:
        """Return the columns of random numbers for noisy weights, each with its number of values per row.

        There is one column for the observation, and two for the next observation, because the learning network and the
        target network have independent noise.
        """
        size = getattr(self.module[module_id], "noise_size", 0)
        if not size:
            return {}
        return dict.fromkeys((WEIGHT_NOISE, NEXT + WEIGHT_NOISE, TARGET + WEIGHT_NOISE), size)

    def after_gradient_step(self) -> None:
        """Update the target networks every `target_update_interval` steps."""
        update_target_networks(self, TARGET_UPDATE_INTERVAL)

    # -- values of the next observation ---

    def is_double(self, module_id: str) -> bool:
        """Return whether the learning network selects the next action. False for algorithms without `double_q`."""
        return bool(getattr(self.config_of(module_id), "double_q", False))

    @torch.no_grad()
    def next_q_values(self, module_id: str, batch: TensorColumns) -> tuple[Tensor, Tensor | None]:
        """Return the target network's values `[N, A]` of the next actions, and the values that select one of them.

        With `double_q` the latter are the learning network's (van Hasselt et al. 2016). Otherwise they are None, and
        the target network's values select the action.
        """
        next_batch = noisy_next_inputs(batch)
        target_batch = noisy_next_inputs(batch, of_target=True)
        target = self.registered[f"{module_id}/target"].module
        with self.mixed_precision():
            values = self.to_tensor(target.forward_train(target_batch)["q_values"])
            if not self.is_double(module_id):
                return values, None
            return values, self.to_tensor(self.module[module_id].forward_train(next_batch)["q_values"])

    @torch.no_grad()
    def target_q_values(self, module_id: str, batch: TensorColumns) -> tuple[Tensor, Tensor]:
        """Return the target network's values `[N, A]` of the actions at the observation and at the next one."""
        target = self.registered[f"{module_id}/target"].module
        next_batch = noisy_next_inputs(batch, of_target=True)
        # Both observations are evaluated with the same noise in the weights.
        present_batch = {**next_batch, Columns.OBS: batch.get(TARGET_OBS, batch[Columns.OBS])}
        with self.mixed_precision():
            values = self.to_tensor(target.forward_train(present_batch)["q_values"])
            return values, self.to_tensor(target.forward_train(next_batch)["q_values"])

    @torch.no_grad()
    def best_next_outputs(self, module_id: str, batch: TensorColumns) -> Tensor:
        """Return a distributional target network's outputs `[N, ...]` for the best next action.

        With `double_q` the learning network selects the action (van Hasselt et al. 2016), otherwise the target network.
        """
        module: Any = self.module[module_id]
        target = self.registered[f"{module_id}/target"].module
        next_batch = noisy_next_inputs(batch)
        target_batch = noisy_next_inputs(batch, of_target=True)
        with self.mixed_precision():
            outputs = self.to_tensor(target.value_outputs(target_batch))
            if self.is_double(module_id):
                selecting_outputs = self.to_tensor(module.value_outputs(next_batch))
            elif LEVEL_NOISE in next_batch:
                # IQN selects the action with other quantile levels than those of the targets.
                levels = {LEVEL_NOISE: next_batch[LEVEL_NOISE]}
                selecting_outputs = self.to_tensor(target.value_outputs({**target_batch, **levels}))
            else:
                selecting_outputs = outputs
        best_actions = module.masked(next_batch, module.mean_values(selecting_outputs)).argmax(-1)
        return outputs_of_actions(outputs, best_actions)

    # -- the loss ---

    def weighted_loss(self, module_id: str, batch: TensorColumns, row_losses: Tensor, errors: Tensor) -> Tensor:
        """Return the weighted mean of the losses `[N]` of all rows, and log it.

        Args:
            module_id: id of the module.
            batch: the transitions. Importance weights of prioritised replay are in the column `weights`.
            row_losses: loss `[N]` of each row.
            errors: errors `[N]`, which are stored as priorities for a replay buffer.
        """
        if Columns.WEIGHTS in batch:
            row_losses = row_losses * batch[Columns.WEIGHTS]
        loss = self.masked_mean(row_losses, batch)
        self.row_errors[module_id] = errors.detach()
        self.log(module_id, qf_loss=loss, td_error_mean=self.masked_mean(errors.detach().abs(), batch))
        return loss


def noisy_next_inputs(batch: TensorColumns, *, of_target: bool = False) -> TensorColumns:
    """Return `next_inputs` with the random numbers that the learning network, or the target network, uses there."""
    inputs = next_inputs(batch, of_target=of_target)
    prefix = TARGET if of_target else NEXT
    for name in (WEIGHT_NOISE, LEVEL_NOISE):
        if prefix + name in batch:
            inputs[name] = batch[prefix + name]
    return inputs


def outputs_of_actions(outputs: Tensor, actions: Tensor) -> Tensor:
    """Return the outputs `[N, ...]` of the actions `[N]`, selected from the outputs `[N, A, ...]` of all actions."""
    index = actions.long().reshape(-1, *(1,) * (outputs.dim() - 1))
    return outputs.gather(1, index.expand(-1, 1, *outputs.shape[2:])).squeeze(1)
