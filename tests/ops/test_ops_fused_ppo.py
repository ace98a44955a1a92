"""The compiled loss of PPO against the loss written with `ops.losses`, `ops.distributions` and autograd."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from lockstep.ops import (
    Bernoulli,
    Categorical,
    DiagGaussian,
    SquashedGaussian,
    approximate_kl,
    clipped_ratios,
    clipped_surrogate_loss,
    clipped_value_loss,
)
from lockstep.ops.fused_losses import GlobalReduction, can_fuse_ppo, moments, ppo_loss

N, SIZE = 37, 3
OPTIONS: list[dict[str, Any]] = [
    {},
    {"normalize": True},
    {"dual_clip": 1.5},
    {"vf_clip_param": 0.3},
    {"dual_clip": 2.0, "vf_clip_param": 0.1, "normalize": True},
]


def rows(distribution: Any, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """Inputs far enough from the old policy that every branch of the clips is taken."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    inputs = normal(N, SIZE if distribution is Categorical else 2 * SIZE) * 0.5
    actions = torch.arange(N) % SIZE if distribution is Categorical else normal(N, SIZE)
    dist = distribution.from_inputs(inputs, size=SIZE)
    return {
        "inputs": inputs.requires_grad_(),
        "values": normal(N).requires_grad_(),
        "batch": (actions, dist.log_prob(actions).detach() + 0.6 * normal(N), normal(N), normal(N)),
        "old_values": normal(N),
        "coefficients": (torch.tensor(0.2, dtype=dtype), 0.7, torch.tensor(0.05, dtype=dtype)),
    }


def plain(distribution: Any, given: dict[str, Any], **options: Any) -> tuple[Tensor, Tensor]:
    """Equation 9 with autograd."""
    actions, old_logp, advantages, targets = given["batch"]
    clip, vf_coeff, entropy_coeff = given["coefficients"]
    if options.get("normalize"):
        advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
    dist = distribution.from_inputs(given["inputs"], size=SIZE)
    logp = dist.log_prob(actions)
    surrogate = clipped_surrogate_loss(
        logp, old_logp, advantages, clip_param=clip, dual_clip=options.get("dual_clip")
    ).mean()
    value = clipped_value_loss(given["values"], targets, given["old_values"], options.get("vf_clip_param")).mean()
    entropy, kl = dist.entropy().mean(), approximate_kl(logp, old_logp).mean()
    clip_fraction = clipped_ratios(logp, old_logp, clip).mean()
    terms = torch.stack([surrogate, value, entropy, kl, clip_fraction])
    return surrogate + vf_coeff * value - entropy_coeff * entropy, terms


def fused(distribution: Any, given: dict[str, Any], **options: Any) -> tuple[Tensor, Tensor]:
    return ppo_loss(distribution, **given, **options)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("distribution", [Categorical, DiagGaussian])
def test_loss_terms_and_gradients_are_those_of_the_plain_loss(distribution: Any, options: dict[str, Any]) -> None:
    given = rows(distribution)
    results = []
    for form in (plain, fused):
        loss, terms = form(distribution, given, **options)
        gradients = torch.autograd.grad(3.0 * loss, [given["inputs"], given["values"]])
        results.append((loss.detach(), terms.detach(), *gradients))
    for expected, found in zip(*results):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("distribution", [Categorical, DiagGaussian])
def test_float32_agrees_up_to_its_rounding(distribution: Any) -> None:
    wide, narrow = rows(distribution), rows(distribution, torch.float32)
    loss, terms = fused(distribution, narrow, normalize=True)
    expected, expected_terms = plain(distribution, wide, normalize=True)
    assert loss.dtype is torch.float32
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(terms.double(), expected_terms.detach(), rtol=1e-5, atol=1e-6)


def test_forbidden_actions_have_no_gradient_and_nothing_is_nan() -> None:
    given = rows(Categorical, torch.float32)
    mask = torch.zeros(N, SIZE, dtype=torch.bool)
    mask[:, 2] = True
    given["inputs"] = given["inputs"].detach().masked_fill(mask, -1e9).requires_grad_()
    given["batch"] = (torch.arange(N) % 2, *given["batch"][1:])
    loss, terms = fused(Categorical, given)
    (gradient,) = torch.autograd.grad(loss, [given["inputs"]])
    assert torch.isfinite(torch.cat([loss.reshape(1), terms, gradient.reshape(-1)])).all()
    assert (gradient[:, 2] == 0).all()
    assert (gradient[:, :2] != 0).any()


def test_a_nan_in_the_network_reaches_the_loss() -> None:
    given = rows(Categorical)
    given["inputs"] = torch.full_like(given["inputs"], torch.nan).requires_grad_()
    assert torch.isnan(fused(Categorical, given)[0])


