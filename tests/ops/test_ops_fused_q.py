"""The compiled loss of DQN against the same loss with autograd."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from lockstep.ops.fused_losses import can_fuse_q, q_loss

N, A = 41, 3


def given(dtype):
    generator = torch.Generator().manual_seed(0)
    values, target, picking = (torch.randn(N, A, generator=generator, dtype=torch.float64) * 2 for _ in range(3))
    rows = (
        torch.arange(N) % A,
        torch.randn(N, generator=generator, dtype=torch.float64).to(dtype),
        torch.arange(N) % 5 == 0,
    )
    more = {"discounts": torch.rand(N, generator=generator, dtype=torch.float64).to(dtype)}
    more["weights"] = torch.rand(N, generator=generator, dtype=torch.float64).to(dtype)
    return values.to(dtype).requires_grad_(), rows, target.to(dtype), picking.to(dtype), more


def plain(values, rows, target, picking=None, *, discounts, weights=None, huber_delta=1.0):
    actions, rewards, terminateds = rows
    best = (target if picking is None else picking).argmax(1)
    every = torch.arange(len(values))
    wanted = rewards + discounts * torch.where(terminateds, 0.0, target[every, best])
    taken = values[every, actions]
    if huber_delta is None:
        each = 0.5 * (taken - wanted) ** 2
    else:
        each = torch.nn.functional.huber_loss(taken, wanted, reduction="none", delta=huber_delta)
    loss = (each * (1.0 if weights is None else weights)).mean()
    errors = (taken - wanted).detach()
    return loss, torch.stack([loss, taken.mean(), errors.abs().mean()]), errors


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("huber_delta", [1.0, 0.3, None])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("extra", [False, True])
def test_loss_gradient_terms_and_errors_are_those_of_autograd(dtype, huber_delta, double, extra):
    found = []
    for function in (q_loss, plain):
        values, rows, target, picking, more = given(dtype)
        more = more if extra else {"discounts": 0.9}
        loss, terms, errors = function(
            values, rows, target, picking if double else None, huber_delta=huber_delta, **more
        )
        (3.0 * loss).backward()
        found.append((loss.detach(), terms.detach(), errors, values.grad))
    torch.testing.assert_close(*found)


def test_a_trace_and_other_shapes_are_left_to_torch():
    values, rows, *_ = given(torch.float32)
    assert can_fuse_q(values, rows[0])
    assert not can_fuse_q(values.detach()[:, 0], rows[0])
    assert not can_fuse_q(values.detach().half(), rows[0])
    seen = []
    make_fx(lambda x: seen.append(can_fuse_q(x, rows[0])) or x * 2)(values.detach())
    assert seen == [False]


def test_views_of_one_head_and_expanded_columns_are_taken_as_the_plain_loss_takes_them():
    found = []
    for function in (q_loss, plain):
        values, rows, target, picking, _ = given(torch.float64)
        head = torch.cat([values.detach(), target], -1).requires_grad_()
        discounts = torch.full((1,), 0.9, dtype=torch.float64).expand(N)
        turned = picking.T.contiguous().T
        loss, terms, errors = function(head[:, :A], rows, head[:, A:].detach(), turned, discounts=discounts)
        found.append((loss.detach(), terms.detach(), errors, *torch.autograd.grad(loss, [head])))
    for one, other in zip(*found):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


def test_actions_and_columns_of_other_kinds_are_left_to_the_plain_loss():
    values, (actions, rewards, _), _, _, more = given(torch.float64)
    assert can_fuse_q(values, actions, rewards, *more.values())
    assert not can_fuse_q(values, actions.double(), rewards)
    for other in (rewards.float(), rewards.half(), rewards[:, None], rewards.clone().requires_grad_()):
        assert not can_fuse_q(values, actions, other)
