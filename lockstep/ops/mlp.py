"""Multilayer perceptrons as differentiable functions, for small networks on the CPU.

There, most of the time goes into what lies between the matrix products. `mlps` runs all layers of all networks that
read the same input in one forward and one backward function; tanh is numpy's, whose vector form is faster than torch's,
and the gradient of a layer with few inputs is taken in the order that is fast. Results are those of the plain layers up
to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from lockstep.ops.autograd import GradientContext

ACTIVATIONS = ("tanh", "relu")


Layers = tuple[Sequence[Tensor], Sequence[Tensor]]
"""weights `[O, I]` and biases `[O]` of one network"""


def mlps(x: Tensor, networks: Sequence[Layers], activation: str, activate_last: bool) -> Sequence[Tensor]:
    """Return `x` `[N, I]` through each network: outputs `[N, width of the last layer]`.

    A layer is `activation(x @ weight.T + bias)`, the last one linear unless `activate_last`. All float32 or float64 on
    the CPU; `activation` "tanh" or "relu". Differentiable any number of times, and traceable (`make_fx`); not for
    `torch.func`.
    """
    if torch.is_grad_enabled():
        parameters = [tensor for weights, biases in networks for tensor in (*weights, *biases)]
        depths = [len(weights) for weights, _ in networks]
        return _Mlps.apply(x, depths, activation, activate_last, *parameters)
    return [_forward(x, weights, biases, activation, activate_last)[-1] for weights, biases in networks]


def _forward(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], activation: str, activate_last: bool
) -> list[Tensor]:
    """Return the output of each layer."""
    outputs: list[Tensor] = []
    use_numpy = activation == "tanh" and not is_in_torch_dispatch_mode()  # a trace would not see numpy
    num_activated = len(weights) if activate_last else len(weights) - 1
    for weight, bias in zip(weights, biases):
        x = torch.addmm(bias, x, weight.t())
        if len(outputs) < num_activated:
            if use_numpy:
                array = x.numpy()
                np.tanh(array, array)
            else:
                x = torch.tanh(x) if activation == "tanh" else torch.relu(x)
        outputs.append(x)
    return outputs


def _split(tensors: Sequence[Tensor], depths: Sequence[int]) -> list[Layers]:
    """Return the parameters of each network, from all of them in a row."""
    networks, start = [], 0
    for depth in depths:
        networks.append((tensors[start : start + depth], tensors[start + depth : start + 2 * depth]))
        start += 2 * depth
    return networks


class _MlpsContext(GradientContext, Protocol):
    depths: Sequence[int]
    activation: str
    activate_last: bool


class _Mlps(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _MlpsContext,
        x: Tensor,
        depths: Sequence[int],
        activation: str,
        activate_last: bool,
        *parameters: Tensor,
    ) -> tuple[Tensor, ...]:
        outputs = [_forward(x, *layers, activation, activate_last) for layers in _split(parameters, depths)]
        ctx.depths, ctx.activation, ctx.activate_last = depths, activation, activate_last
        ctx.save_for_backward(x, *parameters, *(output for layers in outputs for output in layers))
        return tuple(layers[-1] for layers in outputs)

    @staticmethod
    def backward(ctx: _MlpsContext, *gradients: Tensor) -> tuple[Any, ...]:
        x, *saved = ctx.saved_tensors
        num_parameters = 2 * sum(ctx.depths)
        networks, outputs = _split(saved[:num_parameters], ctx.depths), saved[num_parameters:]
        if torch.is_grad_enabled():
            return _differentiable_backward(ctx, x, networks, gradients)
        of_parameters: list[Tensor] = []
        of_x: Tensor | None = None
        settings = ctx.activation, ctx.activate_last, ctx.needs_input_grad[0]
        for (weights, _), gradient in zip(networks, gradients):
            of_network, below = _backward(x, weights, outputs[: len(weights)], gradient, *settings)
            outputs = outputs[len(weights) :]
            of_parameters += of_network
            of_x = below if of_x is None or below is None else of_x + below
        return (of_x, None, None, None, *of_parameters)


def _backward(
    x: Tensor,
    weights: Sequence[Tensor],
    outputs: Sequence[Tensor],
    gradient: Tensor,
    activation: str,
    activate_last: bool,
    needs_x: bool,
) -> tuple[list[Tensor], Tensor | None]:
    """Return the gradients of one network's weights and biases, and that of `x` if it is needed."""
    aten, last = torch.ops.aten, len(weights) - 1
    of_weights, of_biases = [gradient] * len(weights), [gradient] * len(weights)
    for i in range(last, -1, -1):
        if i < last or activate_last:
            if activation == "tanh":
                gradient = aten.tanh_backward.default(gradient, outputs[i])
            else:
                gradient = aten.threshold_backward.default(gradient, outputs[i], 0)
        below = outputs[i - 1] if i else x
        # Fewer columns on the left: the order in which the product is fast.
        is_narrow = below.shape[1] < gradient.shape[1]
        of_weights[i] = below.t().mm(gradient).t() if is_narrow else gradient.t().mm(below)
        of_biases[i] = gradient.sum(0)
        if i or needs_x:
            gradient = gradient.mm(weights[i])
    return of_weights + of_biases, gradient if needs_x else None


def _differentiable_backward(
    ctx: _MlpsContext, x: Tensor, networks: Sequence[Layers], gradients: Sequence[Tensor]
) -> tuple[Any, ...]:
    """Run the layers once more, one by one, so that the gradient can be differentiated (`create_graph=True`)."""
    activate = torch.tanh if ctx.activation == "tanh" else torch.relu
    outputs, inputs = [], [x]
    for weights, biases in networks:
        out = x
        for i, (weight, bias) in enumerate(zip(weights, biases)):
            out = torch.addmm(bias, out, weight.t())
            if i < len(weights) - 1 or ctx.activate_last:
                out = activate(out)
        outputs.append(out)
        inputs += [*weights, *biases]
    of_x, *of_parameters = _gradients_with_graph(outputs, inputs, gradients)
    return (of_x, None, None, None, *of_parameters)


def _gradients_with_graph(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], gradients: Sequence[Tensor]
) -> list[Tensor | None]:
    """Return the gradient of each input, None where it needs none."""
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    found = dict(zip(map(id, wanted), torch.autograd.grad(outputs, wanted, gradients, create_graph=True)))
    return [found.get(id(tensor)) for tensor in inputs]
