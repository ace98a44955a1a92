"""Projection and quantile loss: numbers worked out by hand, the papers' loops, and what they are meant to do."""

import math

import numpy as np
import pytest
import torch

from lockstep.ops import mixture_huber_loss, project_on_atoms, quantile_huber_loss


def tensor(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def projected(probs, rewards, discounts, v_min, v_max):
    return project_on_atoms(tensor(*probs), tensor(*rewards), tensor(*discounts), v_min=v_min, v_max=v_max)


def test_a_moved_atom_splits_its_probability_by_distance_to_neighbours():
    # atoms 0, 1, 2, 3; all mass on 2; 0.5 + 0.9 * 2 = 2.3
    got = projected([[0.0, 0.0, 1.0, 0.0]], [0.5], [0.9], 0.0, 3.0)
    torch.testing.assert_close(got, tensor([0.0, 0.0, 0.7, 0.3]))


def test_a_whole_distribution_worked_out_by_hand():
    # atoms -1, 0, 1 with 0.2, 0.5, 0.3; reward 0.25, discount 0.5: -0.25, 0.25, 0.75
    # -0.25 gives 0.25 * 0.2 to -1 and 0.75 * 0.2 to 0; 0.25: 0.75 * 0.5, 0.25 * 0.5; 0.75: 0.25 * 0.3, 0.75 * 0.3
    got = projected([[0.2, 0.5, 0.3]], [0.25], [0.5], -1.0, 1.0)
    torch.testing.assert_close(got, tensor([0.05, 0.15 + 0.375 + 0.075, 0.125 + 0.225]))


def test_outside_atoms_take_the_edges_and_episode_ends_the_reward():
    probs = [[0.2, 0.5, 0.3]] * 4
    got = projected(probs, [1.0, -7.0, 9.0, 0.5], [0.0, 0.0, 1.0, 0.0], -1.0, 1.0)
    torch.testing.assert_close(got, tensor([0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 0.5, 0.5]).double())


def algorithm_1(probs, rewards, discounts, v_min, v_max):
    """The paper's loop, one atom at a time."""
    number, atoms = probs.shape
    spacing = (v_max - v_min) / (atoms - 1)
    out = np.zeros_like(probs)
    for n in range(number):
        for j in range(atoms):
            moved = min(max(rewards[n] + discounts[n] * (v_min + j * spacing), v_min), v_max)
            position = (moved - v_min) / spacing
            low, high = math.floor(position), math.ceil(position)
            if low == high:
                out[n, low] += probs[n, j]
            else:
                out[n, low] += probs[n, j] * (high - position)
                out[n, high] += probs[n, j] * (position - low)
    return out


def test_the_projection_is_that_of_the_papers_algorithm():
    rng = np.random.default_rng(0)
    for atoms, v_min, v_max in ((51, -10.0, 10.0), (2, 0.0, 1.0), (7, -0.3, 100.0)):
        probs = rng.dirichlet(np.ones(atoms), 40)
        rewards, discounts = rng.normal(scale=abs(v_max), size=40), rng.choice([0.0, 0.97, 1.0], 40)
        got = project_on_atoms(*map(torch.from_numpy, (probs, rewards, discounts)), v_min=v_min, v_max=v_max)
        np.testing.assert_allclose(got, algorithm_1(probs, rewards, discounts, v_min, v_max), atol=1e-12)
        np.testing.assert_allclose(got.sum(1), 1.0, atol=1e-12)


def test_the_mean_stays_where_nothing_falls_outside():
    probs = torch.from_numpy(np.random.default_rng(1).dirichlet(np.ones(21), 30))
    atoms = torch.linspace(-5.0, 5.0, 21, dtype=torch.float64)
    got = project_on_atoms(probs, torch.full((30,), 0.37, dtype=torch.float64), 0.9, v_min=-5.0, v_max=5.0)
    torch.testing.assert_close((got * atoms).sum(1), 0.37 + 0.9 * (probs * atoms).sum(1))


def test_in_float32_no_probability_is_lost_at_the_ends():
    probs = torch.full((64, 51), 1 / 51)
    got = project_on_atoms(probs, torch.linspace(-30, 30, 64), 0.99, v_min=0.1, v_max=7.3)
    torch.testing.assert_close(got.sum(1), torch.ones(64))


def test_the_quantile_loss_worked_out_by_hand():
    # levels 0.25, 0.75; errors of quantile 1: 0.5, 3; of quantile 4: -2.5, 0
    # 0.25 * 0.125 and 0.25 * 2.5; 0.25 * (2.5 - 0.5) and 0
    loss = quantile_huber_loss(tensor([1.0, 4.0]), tensor([1.5, 4.0]))
    assert loss.item() == pytest.approx((0.03125 + 0.625) / 2 + 0.5 / 2)
    # kappa 0: 0.25 * 0.5, 0.25 * 3; 0.25 * 2.5
    assert quantile_huber_loss(tensor([1.0, 4.0]), tensor([1.5, 4.0]), kappa=0.0).item() == pytest.approx(0.75)


def test_the_quantile_loss_at_levels_of_each_row_worked_out_by_hand():
    # levels 0.9, 0.2 of the first row, 0.5, 1 of the second; the errors are those above
    levels = tensor([0.9, 0.2], [0.5, 1.0])
    loss = quantile_huber_loss(tensor([1.0, 4.0], [1.0, 4.0]), tensor([1.5, 4.0], [1.5, 4.0]), levels=levels)
    first = (0.9 * 0.125 + 0.9 * 2.5) / 2 + 0.8 * 2.0 / 2
    torch.testing.assert_close(loss, tensor(first, (0.5 * 0.125 + 0.5 * 2.5) / 2))


def written_out(quantiles, targets, kappa):
    """Equation 10 with torch's own Huber loss, for autograd."""
    number, count = quantiles.shape
    total = torch.zeros(number, dtype=quantiles.dtype)
    for i in range(count):
        level = (i + 0.5) / count
        for j in range(targets.shape[1]):
            error = targets[:, j] - quantiles[:, i]
            huber = torch.nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=kappa)
            total = total + (level - (error < 0).double()).abs() * huber / kappa / targets.shape[1]
    return total


