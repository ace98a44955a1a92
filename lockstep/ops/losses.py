"""Loss terms and targets, with one number for each row.

No function here takes a mean over rows: the learner decides which rows count and by which number to divide. The later
half are losses and targets of distributions of returns: on fixed atoms (C51), and as quantiles (QR-DQN, IQN, TQC).
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
        old_logp: `[N]`, their log-probability under the policy that acted, without a gradient.
        advantages: `[N]`.
        clip_param: > 0, the paper's epsilon.
        dual_clip: None, or c > 1: where `A < 0` the objective is at least `c * A` (Ye et al. 2020, arXiv:1912.09729,
            equation 5), which bounds the loss for large ratios.

    Returns:
        `[N]`, to be minimised.
    """
    # One operation less than the equation, with the same values and gradients.
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
    """Return half the squared error of predicted values, optionally with PPO2's clipping.

    The clipped form is that of OpenAI baselines' PPO2: `0.5 * max((v - target)**2, (v_clipped - target)**2)` with
    `v_clipped = old + clip(v - old, -clip_param, clip_param)`.

    Args:
        values, value_targets: `[N]`.
        old_values: `[N]`, the values predicted when the rows were collected. Needed with `clip_param`.
        clip_param: > 0, in units of the value. None switches the clipping off.

    Returns:
        `[N]`.

    Raises:
        ValueError: There is a `clip_param`, but there are no `old_values`.
    """
    squared_error = (values - value_targets).square()
    if clip_param is None:
        return 0.5 * squared_error
    if old_values is None:
        raise ValueError("clipping values needs old_values, and there are none")
    clipped = old_values + (values - old_values).clamp(-clip_param, clip_param)
    return 0.5 * torch.maximum(squared_error, (clipped - value_targets).square())


def approximate_kl(logp: Tensor, old_logp: Tensor) -> Tensor:
    """Return an estimate of `KL(old || new)` from actions of the old policy (Schulman 2020, "Approximating KL").

    With `x = logp - old_logp` it is `k3 = exp(x) - 1 - x`, which is unbiased and never negative.

    Returns:
        `[N]`. The estimate is the mean over the rows.
    """
    # expm1 keeps the digits of a small difference, which `exp(x) - 1` loses.
    log_ratio = logp - old_logp
    return torch.expm1(log_ratio) - log_ratio


def clipped_ratios(logp: Tensor, old_logp: Tensor, clip_param: float | Tensor) -> Tensor:
    """Return which rows have a ratio `exp(logp - old_logp)` outside of `[1 - clip_param, 1 + clip_param]`.

    The mean of the result is the clip fraction. It counts ratios on both sides, whatever the sign of the advantage, as
    OpenAI baselines' PPO2 does.

    Returns:
        `[N]`, 1 for a row with a ratio outside and 0 for any other, in the dtype of `logp`.
    """
    outside = torch.expm1(logp - old_logp).abs() > clip_param
    return outside.to(logp.dtype)


def imitation_loss(dist: Distribution, actions: Tensor, *, kind: Literal["log_prob", "mse"] = "log_prob") -> Tensor:
    """Return the loss of imitating actions: `-log pi(a | s)`, or the squared distance to the most likely action.

    Args:
        dist: The policy's action distribution in `N` states.
        actions: `[N]` or `[N, A]`, the actions to imitate.
        kind: `"log_prob"`, or `"mse"`: the mean squared distance over the `A` entries of a continuous action.

    Returns:
        `[N]`, to be minimised.
    """
    if kind == "mse":
        return (dist.mode() - actions).square().mean(-1)
    return -dist.log_prob(actions)


def exponential_weights(advantages: Tensor, temperature: float, limit: float | None = None) -> Tensor:
    """Return the weight of each action in advantage-weighted imitation: `min(exp(temperature * A), limit)`.

    Wang et al. 2018, algorithm 1; Kostrikov et al. 2021, arXiv:2110.06169, equation 7.

    Args:
        advantages: `[N]`.
        temperature: Factor of the advantages. 0 gives plain imitation.
        limit: Largest weight. None sets no limit.

    Returns:
        `[N]`, finite for every finite advantage if there is a limit.
    """
    exponents = temperature * advantages
    if limit is None:
        return exponents.exp()
    # Limited before `exp`, which would overflow, and whose gradient would then be NaN.
    return exponents.clamp(max=math.log(limit)).exp()


