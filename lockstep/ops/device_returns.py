"""Advantages of time-major rewards that are tensors on a device (`lockstep.ops.returns` has those of arrays).

The conventions are those of `lockstep.ops.returns`; sums run in the dtype of the values.
"""

from __future__ import annotations

import torch
from torch import Tensor


def tensor_gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminateds: Tensor,
    cuts: Tensor,
    *,
    gamma: float,
    lambda_: float,
) -> tuple[Tensor, Tensor]:
    """Return generalized advantage estimation, as `lockstep.ops.gae` does; one operation for each of T steps.

    Args:
        rewards, values, next_values: `[T, B]`.
        terminateds, cuts: bool `[T, B]`.

    Returns:
        `(advantages, value_targets)`, each `[T, B]`.
    """
    advantages = torch.where(terminateds, 0.0, next_values).mul_(gamma).add_(rewards).sub_(values)  # delta
    decay = torch.where(cuts, 0.0, values.new_full((), gamma * lambda_))
    for t in range(len(advantages) - 2, -1, -1):
        advantages[t].addcmul_(decay[t], advantages[t + 1])
    return advantages, advantages + values
