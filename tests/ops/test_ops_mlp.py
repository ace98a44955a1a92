"""The fused multilayer perceptron equals its layers one by one: values, gradients, gradients of gradients."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from lockstep.ops.mlp import mlps

SHAPES = [((4, 8), False), ((4, 8), True), ((9, 3, 5), False), ((2, 7, 7, 1), True), ((3, 6, 6, 2), False)]


def make(sizes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(len(sizes))
    x = torch.randn(11, sizes[0], dtype=dtype, generator=generator)
    weights = [torch.randn(o, i, dtype=dtype, generator=generator) for i, o in itertools.pairwise(sizes)]
    biases = [torch.randn(o, dtype=dtype, generator=generator) for o in sizes[1:]]
    return [tensor.requires_grad_() for tensor in (x, *weights, *biases)]


def layer_by_layer(tensors, activation, activate_last):
    x, *parameters = tensors
    half = len(parameters) // 2
    for i, (weight, bias) in enumerate(zip(parameters[:half], parameters[half:])):
        x = torch.nn.functional.linear(x, weight, bias)
        if i < half - 1 or activate_last:
            x = getattr(torch, activation)(x)
    return x


def fused(tensors, activation, activate_last):
    x, *parameters = tensors
    half = len(parameters) // 2
    return mlps(x, [(parameters[:half], parameters[half:])], activation, activate_last)[0]


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(("sizes", "activate_last"), SHAPES)
def test_values_and_gradients_equal_those_of_the_layers(sizes, activate_last, activation):
    tensors = make(sizes)
    expected, got = layer_by_layer(tensors, activation, activate_last), fused(tensors, activation, activate_last)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    weights = torch.linspace(-1, 2, got.numel(), dtype=got.dtype).view_as(got)
    wanted = torch.autograd.grad((expected * weights).sum(), tensors)
    found = torch.autograd.grad((got * weights).sum(), tensors)
    for one, other in zip(found, wanted):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_without_gradients_the_values_are_the_same_and_the_input_stays():
    tensors = make((4, 8, 2), torch.float32)
    before = tensors[0].detach().clone()
    with torch.no_grad():
        quiet = fused(tensors, "tanh", False)
    assert not quiet.requires_grad
    assert torch.equal(quiet, fused(tensors, "tanh", False))
    assert torch.equal(tensors[0], before)


def test_parameters_that_need_no_gradient_get_none():
    tensors = make((4, 8, 2))
    tensors[1].requires_grad_(False)
    fused(tensors, "tanh", False).sum().backward()
    assert tensors[1].grad is None
    assert all(tensor.grad is not None for tensor in (tensors[0], *tensors[2:]))


@pytest.mark.parametrize("activate_last", [False, True])
def test_the_gradient_can_be_differentiated(activate_last):
    """A gradient penalty: the norm of the gradient with respect to the input, as a loss."""
    tensors = make((3, 5, 4, 1))
    found = []
    for run in (layer_by_layer, fused):
        slope = torch.autograd.grad(run(tensors, "tanh", activate_last).sum(), tensors[0], create_graph=True)[0]
        found.append(torch.autograd.grad(slope.square().sum(), tensors[1:4]))
    for one, other in zip(*found):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_a_trace_holds_the_whole_gradient(activation):
    """What compiles a gradient step traces it once and runs it on other numbers."""

    def gradients(*tensors):
        return torch.autograd.grad(fused(tensors, activation, False).square().sum(), tensors)

    first, other = make((3, 5, 2)), [2.0 * tensor.detach() - 0.1 for tensor in make((3, 5, 2))]
    graph = make_fx(gradients)(*first)
    expected = gradients(*[tensor.requires_grad_() for tensor in other])
    for one, wanted in zip(graph(*other), expected):
        torch.testing.assert_close(one, wanted, rtol=1e-12, atol=1e-12)


def test_several_networks_on_one_input_equal_each_alone():
    """Of different depths and widths; the gradient of the shared input is the sum."""
    first, second = make((4, 8, 8, 2)), make((4, 6, 1))
    x = first[0]
    second[0] = x
    for how in ("once", "twice"):
        losses = []
        for outputs in (
            [layer_by_layer(first, "tanh", False), layer_by_layer(second, "tanh", False)],
            mlps(x, [(first[1:4], first[4:]), (second[1:3], second[3:])], "tanh", False),
        ):
            loss = outputs[0].square().sum() + 3.0 * outputs[1].sum()
            if how == "twice":
                loss = torch.autograd.grad(loss, x, create_graph=True)[0].square().sum()
            losses.append(loss)
        leaves = [*first, *second[1:]]
        wanted, found = (torch.autograd.grad(loss, leaves, allow_unused=True) for loss in losses)
        for leaf, one, other in zip(leaves, found, wanted):
            zeros = torch.zeros_like(leaf)  # what does not matter may be None in one and 0 in the other
            torch.testing.assert_close(zeros if one is None else one, zeros if other is None else other)


def test_a_network_whose_output_is_not_used_gets_zeros():
    first, second = make((4, 8, 2)), make((4, 6, 1))
    outputs = mlps(first[0], [(first[1:3], first[3:]), (second[1:3], second[3:])], "relu", False)
    outputs[0].sum().backward()
    assert all(tensor.grad.any() for tensor in first)
    assert not any(tensor.grad.any() for tensor in second[1:])
