"""Several multilayer perceptrons of one shape as one differentiable function, for networks with one output on the CPU.

Twin critics spend their time in the products of their hidden layers; around these, torch's own operations cost as much
again where a layer has one output (a batched product with one column takes 145 us for what a sum takes 24) and where a
new tensor is made for each activation. Here activations are made in place, the last layer is a sum, and the gradient of
weights that stand still is left out. Results are those of the plain layers up to rounding.

In bfloat16 (`half=True`) the products are; inputs, outputs, weights and their gradients stay in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def batched_mlp(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], *, frozen: bool = False, half: bool = False
) -> Tensor:
    """`x` `[N, I]` through K networks of rectified layers: outputs `[K, N]`.

    `weights` `[K, inputs, outputs]` and `biases` `[K, 1, outputs]` of each layer, of which the last has one output.
    `frozen`: the gradient goes to `x` only. `half`: products in bfloat16. All on the CPU, in float32 or (not with
    `half`) float64. Differentiable any number of times; not for `torch.func`.
    """
    if frozen:
        weights, biases = [weight.detach() for weight in weights], [bias.detach() for bias in biases]
    if torch.is_grad_enabled():
        out: Tensor = _BatchedMlp.apply(x, half, *weights, *biases)
        return out
    return _forward(x, weights, biases, half)[0]


def _forward(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], half: bool) -> tuple[Tensor, list[Tensor]]:
    """The outputs, and the hidden layers' after their activations (the first of all is the input)."""
    hidden = [(x.bfloat16() if half else x).expand(len(weights[0]), -1, -1)]
    for weight, bias in zip(weights[:-1], biases[:-1]):
        if half:
            weight, bias = weight.bfloat16(), bias.bfloat16()
        hidden.append(torch.baddbmm(bias, hidden[-1], weight).relu_())
    if half:
        out = torch.bmm(weights[-1].bfloat16().transpose(1, 2), hidden[-1].transpose(1, 2)).squeeze(1).float()
    else:
        out = torch.linalg.vecdot(hidden[-1], weights[-1].transpose(1, 2))
    return out + biases[-1].squeeze(2), hidden


class _BatchedMlp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, half: bool, *parameters: Tensor) -> Tensor:
        depth = len(parameters) // 2
        out, hidden = _forward(x, parameters[:depth], parameters[depth:], half)
        ctx.half = half
        ctx.save_for_backward(x, *parameters, *hidden)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        depth = len(ctx.saved_tensors) // 3
        x, *rest = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _differentiable_backward(x, rest[: 2 * depth], gradient)
        weights, hidden = rest[:depth], rest[2 * depth :]
        needs_x, needs_weights = ctx.needs_input_grad[0], ctx.needs_input_grad[2]
        dtype = torch.bfloat16 if ctx.half else gradient.dtype
        of_weights, of_biases = list(weights), list(weights)
        column = gradient.unsqueeze(2).to(dtype)
        if needs_weights:
            of_biases[-1] = gradient.sum(1).view(-1, 1, 1)
            of_weights[-1] = torch.bmm(column.transpose(1, 2), hidden[-1]).transpose(1, 2).to(gradient.dtype)
        below = column * weights[-1].transpose(1, 2).to(dtype)
        for i in range(depth - 2, -1, -1):
            torch.ops.aten.threshold_backward.grad_input(below, hidden[i + 1], 0, grad_input=below)
            if needs_weights:
                of_biases[i] = below.sum(1, keepdim=True, dtype=gradient.dtype)
                of_weights[i] = torch.bmm(hidden[i].transpose(1, 2), below).to(gradient.dtype)
            if i or needs_x:
                below = torch.bmm(below, weights[i].transpose(1, 2).to(dtype))
        of_x = below.sum(0, dtype=gradient.dtype) if needs_x else None
        parameters = (*of_weights, *of_biases) if needs_weights else (None,) * (2 * depth)
        return of_x, None, *parameters


def _differentiable_backward(x: Tensor, parameters: Sequence[Tensor], gradient: Tensor) -> tuple[Any, ...]:
    """For `create_graph=True`: the layers once more, one by one, so that the gradient can be differentiated."""
    depth = len(parameters) // 2
    out = x.expand(len(parameters[0]), -1, -1)
    for i, (weight, bias) in enumerate(zip(parameters[:depth], parameters[depth:])):
        out = torch.baddbmm(bias, out, weight)
        out = out.relu() if i < depth - 1 else out
    wanted = [tensor for tensor in (x, *parameters) if tensor.requires_grad]
    given = torch.autograd.grad(out.squeeze(2), wanted, gradient, create_graph=True)
    found = dict(zip(map(id, wanted), given))
    of_x, *of_parameters = [found.get(id(tensor)) for tensor in (x, *parameters)]
    return of_x, None, *of_parameters
