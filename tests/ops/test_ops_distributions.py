"""Distributions against torch.distributions, written-out numbers, masks, gradients, tracing and sampling."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch
from torch import distributions as reference

from lockstep.ops import Bernoulli, Categorical, DiagGaussian, MultiCategorical, SquashedGaussian

NVEC = (2, 5, 3)
STATIC = {
    Categorical: {"size": 4},
    MultiCategorical: {"nvec": NVEC},
    Bernoulli: {"size": 3},
    DiagGaussian: {"size": 3},
    SquashedGaussian: {"size": 3},
}
ALL = list(STATIC)
IDS = [cls.__name__ for cls in ALL]
every = pytest.mark.parametrize("cls", ALL, ids=IDS)


def torch_distribution(cls, inputs):
    """The same distribution from torch, in float64."""
    inputs = inputs.detach().double()
    if cls is Categorical:
        return reference.Categorical(logits=inputs)
    if cls is Bernoulli:
        return reference.Independent(reference.Bernoulli(logits=inputs), 1)
    mean, log_std = inputs.chunk(2, -1)
    normal = reference.Normal(mean, log_std.exp())
    if cls is SquashedGaussian:
        normal = reference.TransformedDistribution(normal, reference.TanhTransform(cache_size=1))
    return reference.Independent(normal, 1)


def make(cls, rows=64, scale=1.5, seed=0, dtype=torch.float32):
    """`(inputs, distribution)` with random inputs."""
    generator = torch.Generator().manual_seed(seed)
    inputs = scale * torch.randn(rows, cls.input_size(**STATIC[cls]), generator=generator, dtype=dtype)
    return inputs, cls.from_inputs(inputs, **STATIC[cls])


def assert_near(found, expected, tolerance=1e-6):
    torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


# ---- the same numbers as torch.distributions ----


@pytest.mark.parametrize("cls", [Categorical, Bernoulli, DiagGaussian], ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
def test_log_prob_entropy_and_kl_equal_torch(cls, scale):
    (inputs, mine), (other_inputs, other) = make(cls, scale=scale), make(cls, scale=scale, seed=1)
    theirs, theirs_other = torch_distribution(cls, inputs), torch_distribution(cls, other_inputs)
    actions = mine.sample(torch.Generator().manual_seed(2))
    assert_near(mine.log_prob(actions), theirs.log_prob(actions.double()))
    assert_near(mine.entropy(), theirs.entropy())
    assert_near(mine.kl(other), reference.kl_divergence(theirs, theirs_other))
    assert mine.log_prob(actions).shape == mine.entropy().shape == mine.kl(other).shape == (64,)


@pytest.mark.parametrize("nvec", [(3, 3), (2, 5, 3), (4,)])
def test_multi_categorical_equals_independent_categoricals(nvec):
    generator = torch.Generator().manual_seed(0)
    inputs, other_inputs = 2.0 * torch.randn(2, 64, sum(nvec), generator=generator)
    mine = MultiCategorical.from_inputs(inputs, nvec=nvec)
    other = MultiCategorical.from_inputs(other_inputs, nvec=nvec)
    actions = mine.sample(generator)
    parts = [reference.Categorical(logits=part) for part in inputs.double().split(nvec, -1)]
    others = [reference.Categorical(logits=part) for part in other_inputs.double().split(nvec, -1)]
    assert actions.shape == (64, len(nvec))
    assert_near(mine.log_prob(actions), sum(p.log_prob(actions[:, i]) for i, p in enumerate(parts)))
    assert_near(mine.entropy(), sum(p.entropy() for p in parts))
    assert_near(mine.kl(other), sum(reference.kl_divergence(p, q) for p, q in zip(parts, others)))
    assert torch.equal(mine.mode(), torch.stack([p.probs.argmax(-1) for p in parts], -1))


def test_squashed_gaussian_log_prob_equals_torch():
    inputs, mine = make(SquashedGaussian, scale=0.7)
    raw = DiagGaussian(mine.mean, mine.log_std).sample(torch.Generator().manual_seed(1)).double()
    theirs = torch_distribution(SquashedGaussian, inputs)
    actions = theirs.base_dist.transforms[0](raw)  # torch keeps `raw` beside its tanh, so its inverse is exact
    assert_near(mine.log_prob_of_raw(raw.float()), theirs.log_prob(actions))
    assert_near(SquashedGaussian.from_inputs(inputs.double(), size=3).log_prob(actions), theirs.log_prob(actions))


def test_squashed_gaussian_kl_is_that_of_the_gaussians():
    (inputs, mine), (other_inputs, other) = make(SquashedGaussian), make(SquashedGaussian, seed=1)
    expected = reference.kl_divergence(
        torch_distribution(DiagGaussian, inputs), torch_distribution(DiagGaussian, other_inputs)
    )
    assert_near(mine.kl(other), expected)


# ---- written out ----


def test_categorical_written_out():
    mine = Categorical.from_inputs(torch.tensor([[0.2, 0.3, 0.5]]).log() + 7.0, size=3)
    other = Categorical(torch.zeros(1, 3))
    assert_near(mine.log_prob(torch.tensor([2])), torch.tensor([math.log(0.5)]))
    entropy = -(0.2 * math.log(0.2) + 0.3 * math.log(0.3) + 0.5 * math.log(0.5))
    assert_near(mine.entropy(), torch.tensor([entropy]))
    assert_near(mine.kl(other), torch.tensor([math.log(3.0) - entropy]))
    assert mine.mode().tolist() == [2]
    assert mine.sample_with_noise(torch.tensor([[5.0, 0.0, 0.0]])).tolist() == [0]


def test_multi_categorical_written_out():
    logits = torch.tensor([[0.25, 0.75, 0.1, 0.6, 0.3]]).log()
    mine = MultiCategorical.from_inputs(logits, nvec=(2, 3))
    assert_near(mine.log_prob(torch.tensor([[1, 2]])), torch.tensor([math.log(0.75 * 0.3)]))
    assert mine.mode().tolist() == [[1, 1]]
    assert mine.sample_with_noise(torch.tensor([[9.0, 0.0, 0.0, 0.0, 9.0]])).tolist() == [[0, 2]]


def test_bernoulli_written_out():
    mine = Bernoulli.from_inputs(torch.tensor([[math.log(3.0), 0.0]]), size=2)  # probabilities 3/4 and 1/2
    assert_near(mine.log_prob(torch.tensor([[0, 1]])), torch.tensor([math.log(1 / 8)]))
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)) + math.log(2.0)
    assert_near(mine.entropy(), torch.tensor([entropy]))
    assert mine.mode().tolist() == [[1, 0]]
    assert mine.sample_with_noise(torch.tensor([[-2.0, 0.1]])).tolist() == [[0, 1]]
    assert mine.mode().dtype == torch.int8


def test_diag_gaussian_written_out():
    mine = DiagGaussian.from_inputs(torch.tensor([[1.0, -1.0, math.log(2.0), 0.0]]), size=2)
    log_2_pi = math.log(2 * math.pi)
    assert_near(mine.log_prob(torch.tensor([[3.0, -1.0]])), torch.tensor([-0.5 - math.log(2.0) - log_2_pi]))
    assert_near(mine.entropy(), torch.tensor([1.0 + log_2_pi + math.log(2.0)]))
    assert mine.mode().tolist() == [[1.0, -1.0]]
    assert_near(mine.sample_with_noise(torch.tensor([[1.0, -2.0]])), torch.tensor([[3.0, -3.0]]))
    assert DiagGaussian(torch.zeros(5, 2), torch.zeros(2)).entropy().shape == (5,)


def test_squashed_gaussian_written_out():
    mine = SquashedGaussian.from_inputs(torch.tensor([[0.5, math.log(2.0)]]), size=1)
    raw = 1.5
    expected = -0.125 - math.log(2.0) - 0.5 * math.log(2 * math.pi) - math.log(1 - math.tanh(raw) ** 2)
    assert_near(mine.log_prob(torch.tensor([[math.tanh(raw)]])), torch.tensor([expected]))
    assert_near(mine.mode(), torch.tensor([[math.tanh(0.5)]]))
    assert_near(mine.sample_with_noise(torch.tensor([[0.5]])), torch.tensor([[math.tanh(1.5)]]))


# ---- tails ----


@pytest.mark.parametrize("raw", [-88.0, -30.0, -12.0, -9.0, -3.0, -1e-4, 0.0, 2e-3, 5.0, 9.5, 20.0, 60.0])
def test_squashed_gaussian_is_exact_far_in_the_tails(raw):
    """log(1 - tanh(u)^2) is 0 - infinity in float32 beyond |u| = 9; the density of a far mean is not."""
    mean, log_std = raw - 0.25, -0.5
    mine = SquashedGaussian(torch.tensor([[mean]]), torch.tensor([[log_std]]))
    energy = -0.5 * (0.25 * math.exp(0.5)) ** 2 + 0.5 - 0.5 * math.log(2 * math.pi)
    log_slope = -2.0 * (np.logaddexp(raw, -raw) - math.log(2.0))  # 1 - tanh^2 = 1 / cosh^2
    # The float32 distance of `raw` from its mean is itself only good to the last digit of `raw`.
    tolerance = 1e-6 + 1e-6 * abs(raw)
    found = mine.log_prob_of_raw(torch.tensor([[raw]]))
    assert found.item() == pytest.approx(energy - log_slope, abs=tolerance)


@pytest.mark.parametrize("raw", [-50.0, -15.0, -1.0, 0.0, 0.3, 15.0, 50.0])
def test_gradient_of_the_tanh_correction_is_right_in_the_tails(raw):
    value = torch.tensor([[raw]], requires_grad=True)
    mine = SquashedGaussian(torch.tensor([[raw]]), torch.zeros(1, 1))  # the Gaussian's own slope is zero here
    mine.log_prob_of_raw(value).sum().backward()
    assert value.grad.item() == pytest.approx(2.0 * math.tanh(raw), abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_squashed_actions_of_exactly_one_have_finite_densities(dtype):
    inputs = torch.zeros(3, 2, dtype=dtype, requires_grad=True)
    mine = SquashedGaussian.from_inputs(inputs, size=1)
    actions = torch.tensor([[1.0], [-1.0], [0.999999]], dtype=dtype)
    log_prob = mine.log_prob(actions)
    log_prob.sum().backward()
    assert torch.isfinite(log_prob).all()
    assert torch.isfinite(inputs.grad).all()
    assert log_prob[0] == log_prob[1] != log_prob[2]


def test_sample_with_log_prob_agrees_with_both_forms():
    _, mine = make(SquashedGaussian, scale=0.5, dtype=torch.float64)
    noise = torch.from_numpy(SquashedGaussian.draw_noise(np.random.default_rng(0), (64,), size=3)).double()
    actions, log_prob = mine.sample_with_log_prob(noise)
    assert torch.equal(actions, mine.sample_with_noise(noise))
    assert_near(log_prob, mine.log_prob(actions), 1e-9)


@pytest.mark.parametrize("std", [0.05, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("mean", [-4.0, 0.0, 0.3, 12.0])
def test_squashed_gaussian_entropy_equals_numerical_integration(mean, std):
    def integrand(u):
        log_density = scipy.stats.norm.logpdf(u, mean, std)
        return -np.exp(log_density) * (log_density + 2.0 * (np.logaddexp(u, -u) - math.log(2.0)))

    grid = np.linspace(mean - 10 * std, mean + 10 * std, 200_001)
    expected = scipy.integrate.simpson(integrand(grid), x=grid)
    mine = SquashedGaussian(
        torch.full((1, 1), mean, dtype=torch.float64), torch.full((1, 1), math.log(std), dtype=torch.float64)
    )
    assert mine.entropy().item() == pytest.approx(expected, abs=1e-6)
    single = SquashedGaussian(torch.full((1, 1), mean), torch.full((1, 1), math.log(std)))
    assert single.entropy().item() == pytest.approx(expected, abs=1e-5)


def test_bernoulli_and_categorical_keep_their_small_numbers():
    logit = 20.0
    tiny = math.exp(-logit)
    bit = Bernoulli(torch.tensor([[logit]]))
    assert bit.log_prob(torch.tensor([[1]])).item() == pytest.approx(-tiny, rel=1e-5)
    assert bit.log_prob(torch.tensor([[0]])).item() == pytest.approx(-logit, rel=1e-6)
    assert bit.entropy().item() == pytest.approx(tiny * (1 + logit), rel=1e-5)
    choice = Categorical(torch.tensor([[1e4, 0.0]]))
    assert choice.log_prob(torch.tensor([1])).item() == -1e4


# ---- masks ----

HUGE = [-1e9, torch.finfo(torch.float32).min]


@pytest.mark.parametrize("huge", HUGE)
def test_masked_categorical_is_the_smaller_categorical(huge):
    logits = torch.tensor([[1.0, 2.0, 0.5, -1.0]], requires_grad=True)
    allowed = torch.tensor([True, False, True, False])
    masked = Categorical(torch.where(allowed, logits, huge))
    smaller = Categorical(logits[:, allowed])
    assert_near(masked.entropy(), smaller.entropy())
    assert_near(masked.log_prob(torch.tensor([2])), smaller.log_prob(torch.tensor([1])))
    assert_near(masked.kl(masked), torch.zeros(1))
    (masked.entropy() + masked.log_prob(torch.tensor([0]))).sum().backward()
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[0, [1, 3]].tolist() == [0.0, 0.0]
    noise = torch.from_numpy(Categorical.draw_noise(np.random.default_rng(0), (20_000,), size=4))
    drawn = masked.sample_with_noise(noise)
    assert set(drawn.tolist()) == {0, 2}
    assert set(Categorical(masked.logits.expand(5000, 4)).sample().tolist()) == {0, 2}


@pytest.mark.parametrize("huge", HUGE)
def test_masked_multi_categorical_and_bernoulli_stay_finite(huge):
    logits = torch.randn(8, sum(NVEC), generator=torch.Generator().manual_seed(0), requires_grad=True)
    mask = torch.ones(sum(NVEC), dtype=torch.bool)
    mask[[1, 2, 3, 9]] = False
    multi = MultiCategorical(torch.where(mask, logits, huge), NVEC)
    actions = multi.sample()
    results = [multi.log_prob(actions), multi.entropy(), multi.kl(multi)]
    sum(results).sum().backward()
    assert all(torch.isfinite(result).all() for result in results)
    assert torch.isfinite(logits.grad).all()
    assert (actions[:, 0] == 0).all()
    assert (actions[:, 1] >= 2).all()
    assert (actions[:, 2] < 2).all()

    bits = torch.zeros(1, 2, requires_grad=True)
    masked = Bernoulli(torch.where(torch.tensor([True, False]), bits, huge))
    results = [masked.log_prob(torch.tensor([[1, 0]])), masked.entropy(), masked.kl(masked)]
    sum(results).sum().backward()
    assert_near(masked.entropy(), torch.tensor([math.log(2.0)]))
    assert torch.isfinite(bits.grad).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_padding_of_unequal_parts_is_finite_in_every_dtype(dtype):
    multi = MultiCategorical.from_inputs(torch.full((2, sum(NVEC)), 30.0, dtype=dtype), nvec=NVEC)
    expected = torch.full((2,), sum(math.log(n) for n in NVEC))
    torch.testing.assert_close(multi.entropy().float(), expected, rtol=2e-2, atol=0)


# ---- gradients and tracing ----


def losses(cls, inputs, other_inputs, actions):
    mine, other = cls.from_inputs(inputs, **STATIC[cls]), cls.from_inputs(other_inputs, **STATIC[cls])
    return torch.stack([mine.log_prob(actions), mine.entropy(), mine.kl(other)])


@every
def test_gradients_equal_finite_differences(cls):
    inputs, mine = make(cls, rows=4, scale=0.8, dtype=torch.float64)
    other_inputs, _ = make(cls, rows=4, scale=0.8, seed=1, dtype=torch.float64)
    actions = mine.sample(torch.Generator().manual_seed(3)).detach()
    inputs.requires_grad_()
    other_inputs.requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: losses(cls, a, b, actions), (inputs, other_inputs))


@every
def test_gradients_are_finite_for_extreme_inputs(cls):
    inputs, _ = make(cls, rows=32, scale=15.0)
    inputs.requires_grad_()
    mine = cls.from_inputs(inputs, **STATIC[cls])
    actions = mine.sample(torch.Generator().manual_seed(3)).detach()
    result = mine.entropy() + (mine.log_prob(actions) if cls is not SquashedGaussian else 0.0)
    result.sum().backward()
    assert torch.isfinite(result).all()
    assert torch.isfinite(inputs.grad).all()


@every
def test_every_method_is_traced_as_one_graph_and_by_functorch(cls):
    inputs, mine = make(cls, rows=8, scale=0.5)
    other_inputs, _ = make(cls, rows=8, scale=0.5, seed=1)
    noise = torch.from_numpy(cls.draw_noise(np.random.default_rng(0), (8,), **STATIC[cls]))
    actions = mine.sample_with_noise(noise)

    def everything(inputs, other_inputs, noise, actions):
        built = cls.from_inputs(inputs, **STATIC[cls])
        return losses(cls, inputs, other_inputs, actions), built.mode(), built.sample_with_noise(noise)

    traced = torch.compile(everything, backend="eager", fullgraph=True)
    arguments = (inputs, other_inputs, noise, actions)
    for found, expected in zip(traced(*arguments), everything(*arguments)):
        torch.testing.assert_close(found, expected)
    gradient = torch.func.grad(lambda x: losses(cls, x, other_inputs, actions).sum())(inputs)
    assert gradient.shape == inputs.shape


@every
def test_any_number_of_leading_dimensions(cls):
    inputs, flat = make(cls, rows=6)
    grid = cls.from_inputs(inputs.reshape(2, 3, -1), **STATIC[cls])
    noise = torch.from_numpy(cls.draw_noise(np.random.default_rng(0), (2, 3), **STATIC[cls]))
    actions = grid.sample_with_noise(noise)
    flat_actions = actions.reshape(6, *actions.shape[2:])
    assert torch.equal(flat.sample_with_noise(noise.reshape(6, -1)), flat_actions)
    assert torch.equal(grid.log_prob(actions).reshape(6), flat.log_prob(flat_actions))
    assert torch.equal(grid.entropy().reshape(6), flat.entropy())
    assert grid.mode().shape == grid.sample().shape == actions.shape


@every
def test_wrong_number_of_network_outputs_is_refused(cls):
    width = cls.input_size(**STATIC[cls])
    with pytest.raises(ValueError, match=rf"{cls.__name__} needs {width} network outputs.*\(2, {width + 1}\)"):
        cls.from_inputs(torch.zeros(2, width + 1), **STATIC[cls])


# ---- drawing: noise in bulk and torch's generator both give what log_prob describes ----

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
def test_sample_carries_no_gradient_and_rsample_does(cls):
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
