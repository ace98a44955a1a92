"""Batch renormalisation against its written-out algorithm, and the critics that have it."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lockstep.learner import LocalReducer
from lockstep.modules import DefaultCrossQModule, RLModuleSpec
from lockstep.modules.defaults.normalized_critics import BatchRenorm

OBS, BOX = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32)


def mean_of_rows(mask=None):
    return lambda features: LocalReducer().mean_of_rows(features, mask, True)


def renorm(mean=(0.0, 0.0), variance=(1.0, 1.0), num_batches=0):
    norm = BatchRenorm(1, 2).double()
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([[[2.0, 0.5]]], dtype=torch.float64))
        norm.bias.copy_(torch.tensor([[[-1.0, 3.0]]], dtype=torch.float64))
        norm.mean.copy_(torch.tensor([[mean]], dtype=torch.float64))
        norm.variance.copy_(torch.tensor([[variance]], dtype=torch.float64))
        norm.num_batches.fill_(num_batches)
    return norm


def some_rows(seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal([1.0, -2.0], [2.0, 0.1], (8, 2)))


@pytest.mark.parametrize("num_batches", [0, 99_999, 100_000])
@pytest.mark.parametrize("mean", [(0.9, -1.9), (90.0, -1.9)])
def test_batch_renorm_starts_as_batch_norm_and_becomes_algorithm_1(num_batches, mean):
    """r in [1/3, 3] and d in [-5, 5]: here both are cut in one of the two cases."""
    rows, variance = some_rows(), (3.0, 4.0)
    norm = renorm(mean, variance, num_batches)
    found = norm(rows[None], mean_of_rows=mean_of_rows())[0]
    x, running_mean, running_variance = rows.numpy(), np.array(mean), np.array(variance)
    deviation, running = np.sqrt(x.var(0) + 1e-3), np.sqrt(running_variance + 1e-3)
    r = np.clip(deviation / running, 1 / 3, 3) if num_batches >= 100_000 else 1.0
    d = np.clip((x.mean(0) - running_mean) / running, -5, 5) if num_batches >= 100_000 else 0.0
    expected = ((x - x.mean(0)) / deviation * r + d) * [2.0, 0.5] + [-1.0, 3.0]
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(norm.mean[0, 0], 0.99 * running_mean + 0.01 * x.mean(0), rtol=1e-12)
    np.testing.assert_allclose(norm.variance[0, 0], 0.99 * running_variance + 0.01 * x.var(0), rtol=1e-12)
    assert int(norm.num_batches) == num_batches + 1


def test_r_and_d_have_no_gradient_but_batch_statistics_have_one():
    rows = some_rows().requires_grad_()
    norm = renorm((0.9, -1.9), (3.0, 0.02), 100_000)
    found = norm(rows[None], mean_of_rows=mean_of_rows())[0]
    (gradient,) = torch.autograd.grad(found.square().sum(), rows)
    variance, mean = torch.var_mean(rows, 0, correction=0)
    deviation, running = (variance + 1e-3).sqrt(), (torch.tensor([3.0, 0.02]) + 1e-3).sqrt()
    r = (deviation / running).clamp(1 / 3, 3).detach()
    d = ((mean - torch.tensor([0.9, -1.9])) / running).clamp(-5, 5).detach()
    again = ((rows - mean) / deviation * r + d) * torch.tensor([2.0, 0.5]) + torch.tensor([-1.0, 3.0])
    torch.testing.assert_close(gradient, torch.autograd.grad(again.square().sum(), rows)[0], atol=1e-6, rtol=1e-6)


def test_running_statistics_are_used_without_a_batch_and_unchanged():
    norm, rows = renorm((0.9, -1.9), (3.0, 0.02), 5), some_rows()
    before = [buffer.clone() for buffer in norm.buffers()]
    expected = (rows.numpy() - [0.9, -1.9]) / np.sqrt(np.array([3.0, 0.02]) + 1e-3) * [2.0, 0.5] + [-1.0, 3.0]
    found = norm(rows[None], frozen=True)[0]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
    assert not found.requires_grad
    assert all(map(torch.equal, before, norm.buffers()))


def test_padding_does_not_count_and_an_infinite_batch_leaves_no_trace():
    rows, mask = some_rows(), torch.arange(8) < 5
    whole, part = renorm(), renorm()
    broken = torch.where(mask[:, None], rows, torch.nan)
    found = whole(broken[None], mean_of_rows=mean_of_rows(mask))[0, :5]
    torch.testing.assert_close(found, part(rows[None, :5], mean_of_rows=mean_of_rows())[0])
    assert torch.equal(whole.mean, part.mean)
    whole(broken[None], mean_of_rows=mean_of_rows())
    assert torch.equal(whole.mean, part.mean)
    assert torch.equal(whole.variance, part.variance)


def test_values_of_two_halves_equal_those_of_one_batch():
    module = RLModuleSpec(
        DefaultCrossQModule, OBS, BOX, model_config={"hiddens": (8,), "critic_hiddens": (8, 4), "activation": "relu"}
    ).build(seed=1)
    critics = module.critics
    rng = np.random.default_rng(0)
    now, after = (
        tuple(torch.from_numpy(rng.normal(shift, 1.0, (6, size)).astype(np.float32)) for size in (3, 2))
        for shift in (0.0, 3.0)
    )
    values, following = critics.joint_values(now, after, mean_of_rows())
    assert values.shape == following.shape == (2, 6)
    mlp = critics.mlp
    for k in range(2):
        hidden = torch.cat([torch.cat(now, -1), torch.cat(after, -1)])
        for i, (weight, bias) in enumerate(zip(mlp.weights, mlp.biases)):
            hidden = (hidden - hidden.mean(0)) / (hidden.var(0, correction=0) + 1e-3).sqrt()
            hidden = hidden @ weight[k] + bias[k]
            hidden = hidden.relu() if i < 2 else hidden
        torch.testing.assert_close(torch.cat([values[k], following[k]]), hidden[:, 0], atol=1e-5, rtol=1e-5)
    for _ in range(1_500):
        values, _ = critics.joint_values(now, after, mean_of_rows())
    torch.testing.assert_close(critics(*now), values, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(critics(*now, first_only=True), values[:1], atol=1e-4, rtol=1e-3)
    with pytest.raises(TypeError, match="call all of them"):
        mlp.network(0)
