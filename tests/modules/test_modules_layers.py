"""Layers run as one function only where nobody can tell the difference; several networks equal a loop over them."""

from __future__ import annotations

import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import lockstep.modules.layers as layers_file
from lockstep.modules import BatchedMLP, DefaultActorCriticModule
from lockstep.modules.layers import MANY_ROWS, run_networks


@pytest.fixture
def fused_calls(monkeypatch):
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return real(*arguments)

    real = layers_file.mlps
    monkeypatch.setattr(layers_file, "mlps", counted)
    return calls


def run_layers(x, layers):
    return run_networks((x, layers))[0]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))


class Run(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        return run_layers(x, [*self.layers])


X = torch.linspace(-1, 1, 21).view(7, 3)


def test_plain_layers_are_fused(fused_calls):
    layers = network()
    torch.testing.assert_close(run_layers(X, [*layers]), layers(X))
    torch.testing.assert_close(run_layers(X, [*layers][:-1]), layers[:-1](X))
    assert len(fused_calls) == 2


def test_networks_on_the_same_tensor_run_together(fused_calls):
    first, second = network(), network()[:3]
    for one, alone in zip(run_networks((X, [*first]), (X, [*second])), (first(X), second(X))):
        torch.testing.assert_close(one, alone)
    assert len(fused_calls) == 1
    for one, alone in zip(run_networks((X, [*first]), (2 * X, [*second])), (first(X), second(2 * X))):
        torch.testing.assert_close(one, alone)
    assert len(fused_calls) == 3


def test_networks_of_different_kinds_run_apart(fused_calls):
    first, second = network(), network()
    another(second), second.__setitem__(3, nn.ReLU())
    third = network()[:2]  # ends with its activation
    for other in (second, third):
        for one, alone in zip(run_networks((X, [*first]), (X, [*other])), (first(X), other(X))):
            torch.testing.assert_close(one, alone)
    assert len(fused_calls) == 4


def another(layers):
    layers[1] = nn.ReLU()


def without_bias(layers):
    layers[2] = nn.Linear(5, 4, bias=False)


def dropout(layers):
    layers[3] = nn.Dropout(0.0)


def normalised(layers):
    nn.utils.parametrizations.weight_norm(layers[2])


@pytest.mark.parametrize("change", [another, without_bias, dropout, normalised])
def test_other_layers_run_one_by_one(change, fused_calls):
    layers = network()
    change(layers)
    torch.testing.assert_close(run_layers(X, [*layers]), layers(X))
    assert not fused_calls


def test_hooks_on_single_layers_are_called():
    layers, seen = network(), []
    layers[3].register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    layers[0].register_full_backward_hook(lambda module, inputs, outputs: seen.append(outputs[0].shape))
    run_layers(X, [*layers]).sum().backward()
    assert seen == [(7, 4), (7, 5)]


def test_other_inputs_run_one_by_one(fused_calls):
    layers = network()
    assert run_layers(X.view(1, 7, 3), [*layers]).shape == (1, 7, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert run_layers(X, [*layers]).dtype == torch.bfloat16
    assert run_layers(X.bfloat16(), [*layers.bfloat16()]).dtype == torch.bfloat16
    assert not fused_calls


def test_traces_see_every_layer():
    layers = network()
    graph = make_fx(lambda x: run_layers(x, [*layers]))(X)
    torch.testing.assert_close(graph(2 * X), layers(2 * X))
    assert sum("tanh" in str(node.target) for node in graph.graph.nodes) == 2


def test_function_transforms_see_every_layer(fused_calls):
    layers = network()
    rows = torch.func.vmap(torch.func.jacrev(lambda x: run_layers(x.unsqueeze(0), [*layers]).squeeze(0)))(X)
    assert rows.shape == (7, 2, 3)
    values = {name: p.detach() for name, p in layers.named_parameters()}
    gradients = torch.func.grad(lambda v: torch.func.functional_call(Run(layers), v, (X,)).sum())(
        {f"layers.{name}": value for name, value in values.items()}
    )
    layers(X).sum().backward()
    for name, p in layers.named_parameters():
        torch.testing.assert_close(gradients[f"layers.{name}"], p.grad)
    assert not fused_calls


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("part", ["encoder", "encoder.mlp", "encoder.features", "encoder.mlp.1", "policy_head"])
def test_hooks_on_the_default_module_get_plain_inputs_and_outputs(part, shared):
    space, config = spaces.Box(-1, 1, (3,)), {"hiddens": (5, 4), "vf_share_layers": shared}
    module = DefaultActorCriticModule(space, spaces.Discrete(2), model_config=config)
    plain, seen = module.forward_train({"obs": X}), []
    module.get_submodule(part).register_forward_hook(lambda layer, inputs, output: seen.append(output))
    watched = module.forward_train({"obs": X})
    assert [tuple(out.shape) for out in seen] == [
        (7, {"encoder": 4, "encoder.mlp": 4, "encoder.features": 3, "encoder.mlp.1": 5, "policy_head": 2}[part])
    ]
    for name, value in plain.items():
        torch.testing.assert_close(watched[name], value)


@pytest.mark.parametrize("widths", [(), (8,), (16, 12)])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("num_outputs", [1, 2])
def test_batched_networks_equal_a_loop_of_linear_layers(widths, activation, one_by_one, num_outputs, monkeypatch):
    if one_by_one:
        monkeypatch.setitem(MANY_ROWS, "cpu", 7)
    torch.manual_seed(0)
    batched = BatchedMLP(3, 5, widths, num_outputs, activation=activation).double()
    inputs = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    loops = [batched.network(k) for k in range(3)]
    expected = torch.stack([loop(inputs) for loop in loops])
    out = batched(inputs)
    assert out.shape == (3, 7, num_outputs)
    torch.testing.assert_close(out, expected, atol=1e-13, rtol=0)
    torch.testing.assert_close(batched(torch.stack([inputs] * 3)), expected, atol=1e-13, rtol=0)

    (gradient,) = torch.autograd.grad(out.square().sum(), inputs, retain_graph=True)
    (expected_gradient,) = torch.autograd.grad(expected.square().sum(), inputs, retain_graph=True)
    torch.testing.assert_close(gradient, expected_gradient)
    out.square().sum().backward()
    expected.square().sum().backward()
    for k, loop in enumerate(loops):
        linears = [layer for layer in loop if isinstance(layer, nn.Linear)]
        for weight, bias, linear in zip(batched.weights, batched.biases, linears):
            torch.testing.assert_close(weight.grad[k].T, linear.weight.grad)
            torch.testing.assert_close(bias.grad[k, 0], linear.bias.grad)


def test_frozen_networks_send_the_same_gradient_to_inputs_only():
    batched = BatchedMLP(3, 4, (6, 5), 1).double()
    inputs = torch.randn(8, 4, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(batched(inputs).sum(), [inputs])
    batched(inputs, frozen=True).sum().backward()
    torch.testing.assert_close(inputs.grad, expected)
    assert all(parameter.grad is None for parameter in batched.parameters())


def test_batched_networks_in_bfloat16_return_float32_values_and_gradients():
    batched = BatchedMLP(3, 4, (64, 64), 1)
    inputs = torch.randn(32, 4)
    exact = batched(inputs)
    with torch.autocast("cpu", torch.bfloat16):
        near = batched(inputs)
    assert near.dtype == torch.float32
    assert not torch.equal(near, exact)
    torch.testing.assert_close(near, exact, atol=2e-2, rtol=0)
    gradients = [torch.autograd.grad(values.sum(), [*batched.parameters()]) for values in (exact, near)]
    for expected, found in zip(*gradients):
        assert found.dtype == torch.float32
        assert (expected - found).norm() <= 0.05 * expected.norm()


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_the_first_batched_network_alone_gives_equal_outputs(activation, frozen):
    batched = BatchedMLP(3, 4, (6, 5), 1, activation=activation).double()
    inputs = torch.randn(8, 4, dtype=torch.float64, requires_grad=True)
    alone = batched(inputs, first_only=True, frozen=frozen)
    among = batched(inputs, frozen=frozen)[:1]
    assert alone.shape == (1, 8, 1)
    torch.testing.assert_close(alone, among)
    wanted = [inputs] if frozen else [inputs, *batched.parameters()]
    torch.testing.assert_close(*[torch.autograd.grad(values.sum(), wanted) for values in (alone, among)])
    with pytest.raises(ValueError, match="BatchedMLP takes"):
        batched(inputs.expand(3, -1, -1), first_only=True)


def test_batched_networks_take_inputs_of_their_own():
    batched = BatchedMLP(2, 3, (4,), 1)
    inputs = torch.randn(2, 6, 3)
    expected = torch.stack([batched.network(k)(inputs[k]) for k in range(2)])
    torch.testing.assert_close(batched(inputs), expected)
    with pytest.raises(ValueError, match=r"takes \[N, 3\] or \[2, N, 3\], got \[6, 4\]"):
        batched(torch.zeros(6, 4))
    for wrong in (torch.zeros(3), torch.zeros(3, 6, 3), torch.zeros(1, 2, 6, 3)):
        with pytest.raises(ValueError, match="takes"):
            batched(wrong)


def test_batched_networks_are_orthogonal_and_differ():
    batched = BatchedMLP(2, 6, (8,), 1, hidden_gain=2.0, output_gain=0.5)
    for k in range(2):
        first = batched.weights[0][k].detach()
        torch.testing.assert_close(first @ first.T, 4.0 * torch.eye(6), atol=1e-5, rtol=0)
        assert batched.weights[1][k].norm().item() == pytest.approx(0.5, rel=1e-5)
    assert not torch.equal(batched.weights[0][0], batched.weights[0][1])
    assert not any(bias.any() for bias in batched.biases)
