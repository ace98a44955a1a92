"""Distributions of returns: on fixed atoms (C51), and as quantiles (QR-DQN)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def project_on_atoms(
    probs: Tensor, rewards: Tensor, discounts: Tensor | float, *, v_min: float, v_max: float
) -> Tensor:
    """Return the distribution of `reward + discount * Z` on the atoms of `Z`.

    Bellemare et al. 2017, arXiv:1707.06887, algorithm 1.

    The atoms are `K` numbers from `v_min` to `v_max` at equal distances. Each moved atom gives its probability to its
    two neighbours, to the nearer one more; what falls outside goes to the ends. So the mean stays, where nothing does.

    Args:
        probs: `[N, K]`, of `Z`.
        rewards: `[N]`.
        discounts: `[N]`, or one number; 0 where the episode ended.
        v_min, v_max: the first and the last atom.

    Returns:
        `[N, K]`, probabilities.

    Raises:
        ValueError: fewer than two atoms, or `v_min` not below `v_max`.
    """
    num_atoms = probs.shape[-1]
    if num_atoms < 2 or not v_min < v_max:
        raise ValueError(f"a distribution needs two atoms and v_min < v_max, got {num_atoms} from {v_min} to {v_max}")
    spacing = (v_max - v_min) / (num_atoms - 1)
    atoms = torch.linspace(v_min, v_max, num_atoms, dtype=probs.dtype, device=probs.device)
    discounts = torch.as_tensor(discounts, dtype=probs.dtype, device=probs.device)
    moved = (rewards.unsqueeze(-1) + discounts.unsqueeze(-1) * atoms).clamp(v_min, v_max)
    position = ((moved - v_min) / spacing).clamp(0.0, num_atoms - 1)  # once more: division rounds
    below = position.floor()
    share = position - below
    index = below.long()
    projected = torch.zeros_like(probs).scatter_add_(-1, index, probs * (1.0 - share))
    return projected.scatter_add_(-1, (index + 1).clamp(max=num_atoms - 1), probs * share)


def quantile_huber_loss(quantiles: Tensor, targets: Tensor, *, kappa: float = 1.0) -> Tensor:
    """Return the quantile Huber loss, summed over the quantiles, the mean over the targets.

    Dabney et al. 2018, arXiv:1710.10044, equation 10.

    `quantiles` `[N, K]` stand for the levels `(k + 1/2) / K`. Errors up to `kappa` count by their square and beyond it
    linearly; `kappa` 0: linearly throughout, which is plain quantile regression.

    Args:
        quantiles: `[N, K]`, being learned.
        targets: `[N, M]`, samples or quantiles of the target, without a gradient.

    Returns:
        `[N]`.

    Raises:
        ValueError: a negative `kappa`.
    """
    if not kappa >= 0.0:
        raise ValueError(f"kappa={kappa!r} is not allowed; it must be at least 0")
    loss: Tensor = _QuantileHuber.apply(quantiles, targets, kappa)
    return loss


class _QuantileHuber(torch.autograd.Function):
    """Loss and gradient from one look at all pairs `[N, K, M]`; autograd would keep and read eight such arrays."""

    @staticmethod
    def forward(ctx: Any, quantiles: Tensor, targets: Tensor, kappa: float) -> Tensor:
        num = quantiles.shape[-1]
        levels = (torch.arange(num, dtype=quantiles.dtype, device=quantiles.device) + 0.5) / num
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
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (slopes,) = ctx.saved_tensors
        return -gradient.unsqueeze(-1) * slopes, None, None