@pytest.mark.parametrize("kappa", [1.0, 0.2])
def test_loss_and_gradient_are_those_of_the_equation(kappa):
    generator = torch.Generator().manual_seed(0)
    quantiles, targets = (torch.randn(5, k, dtype=torch.float64, generator=generator) for k in (7, 4))
    gradients = []
    for function in (lambda q: quantile_huber_loss(q, targets, kappa=kappa), lambda q: written_out(q, targets, kappa)):
        own = quantiles.clone().requires_grad_()
        loss = function(own)
        (loss * torch.arange(1.0, 6.0)).sum().backward()
        gradients.append((loss.detach(), own.grad))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(("kappa", "offset"), [(1.0, 0.0), (0.2, 1e3), (50.0, -1e3)])
def test_the_loss_of_a_mixture_is_that_of_each_critic_apart(kappa, offset):
    """For quantiles that are targets, too, and those beyond all targets; in float32 up to rounding."""
    generator = torch.Generator().manual_seed(0)
    quantiles, targets = (3.0 * torch.randn(*shape, generator=generator) + offset for shape in ((3, 6, 5), (6, 11)))
    targets = targets.sort(-1).values
    quantiles[0, 0, 0] = targets[0, 3]
    quantiles[1, 0, 1], quantiles[2, 1, 2] = targets[0, -1] + 9.0, targets[1, 0] - 9.0
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-3)):
        gradients = []
        for function in (mixture_huber_loss, quantile_huber_loss):
            own = quantiles.to(dtype).requires_grad_()
            loss = function(own, targets.to(dtype), kappa=kappa)
            (loss * torch.arange(1.0, 7.0)).sum().backward()
            gradients.append((loss.detach(), own.grad))
        torch.testing.assert_close(*gradients, rtol=tolerance, atol=tolerance)


def test_descending_the_loss_leads_to_the_quantiles_of_the_samples():
    samples = torch.from_numpy(np.random.default_rng(0).exponential(2.0, (1, 400)))
    quantiles = torch.zeros(1, 5, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([quantiles], lr=0.05)
    for _ in range(600):
        optimizer.zero_grad()
        quantile_huber_loss(quantiles, samples, kappa=0.0).sum().backward()
        optimizer.step()
    expected = np.quantile(samples.numpy(), [0.1, 0.3, 0.5, 0.7, 0.9])
    np.testing.assert_allclose(quantiles.detach().numpy()[0], expected, atol=0.08)