@pytest.mark.parametrize("action", [-1, SIZE])
def test_an_action_outside_of_the_space_is_refused(action: int) -> None:
    given = rows(Categorical)
    given["batch"][0][5] = action
    with pytest.raises(IndexError, match="outside of the action space"):
        fused(Categorical, given)


@pytest.mark.parametrize("column", range(4))
def test_columns_of_another_length_are_refused(column: int) -> None:
    given = rows(DiagGaussian)
    given["batch"] = tuple(c[:-1] if i == column else c for i, c in enumerate(given["batch"]))
    with pytest.raises(ValueError, match="row"):
        fused(DiagGaussian, given)


def test_a_second_derivative_is_refused_and_not_wrong() -> None:
    given = rows(Categorical)
    (gradient,) = torch.autograd.grad(fused(Categorical, given)[0], [given["inputs"]], create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(gradient.sum(), [given["inputs"]])


def test_what_cannot_be_fused_is_known() -> None:
    given = rows(Categorical)
    inputs, values, actions = given["inputs"], given["values"], given["batch"][0]
    assert can_fuse_ppo(Categorical, inputs, values, actions)
    assert not can_fuse_ppo(Bernoulli, inputs, values, actions)
    assert not can_fuse_ppo(SquashedGaussian, inputs, values, inputs)
    assert not can_fuse_ppo(Categorical, inputs, values, actions.to(torch.int32))
    assert not can_fuse_ppo(Categorical, inputs.float(), values, actions)
    assert not can_fuse_ppo(Categorical, inputs.to(torch.bfloat16), values.to(torch.bfloat16), actions)
    assert not can_fuse_ppo(Categorical, inputs.to("meta"), values.to("meta"), actions)
    seen = []

    def traced(x: Tensor) -> Tensor:
        seen.append(can_fuse_ppo(Categorical, x, values, actions))
        return x + 1

    make_fx(traced)(inputs)
    assert seen == [False]


@pytest.mark.parametrize("cuts", [(20,), (0, 5), (37,)])
@pytest.mark.parametrize("distribution", [Categorical, DiagGaussian])
def test_parts_of_a_batch_on_several_learners_add_up_to_the_whole(distribution: Any, cuts: tuple[int, ...]) -> None:
    options = OPTIONS[-1]
    given = rows(distribution)
    loss, terms = fused(distribution, given, **options)
    expected = torch.autograd.grad(loss, [given["inputs"], given["values"]])
    bounds = [0, *cuts, N]
    parts = torch.stack([moments(given["batch"][2][begin:end]) for begin, end in itertools.pairwise(bounds)])
    totals, gradients = [], []
    for begin, end in itertools.pairwise(bounds):
        own = {key: given[key][begin:end] for key in ("inputs", "values", "old_values")}
        own |= {"batch": tuple(column[begin:end] for column in given["batch"])}
        part, _ = fused(
            distribution,
            {**given, **own},
            **options,
            reduction=GlobalReduction(
                parts, lambda own_terms: totals.append(own_terms.clone()) or own_terms.copy_(terms)
            ),
        )
        torch.testing.assert_close(part, loss, rtol=1e-12, atol=1e-13)
        gradients.append(torch.autograd.grad(part, [given["inputs"], given["values"]]))
    torch.testing.assert_close(torch.stack(totals).sum(0), terms, rtol=1e-12, atol=1e-13)
    for each, found in zip(expected, zip(*gradients)):
        torch.testing.assert_close(torch.stack(found).sum(0), each, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("distribution", [Categorical, DiagGaussian])
def test_expanded_columns_and_views_are_learned_from_by_the_plain_loss(distribution: Any) -> None:
    given = rows(distribution)
    head = torch.cat([given["inputs"].detach(), given["values"].detach()[:, None]], -1).requires_grad_()
    actions, old_logp, _, targets = given["batch"]
    batch = (actions, old_logp.flip(0).flip(0), torch.ones(1, dtype=torch.float64).expand(N), targets)
    wide = torch.stack([given["old_values"]] * 2, -1)[:, 0]
    results = []
    for form in (plain, fused):
        own = {**given, "inputs": head[..., :-1], "values": head[..., -1], "batch": batch, "old_values": wide}
        loss, terms = form(distribution, own, vf_clip_param=0.3)
        results.append((loss.detach(), terms.detach(), *torch.autograd.grad(loss, [head])))
    for expected, found in zip(*results):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def test_columns_of_other_kinds_or_with_gradients_use_the_plain_loss() -> None:
    given = rows(Categorical)
    inputs, values, (actions, *columns) = given["inputs"], given["values"], given["batch"]
    assert can_fuse_ppo(Categorical, inputs, values, actions, *columns)
    assert not can_fuse_ppo(Categorical, inputs, values[:, None], actions, *columns)
    for other in (columns[0].float(), columns[0].half(), columns[0][:, None], columns[0].clone().requires_grad_()):
        assert not can_fuse_ppo(Categorical, inputs, values, actions, other, *columns[1:])
