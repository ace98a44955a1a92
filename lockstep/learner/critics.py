"""What algorithms with critics of actions share: targets, errors, their optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from lockstep.data.columns import Columns
from lockstep.learner.optimizers import fused_adam

if TYPE_CHECKING:
    from lockstep.learner.learner import Learner, TensorColumns

ACTOR, CRITIC = "actor", "critic"
"""names of the optimizers"""


def register_actor_and_critic(learner: Learner, module_id: str, config: Any) -> None:
    """An Adam each for the critics and for all other parameters, with `critic_lr` and `actor_lr` (None: `lr`)."""
    module: Any = learner.module[module_id]
    critics = [p for p in module.critics.parameters() if p.requires_grad]
    own = {id(p) for p in critics}
    actor = [p for p in module.parameters() if p.requires_grad and id(p) not in own]
    for name, params, lr in ((ACTOR, actor, config.actor_lr), (CRITIC, critics, config.critic_lr)):
        make = fused_adam(config.adam_epsilon)
        learner.optimizers.register(module_id, name, make, params, config.lr if lr is None else lr)


def td_targets(batch: TensorColumns, following: Tensor, gamma: float) -> Tensor:
    """`[N]`: reward plus the discounted value `following` `[N]` of what comes next; 0 where the episode terminated.

    A truncated one does go on. Rows of n steps bring their own `discounts`.
    """
    going_on = (~batch[Columns.TERMINATEDS].bool()).to(following.dtype)
    targets: Tensor = batch[Columns.REWARDS] + batch.get(Columns.DISCOUNTS, gamma) * going_on * following
    return targets


def critic_loss(learner: Learner, module_id: str, batch: TensorColumns, values: Tensor, targets: Tensor) -> Tensor:
    """Half the squared errors of all critics `values` `[K, N]`, with the rows' weights where there are any; logged."""
    errors = values - targets
    each = 0.5 * errors.square().sum(0)
    if Columns.WEIGHTS in batch:
        each = each * batch[Columns.WEIGHTS]
    loss = learner.masked_mean(each, batch)
    known = errors.detach()
    learner.row_errors[module_id] = known.abs().mean(0)
    q_mean = learner.masked_mean(values.detach().mean(0), batch)
    td_error = learner.masked_mean(learner.row_errors[module_id], batch)
    learner.log(module_id, critic_loss=loss, q_mean=q_mean, td_error_mean=td_error)
    return loss


def critics_of_actions(module: Any, values: Tensor, batch: TensorColumns) -> Tensor:
    """`[K, N]`: critics' values of the batch's actions: `values` itself, or taken out of `[K, N, A]`."""
    if not module.critics.is_discrete:
        return values
    index = batch[Columns.ACTIONS].long().expand(len(values), -1).unsqueeze(-1)
    return values.gather(-1, index).squeeze(-1)
