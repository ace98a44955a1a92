"""Loss terms: written-out numbers, and where gradients flow and stop."""

from __future__ import annotations

import math

import pytest
import torch

from lockstep.ops import approximate_kl, clipped_ratios, clipped_surrogate_loss, clipped_value_loss
from lockstep.ops.losses import expectile_loss, exponential_weights

RATIOS = torch.tensor([1.0, 1.5, 1.5, 0.5, 0.5, 6.0], dtype=torch.float64)
ADVANTAGES = torch.tensor([2.0, 1.0, -1.0, 1.0, -1.0, -2.0], dtype=torch.float64)


@pytest.mark.parametrize("dual_clip, last", [(None, 12.0), (3.0, 6.0)])
def test_clipped_surrogate_loss_is_written_out_and_bounded_by_dual_clip(dual_clip, last):
    loss = clipped_surrogate_loss(RATIOS.log(), torch.zeros(6), ADVANTAGES, clip_param=0.2, dual_clip=dual_clip)
    expected = torch.tensor([-2.0, -1.2, 1.5, -0.5, 0.8, last], dtype=torch.float64)
    torch.testing.assert_close(loss, expected, rtol=1e-14, atol=0)


def test_clip_param_may_be_a_tensor_that_a_schedule_fills():
    rows = (RATIOS.log(), torch.zeros(6), ADVANTAGES)
    found = clipped_surrogate_loss(*rows, clip_param=torch.tensor(0.2, dtype=torch.float64))
    torch.testing.assert_close(found, clipped_surrogate_loss(*rows, clip_param=0.2))


def test_surrogate_gradient_is_the_policy_gradient_or_zero_where_clipped():
    logp = RATIOS.log().requires_grad_()
    clipped_surrogate_loss(logp, torch.zeros(6), ADVANTAGES, clip_param=0.2, dual_clip=3.0).sum().backward()
    # d(-ratio * A) / d logp = -ratio * A; rows 1, 4 and 5 (dual) are clipped.
    expected = torch.tensor([-2.0, 0.0, 1.5, -0.5, 0.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(logp.grad, expected, rtol=1e-14, atol=0)


def test_clipped_value_loss_written_out():
    values = torch.tensor([1.0, 3.0, 3.0, -1.0])
    targets = torch.tensor([2.0, 4.0, 0.0, -1.0])
    old_values = torch.tensor([1.0, 1.0, 1.0, 1.0])
    plain = clipped_value_loss(values, targets)
    torch.testing.assert_close(plain, torch.tensor([0.5, 0.5, 4.5, 0.0]))
    clipped = clipped_value_loss(values, targets, old_values, clip_param=0.5)
    # Clipped values are 1, 1.5, 1.5, 0.5: further from the target than the plain value in rows 1 and 3.
    torch.testing.assert_close(clipped, torch.tensor([0.5, 3.125, 4.5, 1.125]))


def test_clipped_value_loss_has_no_gradient_where_its_error_is_larger():
    values = torch.tensor([3.0, 3.0], requires_grad=True)
    clipped_value_loss(values, torch.tensor([4.0, 0.0]), torch.ones(2), clip_param=0.5).sum().backward()
    torch.testing.assert_close(values.grad, torch.tensor([0.0, 3.0]))


@pytest.mark.parametrize("clip_param, expected", [(0.2, [0, 1, 1, 1, 1, 1]), (0.55, [0, 0, 0, 0, 0, 1])])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_clipped_ratios_are_those_outside_of_the_clip_on_both_sides(clip_param, expected, as_tensor):
    clip = torch.tensor(clip_param, dtype=torch.float64) if as_tensor else clip_param
    found = clipped_ratios(RATIOS.log(), torch.zeros(6), clip)
    assert found.dtype is torch.float64
    assert found.tolist() == expected


def test_approximate_kl_written_out():
    found = approximate_kl(torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)]))
    torch.testing.assert_close(found, torch.tensor([1.0 - math.log(2.0)]))


def test_weighted_approximate_kl_is_the_exact_divergence_and_not_negative():
    old = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    new = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    exact = (old * (old / new).log()).sum()
    estimates = approximate_kl(new.log(), old.log())
    torch.testing.assert_close((old * estimates).sum(), exact, rtol=1e-14, atol=0)
    assert (estimates >= 0).all()


def test_approximate_kl_does_not_cancel_for_tiny_steps():
    step = torch.tensor([1e-4], dtype=torch.float32)
    found = approximate_kl(step, torch.zeros(1))
    assert found.item() == pytest.approx(0.5e-8, rel=1e-2)  # exp(x) - 1 - x in float32 keeps no digit of it


def test_losses_are_not_reduced_and_are_traceable():
    logp, old_logp, advantages = torch.randn(3, 7, 2, generator=torch.Generator().manual_seed(0))

    def both(logp, old_logp, advantages):
        return clipped_surrogate_loss(logp, old_logp, advantages, clip_param=0.2, dual_clip=3.0) + clipped_value_loss(
            logp, old_logp, advantages, 0.1
        )

    traced = torch.compile(both, backend="eager", fullgraph=True)
    assert both(logp, old_logp, advantages).shape == (7, 2)
    torch.testing.assert_close(traced(logp, old_logp, advantages), both(logp, old_logp, advantages))


def test_the_expectile_loss_weighs_errors_by_their_sign():
    errors = torch.tensor([-2.0, 0.0, 3.0])
    torch.testing.assert_close(expectile_loss(errors, 0.7), torch.tensor([0.3 * 4, 0.0, 0.7 * 9]))
    torch.testing.assert_close(expectile_loss(errors, 0.5), 0.5 * errors.square())
    data = torch.tensor([0.0, 1.0, 2.0, 10.0])
    found = torch.linspace(0, 10, 10001)[
        torch.stack([expectile_loss(data - v, 0.9).mean() for v in torch.linspace(0, 10, 10001)]).argmin()
    ]
    weights = torch.where(data > found, 0.9, 0.1)
    assert float(found) == pytest.approx(float((weights * data).sum() / weights.sum()), abs=2e-3)


def test_exponential_weights_are_finite_where_they_are_limited():
    advantages = torch.tensor([-1.0, 0.0, 1e6])
    expected = torch.tensor([math.exp(-3.0), 1.0, 100.0])
    torch.testing.assert_close(exponential_weights(advantages, 3.0, 100.0), expected)
    assert exponential_weights(advantages, 0.0).tolist() == [1.0, 1.0, 1.0]
