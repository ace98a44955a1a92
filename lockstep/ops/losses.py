"""Loss terms, one number for each row (the learner decides which rows count and by what to divide), and targets that
are distributions of returns: on fixed atoms (C51), and as quantiles (QR-DQN, IQN, TQC).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lockstep.ops.autograd import GradientContext
from lockstep.ops.distributions import Distribution


def clipped_surrogate_loss(
    logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    *,
    clip_param: float | Tensor,
    dual_clip: float | None = None,
) -> Tensor:
    """Return PPO's clipped objective, negated (Schulman et al. 2017, arXiv:1707.06347, equation 7).

    `-min(ratio * A, clip(ratio, 1 - clip_param, 1 + clip_param) * A)` with `ratio = exp(logp - old_logp)`.

    Args:
        logp: `[N]`, log-probability of the taken actions under the policy being learned.
        old_logp: `[N]`, the same under the policy that acted (no gradient expected).
        advantages: `[N]`.
        clip_param: > 0, the paper's epsilon.
        dual_clip: None, or c > 1: where `A < 0` the objective is at least `c * A` (Ye et al. 2020,
            arXiv:1912.09729, equation 5), which bounds the loss for large ratios.

    Returns:
        `[N]`, to be minimised.
    """
    negated = -advantages
    # clip(ratio) * A never exceeds A + clip_param * |A|, and equals it wherever it is the smaller of the two.
    bound = negated - clip_param * advantages.abs()
    loss = torch.clamp(torch.exp(logp - old_logp) * negated, min=bound)
    if dual_clip is not None:
        loss = torch.where(advantages < 0.0, torch.minimum(loss, dual_clip * negated), loss)
    return loss


def clipped_value_loss(
    values: Tensor,
    value_targets: Tensor,
    old_values: Tensor | None = None,
    clip_param: float | None = None,
) -> Tensor:
    """Return half the squared error of the values; with `clip_param`, the larger of that and that of clipped values.

    The clipped form is that of OpenAI baselines' PPO2: `v_clipped = old + clip(v - old, -clip_param,
    clip_param)`, `0.5 * max((v - target)**2, (v_clipped - target)**2)`.

    Args:
        values, value_targets: `[N]`.
        old_values: `[N]`, the values at collection; `ValueError` where there are none to clip with.
        clip_param: > 0, in units of the value; None: no clipping.

    Returns:
        `[N]`.
    """
    squared_error = (values - value_targets).square()
    if clip_param is None:
        return 0.5 * squared_error
    if old_values is None:
        raise ValueError("clipping values needs old_values, and there are none")
    clipped = old_values + (values - old_values).clamp(-clip_param, clip_param)
    return 0.5 * torch.maximum(squared_error, (clipped - value_targets).square())


def approximate_kl(logp: Tensor, old_logp: Tensor) -> Tensor:
    """Estimate `KL(old || new)` from actions drawn from the old policy (Schulman 2020, "Approximating KL").

    With `x = logp - old_logp` it is `k3 = exp(x) - 1 - x`: unbiased, never negative.

    Returns:
        `[N]`; average it over rows.
    """
    log_ratio = logp - old_logp
    return torch.expm1(log_ratio) - log_ratio


def clipped_ratios(logp: Tensor, old_logp: Tensor, clip_param: float | Tensor) -> Tensor:
    """Mark the rows whose ratio `exp(logp - old_logp)` is outside of `[1 - clip_param, 1 + clip_param]`.

    Their mean is the clip fraction. It counts ratios on both sides, whatever the sign of the advantage, as OpenAI
    baselines' PPO2 does.

    Returns:
        `[N]`, 1 for a marked row and 0 for any other.
    """
    outside = torch.expm1(logp - old_logp).abs() > clip_param
    return outside.to(logp.dtype)


def imitation_loss(dist: Distribution, actions: Tensor, *, kind: Literal["log_prob", "mse"] = "log_prob") -> Tensor:
    """Return how far a policy is from actions: `-log pi(a | s)`, or the squared distance of its most likely action.

    Args:
        dist: of `N` rows.
        actions: `[N]` or `[N, A]`, as learned from.
        kind: `"mse"`: the mean over the `A` entries of a continuous action.

    Returns:
        `[N]`, to be minimised.
    """
    if kind == "mse":
        return (dist.mode() - actions).square().mean(-1)
    return -dist.log_prob(actions)


def exponential_weights(advantages: Tensor, temperature: float, limit: float | None = None) -> Tensor:
    """Return how much each action counts in advantage-weighted imitation: `min(exp(temperature * A), limit)`.

    Wang et al. 2018, algorithm 1; Kostrikov et al. 2021, arXiv:2110.06169, equation 7.

    Returns:
        `[N]`; finite for every finite advantage where there is a limit.
    """
    exponents = temperature * advantages
    if limit is None:
        return exponents.exp()
    return exponents.clamp(max=math.log(limit)).exp()


def expectile_loss(errors: Tensor, expectile: float) -> Tensor:
    """Return `|tau - 1(u < 0)| u^2`, smallest where a value is the `tau`-expectile.

    Kostrikov et al. 2021, arXiv:2110.06169, equation 5; `tau = 0.5` gives half the squared error.

    Args:
        errors: `[N]`, target minus value.
        expectile: tau, in (0, 1).

    Returns:
        `[N]`.
    """
    return torch.where(errors < 0.0, 1.0 - expectile, expectile) * errors.square()


def project_on_atoms(
    probs: Tensor, rewards: Tensor, discounts: Tensor | float, *, v_min: float, v_max: float
) -> Tensor:
    """Return the distribution of `reward + discount * Z` on the atoms of `Z`.

    Bellemare et al. 2017, arXiv:1707.06887, algorithm 1.

    The atoms are `K` numbers from `v_min` to `v_max` at equal distances. Each moved atom gives its probability to its
    two neighbours, to the nearer one more; what falls outside goes to the ends. So the mean stays, where nothing does.

    Args:
        probs: `[N, K]`, of `Z`; at least two atoms.
        rewards: `[N]`.
        discounts: `[N]`, or one number; 0 where the episode ended.
        v_min, v_max: the first and the last atom.

    Returns:
        `[N, K]`, probabilities.
    """
    num_atoms = probs.shape[-1]
    spacing = (v_max - v_min) / (num_atoms - 1)
    atoms = torch.linspace(v_min, v_max, num_atoms, dtype=probs.dtype, device=probs.device)
    discounts = torch.as_tensor(discounts, dtype=probs.dtype, device=probs.device)
    moved = (rewards.unsqueeze(-1) + discounts.unsqueeze(-1) * atoms).clamp(v_min, v_max)
    position = ((moved - v_min) / spacing).clamp(0.0, num_atoms - 1)  # once more: division rounds
    below = position.floor()
    if probs.device.type != "cpu":  # elsewhere sums by index add up in any order: each run would have other bits
        places = torch.arange(num_atoms, dtype=probs.dtype, device=probs.device)
        shares = (1.0 - (position.unsqueeze(-1) - places).abs()).clamp(min=0.0)  # [N, K, K], from atom to atom
        return (probs.unsqueeze(-2) @ shares).squeeze(-2)
    share = position - below
    index = below.long()
    projected = torch.zeros_like(probs).scatter_add_(-1, index, probs * (1.0 - share))
    return projected.scatter_add_(-1, (index + 1).clamp(max=num_atoms - 1), probs * share)


def quantile_huber_loss(
    quantiles: Tensor, targets: Tensor, *, kappa: float = 1.0, levels: Tensor | None = None
) -> Tensor:
    """Return the quantile Huber loss, summed over the quantiles, the mean over the targets.

    Dabney et al. 2018, arXiv:1710.10044, equation 10; with `levels` arXiv:1806.06923, equation 3.

    Errors up to `kappa` count by their square and beyond it linearly; `kappa` 0: linearly throughout, which is plain
    quantile regression.

    Args:
        quantiles: `[N, K]`, being learned.
        targets: `[N, M]`, samples or quantiles of the target, without a gradient.
        levels: `[N, K]`, in [0, 1], the levels of the quantiles; None: `(k + 1/2) / K`.

    Returns:
        `[N]`.
    """
    if levels is None:
        num = quantiles.shape[-1]
        levels = (torch.arange(num, dtype=quantiles.dtype, device=quantiles.device) + 0.5) / num
    loss: Tensor = _QuantileHuber.apply(quantiles, targets, levels, kappa)
    return loss


class _QuantileHuber(torch.autograd.Function):
    """Loss and gradient from one look at all pairs `[N, K, M]`; autograd would keep and read eight such arrays."""

    @staticmethod
    def forward(ctx: GradientContext, quantiles: Tensor, targets: Tensor, levels: Tensor, kappa: float) -> Tensor:
        errors = targets.unsqueeze(-2) - quantiles.unsqueeze(-1)
        weights = (levels.unsqueeze(-1) - (errors < 0).to(errors.dtype)).abs()
        if kappa > 0.0:
            clipped = errors.clamp(-kappa, kappa)
            slopes = weights * clipped / kappa
            loss = (slopes * (errors - 0.5 * clipped)).mean(-1).sum(-1)
        else:
            slopes = weights * errors.sign()
            loss = (slopes * errors).mean(-1).sum(-1)
        ctx.save_for_backward(slopes.mean(-1))
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: GradientContext, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (slopes,) = ctx.saved_tensors
        return -gradient.unsqueeze(-1) * slopes, None, None, None


def mixture_huber_loss(quantiles: Tensor, targets: Tensor, *, kappa: float = 1.0) -> Tensor:
    """Return `quantile_huber_loss` of several critics against the same targets, which are in rising order.

    Partial sums of the targets take the place of all pairs: with 5 critics of 25 quantiles a tenth of the time.

    Args:
        quantiles: `[C, N, K]`, being learned.
        targets: `[N, M]`, each row in rising order, without a gradient.
        kappa: > 0.

    Returns:
        `[C, N]`.
    """
    loss: Tensor = _MixtureHuber.apply(quantiles, targets, kappa)
    return loss


class _MixtureHuber(torch.autograd.Function):
    """Loss and gradient from sums over the targets below, near under, near above and above each quantile."""

    @staticmethod
    def forward(ctx: GradientContext, quantiles: Tensor, targets: Tensor, kappa: float) -> Tensor:
        num_critics, num = len(quantiles), quantiles.shape[-1]
        levels = (torch.arange(num, dtype=quantiles.dtype, device=quantiles.device) + 0.5) / num
        levels = levels.repeat(num_critics)
        centre = targets.mean(-1, keepdim=True)  # differences of sums of small numbers are exact enough
        ordered = targets - centre
        points = (quantiles - centre).transpose(0, 1).flatten(1)
        places = torch.searchsorted(ordered, torch.cat([points - kappa, points, points + kappa], -1))
        sums = F.pad(torch.stack([torch.ones_like(ordered), ordered, ordered.square()]).cumsum(-1), (1, 0))
        far_below, below, up_to = sums.gather(-1, places.expand(3, -1, -1)).chunk(3, -1)
        near_below, near_above, far_above = below - far_below, up_to - below, sums[..., -1:] - up_to
        # sums of the errors, target minus quantile, and of their squares
        far_under, under, over, far_over = (
            part[1] - part[0] * points for part in (far_below, near_below, near_above, far_above)
        )
        squares_under, squares_over = (
            part[2] - 2.0 * points * part[1] + part[0] * points.square() for part in (near_below, near_above)
        )
        slopes = levels * (over / kappa + far_above[0]) + (1.0 - levels) * (under / kappa - far_below[0])
        loss = levels * (0.5 * squares_over / kappa + far_over - 0.5 * kappa * far_above[0])
        loss = loss + (1.0 - levels) * (0.5 * squares_under / kappa - far_under - 0.5 * kappa * far_below[0])
        count = targets.shape[-1]
        ctx.save_for_backward((slopes / count).unflatten(-1, (num_critics, num)).transpose(0, 1))
        return (loss / count).unflatten(-1, (num_critics, num)).sum(-1).T

    @staticmethod
    @once_differentiable
    def backward(ctx: GradientContext, gradient: Tensor) -> tuple[Tensor, None, None]:
        (slopes,) = ctx.saved_tensors
        return -gradient.unsqueeze(-1) * slopes, None, None