def expectile_loss(errors: Tensor, expectile: float) -> Tensor:
    """Return the expectile loss `|tau - 1(u < 0)| u^2`, which is smallest where a value is the `tau`-expectile.

    Kostrikov et al. 2021, arXiv:2110.06169, equation 5. `tau = 0.5` gives half the squared error.

    Args:
        errors: `[N]`, `u`: target minus value.
        expectile: `tau`, in (0, 1).

    Returns:
        `[N]`.
    """
    return torch.where(errors < 0.0, 1.0 - expectile, expectile) * errors.square()


def project_on_atoms(
    probs: Tensor, rewards: Tensor, discounts: Tensor | float, *, v_min: float, v_max: float
) -> Tensor:
    """Return the distribution of `reward + discount * Z` projected on the atoms of `Z`.

    Bellemare et al. 2017, arXiv:1707.06887, algorithm 1.

    The atoms are `K` numbers from `v_min` to `v_max` at equal distances. Each atom is moved to `reward + discount *
    atom`, and its probability is split between the two atoms next to that place, the nearer one getting more. A place
    outside of the atoms counts as the first or the last one. If none lies outside, the mean is exact.

    Args:
        probs: `[N, K]`, probabilities of the atoms of `Z`; at least two atoms.
        rewards: `[N]`.
        discounts: `[N]`, or one number. 0 where the episode ended.
        v_min, v_max: The first and the last atom.

    Returns:
        `[N, K]`, probabilities.
    """
    num_atoms = probs.shape[-1]
    spacing = (v_max - v_min) / (num_atoms - 1)
    atoms = torch.linspace(v_min, v_max, num_atoms, dtype=probs.dtype, device=probs.device)
    discounts = torch.as_tensor(discounts, dtype=probs.dtype, device=probs.device)
    moved = (rewards.unsqueeze(-1) + discounts.unsqueeze(-1) * atoms).clamp(v_min, v_max)
    # Position of each moved atom, in units of atoms. Limited once more, because the division rounds.
    position = ((moved - v_min) / spacing).clamp(0.0, num_atoms - 1)

    if probs.device.type != "cpu":
        # On a device `scatter_add_` adds in any order, and each run would have other bits. A matrix product does not.
        places = torch.arange(num_atoms, dtype=probs.dtype, device=probs.device)
        shares = (1.0 - (position.unsqueeze(-1) - places).abs()).clamp(min=0.0)  # [N, K, K], from atom to atom
        return (probs.unsqueeze(-2) @ shares).squeeze(-2)

    below = position.floor()
    share = position - below
    index = below.long()
    projected = torch.zeros_like(probs).scatter_add_(-1, index, probs * (1.0 - share))
    return projected.scatter_add_(-1, (index + 1).clamp(max=num_atoms - 1), probs * share)


def quantile_huber_loss(
    quantiles: Tensor, targets: Tensor, *, kappa: float = 1.0, levels: Tensor | None = None
) -> Tensor:
    """Return the quantile Huber loss, summed over the quantiles and averaged over the targets.

    With an error `u = target - quantile` of level `tau` it is `|tau - 1(u < 0)| H(u) / kappa`, where the Huber function
    `H` is `u^2 / 2` up to `kappa` and `kappa (|u| - kappa / 2)` beyond it (Dabney et al. 2018, arXiv:1710.10044,
    equation 10; with `levels` arXiv:1806.06923, equation 3).

    Args:
        quantiles: `[N, K]`, the quantiles to learn.
        targets: `[N, M]`, samples or quantiles of the target, without a gradient.
        kappa: Errors up to `kappa` count by their square, larger ones linearly. With 0 all count linearly, which is
            plain quantile regression.
        levels: `[N, K]`, in [0, 1], the levels of the quantiles. Defaults to `(k + 1/2) / K`.

    Returns:
        `[N]`.
    """
    if levels is None:
        levels = _middle_levels(quantiles)
    loss: Tensor = _QuantileHuber.apply(quantiles, targets, levels, kappa)
    return loss


def _middle_levels(quantiles: Tensor) -> Tensor:
    """Return the levels `(k + 1/2) / K` of quantiles `[..., K]`, as `[K]`."""
    num_quantiles = quantiles.shape[-1]
    return (torch.arange(num_quantiles, dtype=quantiles.dtype, device=quantiles.device) + 0.5) / num_quantiles


