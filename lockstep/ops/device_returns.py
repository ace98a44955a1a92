"""Generalized advantage estimation on tensors of any device.

`lockstep.ops.returns` computes the same from numpy arrays, in a compiled kernel; its conventions hold here. Sums run in
the dtype of the values (there: in float64), because many devices are slow in float64.
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
    """Return the generalized advantage estimates and value targets of a rollout, as `lockstep.ops.gae` does.

    `A[t] = delta[t] + gamma * lambda * (1 - cut[t]) * A[t + 1]` with
    `delta[t] = r[t] + gamma * (1 - terminated[t]) * next_values[t] - values[t]`.

    Args:
        rewards: `[T, B]`.
        values: `[T, B]`, value of the observation acted on.
        next_values: `[T, B]`, value of the true next observation.
        terminateds: `[T, B]` bool, whether the episode terminated with this step.
        cuts: `[T, B]` bool, whether the next row belongs to another episode (terminated or truncated).
        gamma: Discount in [0, 1].
        lambda_: Lambda of the estimator in [0, 1].

    Returns:
        `(advantages, value_targets)`, each `[T, B]`.
    """
    # `where`, not a product with the mask: the next value of a terminated row may be NaN and must not be used.
    deltas = torch.where(terminateds, 0.0, next_values).mul_(gamma).add_(rewards).sub_(values)
    decay = torch.where(cuts, 0.0, values.new_full((), gamma * lambda_))

    # The recursion runs in place. One operation a step, so T launches on a device.
    advantages = deltas
    for t in range(len(advantages) - 2, -1, -1):
        advantages[t].addcmul_(decay[t], advantages[t + 1])
    return advantages, advantages + values
