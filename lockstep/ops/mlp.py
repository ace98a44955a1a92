"""Multilayer perceptrons as differentiable functions, for small networks on the CPU.

In small networks on the CPU most of the time is spent between the matrix products, in calls. `mlps` runs all layers of
all networks that read the same input in one forward and one backward function. Tanh is numpy's, whose vector form is
faster than torch's, and the gradient of a layer with few inputs is computed in the faster one of two orders. The
results equal those of the plain layers up to rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lockstep.ops.autograd import GradientContext
from lockstep.ops.torch_modes import is_in_torch_dispatch_mode

ACTIVATIONS = ("tanh", "relu")
"""Activations that `mlps` can compute."""

Layers = tuple[Sequence[Tensor], Sequence[Tensor]]
"""Weights `[O, I]` and biases `[O]` of the layers of one network."""


def mlps(x: Tensor, networks: Sequence[Layers], activation: str, activate_last: bool) -> Sequence[Tensor]:
    """Return the outputs of several networks for the same input `x` `[N, I]`: for each `[N, width of its last layer]`.

    A layer is `activation(x @ weight.T + bias)`; the last one is linear unless `activate_last`. The result can be
    differentiated any number of times and traced by `make_fx`, but not transformed by `torch.func`.

    Args:
        x: `[N, I]`, float32 or float64, on the CPU.
        networks: Weights and biases of each network, in the dtype of `x`.
        activation: `"tanh"` or `"relu"`.
        activate_last: Whether the last layer has the activation as well.
    """
    if torch.is_grad_enabled():
        parameters: list[Tensor] = []
        depths = []
        for weights, biases in networks:
            parameters += [*weights, *biases]
            depths.append(len(weights))
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
                # In place: the array is a view of the memory of `x`, which `addmm` has just allocated.
                array = x.numpy()
                np.tanh(array, array)
            else:
                x = torch.tanh(x) if activation == "tanh" else torch.relu(x)
        outputs.append(x)
    return outputs


def _split(tensors: Sequence[Tensor], depths: Sequence[int]) -> list[Layers]:
    """Return the weights and biases of each network, from one sequence of all parameters."""
    networks = []
    start = 0
    for depth in depths:
        middle = start + depth
        end = middle + depth
        networks.append((tensors[start:middle], tensors[middle:end]))
        start = end
    return networks


class _MlpsContext(GradientContext, Protocol):
    """Context of `_Mlps`, with the settings that its backward pass needs."""

    depths: Sequence[int]
    activation: str
    activate_last: bool


class _Mlps(torch.autograd.Function):
    """Several networks as one node of the autograd graph. A layer's backward pass needs only its input and output."""

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
        ctx.depths = depths
        ctx.activation = activation
        ctx.activate_last = activate_last
        ctx.save_for_backward(x, *parameters, *itertools.chain.from_iterable(outputs))
        return tuple(layers[-1] for layers in outputs)

    @staticmethod
    def backward(ctx: _MlpsContext, *gradients: Tensor) -> tuple[Any, ...]:
        x, *saved = ctx.saved_tensors
        num_parameters = 2 * sum(ctx.depths)
        networks = _split(saved[:num_parameters], ctx.depths)
        outputs = saved[num_parameters:]
        # Gradients are enabled in a backward pass only with `create_graph=True`.
        if torch.is_grad_enabled():
            return _differentiable_backward(ctx, x, networks, gradients)

        parameter_gradients: list[Tensor] = []
        x_gradient: Tensor | None = None
        settings = ctx.activation, ctx.activate_last, ctx.needs_input_grad[0]
        for (weights, _), gradient in zip(networks, gradients):
            depth = len(weights)
            network_gradients, part = _backward(x, weights, outputs[:depth], gradient, *settings)
            outputs = outputs[depth:]
            parameter_gradients += network_gradients
            x_gradient = part if x_gradient is None or part is None else x_gradient + part
        return (x_gradient, None, None, None, *parameter_gradients)


def _backward(
    x: Tensor,
    weights: Sequence[Tensor],
    outputs: Sequence[Tensor],
    gradient: Tensor,
    activation: str,
    activate_last: bool,
    needs_x: bool,
) -> tuple[list[Tensor], Tensor | None]:
    """Return the gradients of one network's weights and biases, and the gradient of `x` if it is needed.

    For a layer `out = activation(below @ W.T + b)` with `g`, the gradient before the activation: `g.T @ below` for `W`,
    the sum of `g` over the rows for `b`, and `g @ W` for the layer below.
    """
    aten = torch.ops.aten
    last = len(weights) - 1
    weight_gradients = [gradient] * len(weights)
    bias_gradients = [gradient] * len(weights)
    for i in range(last, -1, -1):
        if i < last or activate_last:
            if activation == "tanh":
                gradient = aten.tanh_backward.default(gradient, outputs[i])
            else:
                gradient = aten.threshold_backward.default(gradient, outputs[i], 0)
        below = outputs[i - 1] if i else x
        # The product is faster with the narrower matrix on the left, even though its result is then transposed.
        is_narrow = below.shape[1] < gradient.shape[1]
        weight_gradients[i] = below.t().mm(gradient).t() if is_narrow else gradient.t().mm(below)
        bias_gradients[i] = gradient.sum(0)
        if i or needs_x:
            gradient = gradient.mm(weights[i])
    return weight_gradients + bias_gradients, gradient if needs_x else None


def _differentiable_backward(
    ctx: _MlpsContext, x: Tensor, networks: Sequence[Layers], gradients: Sequence[Tensor]
) -> tuple[Any, ...]:
    """Return the gradients as tensors that can be differentiated again (`create_graph=True`).

    The layers run once more, one by one, so that autograd has a graph of them.
    """
    activate = torch.tanh if ctx.activation == "tanh" else torch.relu
    outputs = []
    inputs = [x]
    for weights, biases in networks:
        out = x
        for i, (weight, bias) in enumerate(zip(weights, biases)):
            out = torch.addmm(bias, out, weight.t())
            if i < len(weights) - 1 or ctx.activate_last:
                out = activate(out)
        outputs.append(out)
        inputs += [*weights, *biases]
    x_gradient, *parameter_gradients = _gradients_with_graph(outputs, inputs, gradients)
    return (x_gradient, None, None, None, *parameter_gradients)


def _gradients_with_graph(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], gradients: Sequence[Tensor]
) -> list[Tensor | None]:
    """Return the gradient of each input, or None for an input that needs none."""
    sources = [tensor for tensor in inputs if tensor.requires_grad]
    results = torch.autograd.grad(outputs, sources, gradients, create_graph=True)
    gradient_of = dict(zip(map(id, sources), results))
    return [gradient_of.get(id(tensor)) for tensor in inputs]
