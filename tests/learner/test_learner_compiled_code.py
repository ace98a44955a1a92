"""Compiled graphs called again and again: what they give out and write."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from lockstep.learner.compiled import compile_graph


def two_products(left, right, written):
    written.copy_(left @ right + written)
    return written * 2.0, left.sum(0), torch.logcumsumexp(left, 0)


def with_a_constant(left, right, written):
    return two_products(left, right + torch.tensor([1.0, -1.0, 3.0]), written)


def with_a_view(left, right, written):
    written[0].mul_(3.0)
    left.add_(1.0)  # shares memory with `right`
    return two_products(left, right, written)


def inputs_of(function, seed):
    generator = torch.Generator().manual_seed(seed)
    left, right, written = (torch.randn(3, 3, generator=generator) for _ in range(3))
    return [left, left.view(-1).view(3, 3) if function is with_a_view else right, written]


slow = pytest.mark.faults


@pytest.mark.parametrize(
    "function", [two_products, *(pytest.param(f, marks=slow) for f in (with_a_constant, with_a_view))]
)
def test_each_call_gives_out_and_writes_what_the_graph_does(function):
    example = inputs_of(function, 0)
    code = compile_graph(make_fx(function)(*example), example, on_host=True)
    for seed in range(4):
        given, expected = inputs_of(function, seed), inputs_of(function, seed)
        if seed in (0, 3) and function is two_products:  # a tensor given twice, and one that learns
            given[1] = given[0] = given[0].requires_grad_(seed == 3)
            expected[1] = expected[0]
        outputs = code(list(given))
        torch.testing.assert_close([*outputs, *given], [*function(*expected), *expected])
        assert not any(tensor.requires_grad for tensor in outputs)
