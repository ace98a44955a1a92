"""Where the loss of PPO may come from the compiled kernel of `ops.fused_ppo` instead of forty torch operations."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lockstep.data.columns import Columns
from lockstep.learner.learner import Learner, TensorColumns
from lockstep.modules.action_dist import ActionDist
from lockstep.ops.fused_ppo import can_fuse, load_kernel, ppo_loss


def load_fused_loss(learner: Learner, module_id: str) -> None:
    """Has the kernel ready when training begins."""
    action_dist = learner.module[module_id].action_dist_cls
    if type(action_dist) is ActionDist and learner.device.type == "cpu":
        load_kernel(action_dist.dist_class, action_dist.input_size, learner.dtype)


def fused_loss(learner: Learner, module_id: str, config: Any, batch: TensorColumns, fwd_out: Any) -> Tensor | None:
    """The loss that PPO's `compute_loss_for_module` writes out, its terms logged; None where it has to do so.

    That is: several learners, masked rows, a KL penalty, an overridden `masked_mean` or `normalized`, an action
    distribution without a kernel, another device, a trace.
    """
    action_dist = learner.module[module_id].action_dist_cls
    inputs, values = fwd_out[Columns.ACTION_DIST_INPUTS], fwd_out[Columns.VF_PREDS]
    if (
        learner.reducer.world_size > 1
        or Columns.LOSS_MASK in batch
        or config.kl_coeff > 0
        or type(learner).masked_mean is not Learner.masked_mean
        or type(learner).normalized is not Learner.normalized
        or type(action_dist) is not ActionDist
        or not can_fuse(action_dist.dist_class, inputs, values, batch[Columns.ACTIONS])
    ):
        return None
    rows = batch[Columns.ACTIONS], batch[Columns.ACTION_LOGP], batch[Columns.ADVANTAGES], batch[Columns.VALUE_TARGETS]
    clip_param, entropy_coeff = (learner.coefficient(module_id, name) for name in ("clip_param", "entropy_coeff"))
    loss, terms = ppo_loss(
        action_dist.dist_class,
        inputs,
        values,
        rows,
        coefficients=(clip_param, config.vf_loss_coeff, entropy_coeff),
        dual_clip=config.dual_clip,
        old_values=batch.get(Columns.VF_PREDS),
        vf_clip_param=config.vf_clip_param,
        normalize=config.normalize_advantages == "minibatch",
    )
    policy_loss, vf_loss, entropy, mean_kl = terms.unbind()
    learner.log(module_id, policy_loss=policy_loss, vf_loss=vf_loss, entropy=entropy, mean_kl_loss=mean_kl)
    return loss
