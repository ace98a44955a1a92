"""`batched_mlp` against a loop over plain networks: values, gradients, second gradients, bfloat16."""

import pytest
import torch

from lockstep.modules import BatchedMLP
from lockstep.ops.mlp import batched_mlp


def networks(dtype=torch.float64, widths=(6, 5), num=3):
    torch.manual_seed(0)
    return BatchedMLP(num, 4, widths, 1, hidden_gain=None, output_gain=None).to(dtype)


def fused(mlp, x, **options):
    return batched_mlp(x, [*mlp.weights], [*mlp.biases], **options)


def one_by_one(mlp, x):
    out = x.expand(mlp.num_networks, -1, -1)
    for i, (weight, bias) in enumerate(zip(mlp.weights, mlp.biases)):
        out = torch.stack([o @ w + b for o, w, b in zip(out, weight, bias)])
        out = out.relu() if i < len(mlp.weights) - 1 else out
    return out.squeeze(-1)


@pytest.mark.parametrize("widths", [(6, 5), (7,)])
def test_values_and_gradients_are_those_of_single_networks(widths):
    mlp, x = networks(widths=widths), torch.randn(8, 4, dtype=torch.float64, requires_grad=True)
    scale, wanted = torch.randn(3, 8, dtype=torch.float64), [x, *mlp.parameters()]
    torch.testing.assert_close(fused(mlp, x), one_by_one(mlp, x))
    given = [torch.autograd.grad((f(mlp, x) * scale).sum(), wanted) for f in (fused, one_by_one)]
    torch.testing.assert_close(*given)
    torch.testing.assert_close(mlp(x).squeeze(-1), one_by_one(mlp, x))
    with torch.no_grad():
        torch.testing.assert_close(fused(mlp, x), one_by_one(mlp, x))


def test_frozen_weights_get_no_gradient_and_the_input_the_same():
    mlp, x = networks(), torch.randn(8, 4, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(one_by_one(mlp, x).sum(), [x])
    fused(mlp, x, frozen=True).sum().backward()
    torch.testing.assert_close(x.grad, expected)
    assert all(p.grad is None for p in mlp.parameters())


def test_the_gradient_can_be_differentiated_again():
    mlp, x = networks(), torch.randn(8, 4, dtype=torch.float64, requires_grad=True)

    def penalty(f):
        (gradient,) = torch.autograd.grad(f(mlp, x).square().sum(), [x], create_graph=True)
        return torch.autograd.grad(
            gradient.square().sum(), [*mlp.parameters()], allow_unused=True, materialize_grads=True
        )

    torch.testing.assert_close(penalty(fused), penalty(one_by_one))


def test_bfloat16_products_are_near_and_leave_all_else_in_float32():
    mlp, x = networks(torch.float32, (64, 64)), torch.randn(32, 4)
    with torch.autocast("cpu", torch.bfloat16):
        values = mlp(x).squeeze(-1)
    assert values.dtype == torch.float32
    torch.testing.assert_close(values, fused(mlp, x, half=True))
    torch.testing.assert_close(values, one_by_one(mlp, x), atol=2e-2, rtol=0)
    assert not torch.equal(values, one_by_one(mlp, x))
    exact, near = ([*torch.autograd.grad(f.sum(), mlp.parameters())] for f in (one_by_one(mlp, x), values))
    for one, other in zip(exact, near):
        assert other.dtype == torch.float32
        assert (one - other).norm() <= 0.05 * one.norm()


def test_somebody_who_looks_inside_gets_the_plain_layers():
    mlp, seen = networks(), []
    mlp.activation.register_forward_hook(lambda *_: seen.append(1))
    mlp(torch.zeros(2, 4, dtype=torch.float64))
    assert len(seen) == 2


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_the_first_network_alone_gives_what_it_gives_among_others(activation, frozen):
    torch.manual_seed(0)
    mlp = BatchedMLP(3, 4, (6, 5), 1, activation=activation, hidden_gain=None, output_gain=None).double()
    x = torch.randn(8, 4, dtype=torch.float64, requires_grad=True)
    alone, among = mlp(x, first_only=True, frozen=frozen), mlp(x, frozen=frozen)[:1]
    assert alone.shape == (1, 8, 1)
    torch.testing.assert_close(alone, among)
    wanted = [x] if frozen else [x, *mlp.parameters()]
    torch.testing.assert_close(*[torch.autograd.grad(out.sum(), wanted) for out in (alone, among)])
    with pytest.raises(ValueError, match="BatchedMLP takes"):
        mlp(x.expand(3, -1, -1), first_only=True)
