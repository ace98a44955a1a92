"""Trust-region steps: products with second derivatives, conjugate gradient, and a backtracking line search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


def hessian_product(value: Tensor, parameters: Sequence[Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the function `v -> H v`, where `H` is the matrix of second derivatives of `value` by all `parameters`.

    `H v` is the gradient of `gradient(value) @ v` (Pearlmutter 1994), so `H` is never formed. If `value` is the mean KL
    divergence of a distribution from itself, `H` is the Fisher matrix.

    Args:
        value: 0-d tensor with its graph.
        parameters: Tensors with `n` entries in all. A parameter that `value` does not depend on has zeros in `H`.

    Returns:
        A function from `[n]` to `[n]`: the entries of all parameters, flattened and in a row.
    """
    gradients = torch.autograd.grad(value, parameters, create_graph=True, allow_unused=True)
    flat_gradient = torch.cat([gradient.reshape(-1) for gradient in gradients if gradient is not None])
    # Marks the entries of a vector that belong to parameters with a gradient.
    masks = [
        torch.full((parameter.numel(),), gradient is not None, dtype=torch.bool, device=parameter.device)
        for gradient, parameter in zip(gradients, parameters)
    ]
    has_gradient = torch.cat(masks)

    def product(vector: Tensor) -> Tensor:
        with torch.enable_grad():
            slope_along_vector = flat_gradient @ vector[has_gradient]
        rows = torch.autograd.grad(slope_along_vector, parameters, retain_graph=True, allow_unused=True)
        flat_rows = []
        for row, parameter in zip(rows, parameters):
            flat_row = torch.zeros_like(parameter) if row is None else row
            flat_rows.append(flat_row.reshape(-1))
        return torch.cat(flat_rows)

    return product


@torch.no_grad()
def conjugate_gradient(product: Callable[[Tensor], Tensor], b: Tensor, iterations: int) -> Tensor:
    """Return an approximate solution `x` `[n]` of `A x = b`, for a positive definite `A` given by `product(v) = A v`.

    Nocedal & Wright 2006, algorithm 5.2. Stops early where the residual's norm is 1e-10 of that of `b`.
    """
    x = torch.zeros_like(b)
    residual = b.clone()
    direction = b.clone()
    start = residual @ residual
    size = start
    for _ in range(iterations):
        if not size > 1e-20 * start:  # written so that NaN stops as well
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
    """Return the step `x` `[n]` with the largest `gradient @ x` among those with `x A x / 2 <= radius`.

    `x = sqrt(2 radius / s A s) s` with `s = A^-1 gradient` (Schulman et al. 2015, appendix C).

    Args:
        product: Function `v -> A v`, for a positive definite `A`.
        gradient: `[n]`.
        radius: Size of the trust region.
        iterations: Limit of the iterations of conjugate gradient, which computes `s`.
    """
    direction = conjugate_gradient(product, gradient, iterations)
    return (2.0 * radius / (direction @ product(direction))).sqrt() * direction


class LineSearchResult(NamedTuple):
    """Accepted step of a line search, with its loss and distance.

    If no step was accepted: zeros, and the loss before the step.
    """

    step: Tensor
    """`[n]`."""
    share: Tensor
    """0-d, the length of the step as a share of the full step."""
    loss: Tensor
    """0-d, the loss after the step."""
    distance: Tensor
    """0-d, the distance of the step, for example a KL divergence."""


@torch.no_grad()
def line_search(
    step: Tensor,
    evaluate: Callable[[Tensor], tuple[Tensor, Tensor]],
    loss: Tensor,
    max_distance: float,
    num_steps: int,
    shrink: float,
) -> LineSearchResult:
    """Return the longest acceptable one of `num_steps` steps, each of which is `shrink` times the one before.

    Args:
        step: `[n]`, the first and longest step.
        evaluate: Function that returns the loss and the distance of a step.
        loss: 0-d, the loss before the step. An acceptable step has a lower one.
        max_distance: Largest distance of an acceptable step.
        num_steps: Number of steps to try.
        shrink: Factor in (0, 1).
    """
    share = 1.0
    for _ in range(num_steps):
        new_loss, distance = evaluate(share * step)
        # Both comparisons are false for NaN: a step that is not finite is never accepted.
        if bool(new_loss < loss) and bool(distance <= max_distance):
            return LineSearchResult(share * step, loss.new_tensor(share), new_loss, distance)
        share *= shrink
    zero = torch.zeros_like(loss)
    return LineSearchResult(torch.zeros_like(step), zero, loss, zero)