class _QuantileHuber(torch.autograd.Function):
    """Quantile Huber loss whose forward pass computes the gradient as well.

    Both come from one pass over all pairs `[N, K, M]`; autograd would keep and read eight such arrays.
    """

    @staticmethod
    def forward(ctx: GradientContext, quantiles: Tensor, targets: Tensor, levels: Tensor, kappa: float) -> Tensor:
        errors = targets.unsqueeze(-2) - quantiles.unsqueeze(-1)
        weights = (levels.unsqueeze(-1) - (errors < 0).to(errors.dtype)).abs()
        # The Huber function is `clip(u) * (u - clip(u) / 2)`, and its derivative is `clip(u)`.
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
        # The derivative by a quantile is minus that by its errors.
        (slopes,) = ctx.saved_tensors
        return -gradient.unsqueeze(-1) * slopes, None, None, None


def mixture_huber_loss(quantiles: Tensor, targets: Tensor, *, kappa: float = 1.0) -> Tensor:
    """Return `quantile_huber_loss` of several critics against the same sorted targets.

    Partial sums of the targets replace all pairs of quantiles and targets: with 5 critics of 25 quantiles that takes a
    tenth of the time.

    Args:
        quantiles: `[C, N, K]`, the quantiles of C critics to learn.
        targets: `[N, M]`, each row in rising order, without a gradient.
        kappa: > 0, as in `quantile_huber_loss`.

    Returns:
        `[C, N]`.
    """
    loss: Tensor = _MixtureHuber.apply(quantiles, targets, kappa)
    return loss


class _MixtureHuber(torch.autograd.Function):
    """Quantile Huber loss from sums over four groups of targets around each quantile.

    Three cuts divide the sorted targets into the groups: more than `kappa` below the quantile, up to `kappa` below it,
    up to `kappa` above it, and more than `kappa` above it. Within a group the loss is a polynomial of the target, so
    the number, the sum and the sum of squares of its targets are enough.
    """

    @staticmethod
    def forward(ctx: GradientContext, quantiles: Tensor, targets: Tensor, kappa: float) -> Tensor:
        num_critics = len(quantiles)
        num_quantiles = quantiles.shape[-1]
        levels = _middle_levels(quantiles).repeat(num_critics)

        # Without the common mean the sums are small, and their differences lose few digits.
        centre = targets.mean(-1, keepdim=True)
        ordered = targets - centre
        points = (quantiles - centre).transpose(0, 1).flatten(1)  # [N, C * K]

        # Number, sum and sum of squares of the first m targets of each row, `[3, N, 1 + M]`, and from these the same of
        # each group, `[3, N, C * K]`.
        places = torch.searchsorted(ordered, torch.cat([points - kappa, points, points + kappa], -1))
        sums = F.pad(torch.stack([torch.ones_like(ordered), ordered, ordered.square()]).cumsum(-1), (1, 0))
        far_below, below, up_to = sums.gather(-1, places.expand(3, -1, -1)).chunk(3, -1)
        near_below = below - far_below
        near_above = up_to - below
        far_above = sums[..., -1:] - up_to

        # Sums of the errors (target minus quantile) of each group, and of their squares for the two near groups.
        far_under, under, over, far_over = (
            part[1] - part[0] * points for part in (far_below, near_below, near_above, far_above)
        )
        squares_under, squares_over = (
            part[2] - 2.0 * points * part[1] + part[0] * points.square() for part in (near_below, near_above)
        )

        # Targets above a quantile weigh `tau`, those below `1 - tau`. Slopes are derivatives by the errors.
        slopes = levels * (over / kappa + far_above[0]) + (1.0 - levels) * (under / kappa - far_below[0])
        loss = levels * (0.5 * squares_over / kappa + far_over - 0.5 * kappa * far_above[0])
        loss = loss + (1.0 - levels) * (0.5 * squares_under / kappa - far_under - 0.5 * kappa * far_below[0])

        num_targets = targets.shape[-1]
        shape = (num_critics, num_quantiles)
        ctx.save_for_backward((slopes / num_targets).unflatten(-1, shape).transpose(0, 1))
        return (loss / num_targets).unflatten(-1, shape).sum(-1).T

    @staticmethod
    @once_differentiable
    def backward(ctx: GradientContext, gradient: Tensor) -> tuple[Tensor, None, None]:
        (slopes,) = ctx.saved_tensors
        return -gradient.unsqueeze(-1) * slopes, None, None
