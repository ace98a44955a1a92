"""Sampling: noise drawn in bulk and torch's generator both give the distribution that log_prob describes."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch

from lockstep.ops import Bernoulli, Categorical, DiagGaussian, MultiCategorical, SquashedGaussian

NVEC = (2, 5, 3)
STATIC = {
    Categorical: {"size": 4},
    MultiCategorical: {"nvec": NVEC},
    Bernoulli: {"size": 3},
    DiagGaussian: {"size": 3},
    SquashedGaussian: {"size": 3},
}
every = pytest.mark.parametrize("cls", list(STATIC), ids=[cls.__name__ for cls in STATIC])


def make(cls, rows=64, scale=1.5):
    """`(inputs, distribution)` with random inputs."""
    width = cls.input_size(**STATIC[cls])
    inputs = scale * torch.randn(rows, width, generator=torch.Generator().manual_seed(0))
    return inputs, cls.from_inputs(inputs, **STATIC[cls])


DRAWS = 100_000


def draws(cls, inputs, way):
    """`DRAWS` actions of the one-row `inputs`, with bulk noise or with torch's generator."""
    batch = cls.from_inputs(inputs.expand(DRAWS, -1), **STATIC[cls])
    if way == "generator":
        return batch.sample(torch.Generator().manual_seed(5))
    noise = cls.draw_noise(np.random.default_rng(5), (DRAWS,), **STATIC[cls])
    assert noise.dtype == np.float32
    assert noise.shape == (DRAWS, cls.noise_size(**STATIC[cls]))
    return batch.sample_with_noise(torch.from_numpy(noise))


def assert_frequencies(indices, probabilities):
    counts = np.bincount(np.asarray(indices), minlength=len(probabilities))
    probabilities = np.asarray(probabilities, dtype=np.float64)
    assert scipy.stats.chisquare(counts, DRAWS * probabilities / probabilities.sum()).pvalue > 1e-3


ways = pytest.mark.parametrize("way", ["noise", "generator"])


@ways
def test_categorical_samples_have_its_frequencies(way):
    probabilities = [0.05, 0.5, 0.15, 0.3]
    assert_frequencies(draws(Categorical, torch.tensor([probabilities]).log(), way), probabilities)


@ways
def test_multi_categorical_samples_have_its_joint_frequencies(way):
    inputs, mine = make(MultiCategorical, rows=1, scale=0.7)
    actions = draws(MultiCategorical, inputs, way)
    grid = torch.cartesian_prod(*(torch.arange(n) for n in NVEC))
    joint = MultiCategorical.from_inputs(inputs.expand(len(grid), -1), nvec=NVEC).log_prob(grid).exp()
    assert joint.sum().item() == pytest.approx(1.0, abs=1e-5)
    assert mine.log_prob(grid[:1]).exp().item() == pytest.approx(joint[0].item())
    assert_frequencies(np.ravel_multi_index(actions.numpy().T, NVEC), joint)


@ways
def test_bernoulli_samples_have_its_joint_frequencies(way):
    inputs = torch.tensor([[1.0, -0.5, 0.1]])
    actions = draws(Bernoulli, inputs, way)
    grid = torch.cartesian_prod(*[torch.arange(2)] * 3)
    joint = Bernoulli.from_inputs(inputs.expand(8, -1), size=3).log_prob(grid).exp()
    assert_frequencies(np.ravel_multi_index(actions.numpy().T.astype(np.int64), (2, 2, 2)), joint)


@ways
@pytest.mark.parametrize("cls", [DiagGaussian, SquashedGaussian], ids=lambda cls: cls.__name__)
def test_gaussian_samples_have_its_distribution_function(cls, way):
    mean, std = np.array([0.3, -1.0, 0.0]), np.array([0.5, 1.0, 1.7])
    actions = draws(cls, torch.tensor(np.concatenate([mean, np.log(std)])[None], dtype=torch.float32), way)
    raw = actions.double().atanh() if cls is SquashedGaussian else actions.double()
    scores = ((raw - torch.from_numpy(mean)) / torch.from_numpy(std)).numpy()
    for part in range(3):
        assert scipy.stats.kstest(scores[:, part], "norm").pvalue > 1e-3
    assert np.abs(np.corrcoef(scores.T) - np.eye(3)).max() < 0.02


@every
def test_noise_and_samples_repeat_with_their_generators(cls):
    first, second = (cls.draw_noise(np.random.default_rng(1), (3, 2), **STATIC[cls]) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert np.isfinite(first).all()
    _, mine = make(cls)
    assert torch.equal(mine.sample(torch.Generator().manual_seed(1)), mine.sample(torch.Generator().manual_seed(1)))


@every
def test_sample_carries_no_gradient_and_rsample_of_a_continuous_distribution_does(cls):
    inputs, _ = make(cls)
    inputs.requires_grad_()
    dist = cls.from_inputs(inputs, **STATIC[cls])
    drawn = dist.sample(torch.Generator().manual_seed(3))
    assert not drawn.requires_grad
    if cls in (DiagGaussian, SquashedGaussian):
        again = dist.rsample(torch.Generator().manual_seed(3))
        assert torch.equal(again.detach(), drawn)
        (gradient,) = torch.autograd.grad(again.sum(), [inputs])
        assert (gradient != 0).any()
    else:
        with pytest.raises(TypeError, match=r"no gradient; use sample\(\)"):
            dist.rsample()
