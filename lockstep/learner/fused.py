"""Where the losses of PPO and DQN may come from compiled kernels (`ops.fused_ppo`, `ops.fused_q`) instead of dozens of
torch operations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lockstep.data.columns import Columns
from lockstep.learner.action_values import next_q_values
from lockstep.learner.learner import Learner, TensorColumns
from lockstep.learner.reduction import Reducer
from lockstep.modules.action_dist import ActionDist
from lockstep.ops import fused_q
from lockstep.ops.fused_ppo import Others, can_fuse, load_kernel, moments, ppo_loss


def load_fused_loss(learner: Learner, module_id: str) -> None:
    """Has the kernel ready when training begins."""
    action_dist = learner.module[module_id].action_dist_cls
    if type(action_dist) is ActionDist and learner.device.type == "cpu":
        load_kernel(action_dist.dist_class, action_dist.input_size, learner.dtype)


def fused_loss(learner: Learner, module_id: str, config: Any, batch: TensorColumns, fwd_out: Any) -> Tensor | None:
    """The loss that PPO's `compute_loss_for_module` writes out, its terms logged; None where it has to do so.

    That is: masked rows, a KL penalty, an overridden `masked_mean` or `normalized`, an action distribution without a
    kernel, another device, a trace.
    """
    action_dist = learner.module[module_id].action_dist_cls
    inputs, values = fwd_out[Columns.ACTION_DIST_INPUTS], fwd_out[Columns.VF_PREDS]
    names = Columns.ACTIONS, Columns.ACTION_LOGP, Columns.ADVANTAGES, Columns.VALUE_TARGETS, Columns.VF_PREDS
    rows = [batch[name] for name in names[: 4 if config.vf_clip_param is None else 5]]
    if (
        Columns.LOSS_MASK in batch
        or config.kl_coeff > 0
        or type(learner).masked_mean is not Learner.masked_mean
        or type(learner).normalized is not Learner.normalized
        or type(action_dist) is not ActionDist
        or not can_fuse(action_dist.dist_class, inputs, values, *rows)
    ):
        return None
    if learner.reducer.world_size > 1 and not learner.rows_in_step:  # stand-ins, which count for nothing
        rows, inputs, values = [column[:0] for column in rows], inputs[:0], values[:0]
    actions, old_logp, advantages, targets, *old_values = rows
    clip_param, entropy_coeff = (learner.coefficient(module_id, name) for name in ("clip_param", "entropy_coeff"))
    loss, terms = ppo_loss(
        action_dist.dist_class,
        inputs,
        values,
        (actions, old_logp, advantages, targets),
        coefficients=(clip_param, config.vf_loss_coeff, entropy_coeff),
        dual_clip=config.dual_clip,
        old_values=old_values[0] if old_values else None,
        vf_clip_param=config.vf_clip_param,
        normalize=config.normalize_advantages == "minibatch",
        others=_others(learner.reducer, advantages),
    )
    policy_loss, vf_loss, entropy, mean_kl = terms.unbind()
    learner.log(module_id, policy_loss=policy_loss, vf_loss=vf_loss, entropy=entropy, mean_kl_loss=mean_kl)
    return loss


def _others(reducer: Reducer, advantages: Tensor) -> Others | None:
    if reducer.world_size == 1:
        return None
    parts = torch.zeros(reducer.world_size, 3, dtype=torch.float64)
    parts[reducer.rank] = moments(advantages)
    return Others(reducer.sum_(parts), reducer.sum_)


def load_fused_q(learner: Learner, module_id: str) -> None:
    """Has the kernel ready when training begins."""
    space: Any = learner.module[module_id].action_space
    if learner.device.type == "cpu" and learner.reducer.world_size == 1:
        fused_q.load_kernel(int(space.n), learner.dtype)


def fused_q_loss(learner: Learner, module_id: str, config: Any, batch: TensorColumns, fwd_out: Any) -> Tensor | None:
    """The loss that DQN's `compute_loss_for_module` writes out, its terms logged; None where it has to do so: several
    learners, masked rows, an overridden `masked_mean`, another device, a trace.
    """
    values, numbers = fwd_out["q_values"], (Columns.REWARDS, Columns.DISCOUNTS, Columns.WEIGHTS)
    if (
        learner.reducer.world_size > 1
        or Columns.LOSS_MASK in batch
        or type(learner).masked_mean is not Learner.masked_mean
        or not fused_q.can_fuse(values, batch[Columns.ACTIONS], *(batch[name] for name in numbers if name in batch))
    ):
        return None
    following, picking = next_q_values(learner, module_id, config.double_q, batch)
    loss, terms, errors = fused_q.q_loss(
        values,
        (batch[Columns.ACTIONS], batch[Columns.REWARDS], batch[Columns.TERMINATEDS]),
        following,
        picking,
        discounts=batch.get(Columns.DISCOUNTS, config.gamma),
        weights=batch.get(Columns.WEIGHTS),
        huber_delta=config.huber_delta,
    )
    learner.row_errors[module_id] = errors
    qf_loss, q_mean, td_error_mean = terms.unbind()
    learner.log(module_id, qf_loss=qf_loss, q_mean=q_mean, td_error_mean=td_error_mean)
    return loss
