"""What losses on single transitions share: the columns they read, and what they do with rewards and critics."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lockstep.data.columns import Columns
from lockstep.learner.learner import Learner
from lockstep.learner.minibatches import TensorColumns

COLUMNS = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.NEXT_OBS)
"""what the losses read, and `discounts` and `weights` where they are there"""


def discounts_of(batch: TensorColumns, gamma: float, dtype: torch.dtype) -> Tensor:
    """Return `[N]`, what the value of the next observation is multiplied with.

    0 where the episode terminated, not where it was truncated; of n steps as the buffer says.
    """
    going_on = (~batch[Columns.TERMINATEDS].bool()).to(dtype)
    return going_on * batch.get(Columns.DISCOUNTS, gamma)


def td_targets(batch: TensorColumns, following: Tensor, gamma: float) -> Tensor:
    """Return `[N]`, reward plus the discounted value `following` `[N]` of what comes next; 0 where it terminated.

    A truncated episode does go on. Rows of n steps bring their own `discounts`.
    """
    going_on = (~batch[Columns.TERMINATEDS].bool()).to(following.dtype)
    targets: Tensor = batch[Columns.REWARDS] + batch.get(Columns.DISCOUNTS, gamma) * going_on * following
    return targets


def values_of_actions(batch: TensorColumns, values: Tensor, is_discrete: bool) -> Tensor:
    """Return `[K, N]`, critics' values of the batch's actions: `values` itself, or taken out of `[K, N, A]`."""
    if not is_discrete:
        return values
    index = batch[Columns.ACTIONS].long().expand(len(values), -1).unsqueeze(-1)
    return values.gather(-1, index).squeeze(-1)


def critic_loss(batch: TensorColumns, values: Tensor, targets: Tensor, *, module_id: str, learner: Learner) -> Tensor:
    """Return half the squared errors of all critics `values` `[K, N]`, with the rows' weights, if any; logged.

    The errors `[N]` are left for the priorities of a replay buffer.
    """
    errors = values - targets
    each = 0.5 * errors.square().sum(0)
    if Columns.WEIGHTS in batch:
        each = each * batch[Columns.WEIGHTS]
    loss = learner.masked_mean(each, batch)
    learner.row_errors[module_id] = errors.detach().abs().mean(0)
    q_mean = learner.masked_mean(values.detach().mean(0), batch)
    td_error = learner.masked_mean(learner.row_errors[module_id], batch)
    learner.log(module_id, critic_loss=loss, q_mean=q_mean, td_error_mean=td_error)
    return loss


def actor_and_critics(module: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the parameters of a module's `critics`, after all others."""
    critics: list[nn.Parameter] = list(module.critics.parameters())  # type: ignore[union-attr]
    ids = {id(param) for param in critics}
    return [param for param in module.parameters() if id(param) not in ids], critics
