"""Steps within a trust region: products with second derivatives, conjugate gradient, a line search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


def hessian_product(value: Tensor, parameters: Sequence[Tensor]) -> Callable[[Tensor], Tensor]:
    """Return `f(v)`, the matrix of second derivatives of `value` (0-d) times `v` `[n]`, for all `parameters` in a row.

    The gradient is differentiated once more along `v` (Pearlmutter 1994), so no matrix is made. Of the mean KL
    divergence from a distribution to itself that matrix is the Fisher matrix.
    """
    gradients = torch.autograd.grad(value, parameters, create_graph=True, allow_unused=True)
    used = [(gradient, parameter) for gradient, parameter in zip(gradients, parameters) if gradient is not None]
    gradient = torch.cat([each.reshape(-1) for each, _ in used])
    is_used = torch.cat([parameter.new_full((parameter.numel(),), each is not None, dtype=torch.bool)
                         for each, parameter in zip(gradients, parameters)])  # fmt: skip

    def product(vector: Tensor) -> Tensor:
        with torch.enable_grad():
            along = gradient @ vector[is_used]
        found = torch.autograd.grad(along, parameters, retain_graph=True, allow_unused=True)
        return torch.cat(
            [
                torch.zeros_like(parameter).reshape(-1) if each is None else each.reshape(-1)
                for each, parameter in zip(found, parameters)
            ]
        )

    return product


@torch.no_grad()
def conjugate_gradient(product: Callable[[Tensor], Tensor], b: Tensor, iterations: int) -> Tensor:
    """Return `x` `[n]` with `A x` near `b`, for a positive definite matrix that is known by `product(v) = A v`.

    Stops early where the residual is 1e-10 of `b` (Nocedal & Wright 2006, algorithm 5.2).
    """
    x, residual, direction = torch.zeros_like(b), b.clone(), b.clone()
    size = start = residual @ residual
    for _ in range(iterations):
        if not size > 1e-20 * start:  # also where it is NaN
            break
        image = product(direction)
        length = size / (direction @ image)
        x += length * direction
        residual -= length * image
        new_size = residual @ residual
        direction = residual + (new_size / size) * direction
        size = new_size
    return x


@torch.no_grad()
def natural_step(product: Callable[[Tensor], Tensor], gradient: Tensor, radius: float, iterations: int) -> Tensor:
    """Return the step `[n]` that gains most by `gradient` where `x A x / 2` is `radius` at most; `product(v) = A v`.

    `s = A^-1 g`, scaled by `sqrt(2 radius / s A s)` (Schulman et al. 2015, appendix C).
    """
    direction = conjugate_gradient(product, gradient, iterations)
    return (2.0 * radius / (direction @ product(direction))).sqrt() * direction


class LineSearchResult(NamedTuple):
    """A step that is good, and what it gives; zeros and the loss before it where none was."""

    step: Tensor
    """[n]"""
    share: Tensor
    """0-d: of the whole step"""
    loss: Tensor
    """0-d"""
    distance: Tensor
    """0-d"""


@torch.no_grad()
def line_search(
    step: Tensor,
    try_out: Callable[[Tensor], tuple[Tensor, Tensor]],
    loss: Tensor,
    max_distance: float,
    num: int,
    shrink: float,
) -> LineSearchResult:
    """Return the longest good one of `num` steps, each `shrink` times the one before.

    `try_out(step)` returns a loss and a distance: a step is good that brings the loss below `loss`, at a distance of
    `max_distance` at most.
    """
    share = 1.0
    for _ in range(num):
        new_loss, distance = try_out(share * step)
        if bool(new_loss < loss) and bool(distance <= max_distance):
            return LineSearchResult(share * step, loss.new_tensor(share), new_loss, distance)
        share *= shrink
    zero = torch.zeros_like(loss)
    return LineSearchResult(torch.zeros_like(step), zero, loss, zero)
