"""Steps within a trust region, against matrices that are written out."""

import pytest
import torch
from torch import tensor

from lockstep.ops.trust_region import conjugate_gradient, hessian_product, line_search, natural_step

F64 = torch.float64
A = tensor([[4.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 2.0]], dtype=F64)
B = tensor([1.0, -2.0, 0.5], dtype=F64)


def test_conjugate_gradient_solves_in_as_many_steps_as_there_are_numbers():
    torch.testing.assert_close(conjugate_gradient(lambda v: A @ v, B, 3), torch.linalg.solve(A, B))
    one = conjugate_gradient(lambda v: A @ v, B, 1)  # steepest descent
    torch.testing.assert_close(one, (B @ B) / (B @ A @ B) * B)


def test_products_are_those_with_the_matrix_of_second_derivatives():
    x, y, unused = (tensor(numbers, dtype=F64, requires_grad=True) for numbers in ([1.0, 2.0], [0.5], [1.0]))
    value = x[0] ** 2 * x[1] + y[0] ** 3 * x[0]
    # d2/dx0dx0 = 2 x1, d2/dx0dx1 = 2 x0, d2/dx0dy = 3 y^2, d2/dydy = 6 y x0
    hessian = tensor([[4, 2, 0.75, 0], [2, 0, 0, 0], [0.75, 0, 3, 0], [0, 0, 0, 0]], dtype=F64)
    product = hessian_product(value, [x, y, unused])
    for row in torch.eye(4, dtype=F64):
        torch.testing.assert_close(product(row), hessian @ row)


def test_the_natural_step_ends_where_the_quadratic_form_has_its_radius():
    step = natural_step(lambda v: A @ v, B, 0.01, 3)
    assert float(0.5 * step @ A @ step) == pytest.approx(0.01)
    torch.testing.assert_close(step / step.norm(), torch.linalg.solve(A, B) / torch.linalg.solve(A, B).norm())


@pytest.mark.parametrize(("limit", "share"), [(10.0, 1.0), (0.6, 0.5), (0.3, 0.25), (0.1, 0.0)])
def test_a_step_is_shortened_until_it_is_good(limit, share):
    found = line_search(tensor([1.0]), lambda step: (-step[0], step[0]), tensor(0.0), limit, 3, 0.5)
    expected = share, share, -share, share
    assert tuple(map(float, found)) == pytest.approx(expected)


@pytest.mark.parametrize("loss", [0.0, float("nan")])
def test_a_step_that_gains_nothing_or_is_not_finite_is_not_taken(loss):
    found = line_search(tensor([1.0]), lambda step: (tensor(loss), tensor(0.0)), tensor(0.0), 1.0, 3, 0.5)
    assert tuple(map(float, found)) == (0.0, 0.0, 0.0, 0.0)
