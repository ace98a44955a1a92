"""Generalized advantage estimation, TD(lambda) returns and V-trace on tensors of any device.

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


def tensor_lambda_returns(
    rewards: Tensor, next_values: Tensor, terminateds: Tensor, cuts: Tensor, *, gamma: float, lambda_: float
) -> Tensor:
    """Return the TD(lambda) returns of a rollout, `[T, B]`, as `lockstep.ops.lambda_returns` does.

    Args:
        rewards: `[T, B]`.
        next_values: `[T, B]`, value of the true next observation.
        terminateds: `[T, B]` bool, whether the episode terminated with this step.
        cuts: `[T, B]` bool, whether the next row belongs to another episode (terminated or truncated).
        gamma: Discount in [0, 1].
        lambda_: In [0, 1]. 0 takes one step of rewards, 1 the rest of the episode or rollout.
    """
    is_last = cuts.clone()
    is_last[-1] = True
    # Where no row follows, the next value has the whole weight.
    bootstrap_weights = torch.where(is_last, gamma, rewards.new_full((), gamma * (1.0 - lambda_)))
    # `where`, not a product with the mask: the next value of a terminated row may be NaN and must not be used.
    returns = torch.where(terminateds, 0.0, next_values).mul_(bootstrap_weights).add_(rewards)
    decay = torch.where(is_last, 0.0, rewards.new_full((), gamma * lambda_))
    for t in range(len(returns) - 2, -1, -1):
        returns[t].addcmul_(decay[t], returns[t + 1])
    return returns


def tensor_vtrace(
    log_ratios: Tensor,
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminateds: Tensor,
    cuts: Tensor,
    *,
    gamma: float,
    lambda_: float = 1.0,
    clip_rho: float | None = 1.0,
    clip_c: float | None = 1.0,
    clip_pg_rho: float | None = 1.0,
    weighted: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return the V-trace targets and policy-gradient advantages of a rollout, as `lockstep.ops.vtrace` does.

    Espeholt et al. 2018, arXiv:1802.01561, equations 1 and 4. `lockstep.ops.vtrace` has the equations in full.

    Args:
        log_ratios: `[T, B]`, log-probability of the taken action under the learned policy minus its log-probability
            under the policy that acted.
        rewards: `[T, B]`.
        values: `[T, B]`, value of the observation acted on.
        next_values: `[T, B]`, value of the true next observation.
        terminateds: `[T, B]` bool, whether the episode terminated with this step.
        cuts: `[T, B]` bool, whether the next row belongs to another episode (terminated or truncated).
        gamma: Discount in [0, 1].
        lambda_: In [0, 1].
        clip_rho, clip_c, clip_pg_rho: Upper limits of the importance weights, > 0. None sets no limit.
        weighted: False leaves the factor `min(clip_pg_rho, ratio)` out of the advantages.

    Returns:
        `(vs, pg_advantages)`, each `[T, B]`.
    """
    ratios = log_ratios.exp()
    # `where`, not a product with the mask: the next value of a terminated row may be NaN and must not be used.
    one_step = torch.where(terminateds, 0.0, next_values).mul_(gamma).add_(rewards).sub_(values)
    discounts = torch.where(cuts, 0.0, values.new_full((), gamma * lambda_))

    # `corrections[t]` is `vs[t] - values[t]`. The recursion runs in place. One operation a step, so T launches on a
    # device.
    corrections = _limited(ratios, clip_rho) * one_step
    decay = discounts * _limited(ratios, clip_c)
    for t in range(len(corrections) - 2, -1, -1):
        corrections[t].addcmul_(decay[t], corrections[t + 1])

    # The last row has no row after it: there the next value alone is bootstrapped from.
    advantages = one_step
    advantages[:-1].addcmul_(discounts[:-1], corrections[1:])
    if weighted:
        advantages = _limited(ratios, clip_pg_rho) * advantages
    return values + corrections, advantages


def _limited(ratios: Tensor, limit: float | None) -> Tensor:
    """Return importance weights of at most `limit`. None sets no limit."""
    return ratios if limit is None else ratios.clamp(max=limit)
