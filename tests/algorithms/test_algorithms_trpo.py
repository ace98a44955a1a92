"""TRPO: its step against the Fisher matrix written out, its trust region, and what its two optimizers leave alone."""

import math

import numpy as np
import pytest
import torch
from algorithm_tools import MODULE, exact_learner, some_episodes
from gymnasium import spaces
from torch.distributions import Categorical, Independent, Normal, kl_divergence
from torch.func import functional_call

from lockstep import TRPOConfig
from lockstep.algorithms.trpo import TRPOLearner
from lockstep.data.episode import SingleAgentEpisode

CHOICES, BOX = spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,), np.float32)
ALL_DIRECTIONS = {"cg_iterations": 400, "cg_damping": 0.001, "num_epochs": 1}


def episodes_of(space):
    if isinstance(space, spaces.Discrete):
        return some_episodes()
    rng = np.random.default_rng(0)
    return [
        SingleAgentEpisode(
            observations=rng.normal(size=(length + 1, 3)).astype(np.float32),
            actions=rng.normal(size=(length, 2)).astype(np.float32),
            rewards=rng.normal(size=length).astype(np.float32),
            terminated=True,
        )
        for length in (5, 7)
    ]


class Noting(TRPOLearner):
    """Notes the rows of its first loss."""

    def compute_loss_for_module(self, *, batch, **parts):
        self.first = getattr(self, "first", {name: column.clone() for name, column in batch.items()})
        return super().compute_loss_for_module(batch=batch, **parts)


class NotingConfig(TRPOConfig):
    learner_class = Noting


def parameters_of(module):
    """Copies of what the policy and the value function are made of."""
    named = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    values = {name: each for name, each in named.items() if name.startswith("value_")}
    return {name: each for name, each in named.items() if name not in values}, values


def updated(space=CHOICES, **training):
    learner = exact_learner(NotingConfig(), space, **training)
    before = parameters_of(learner.module[MODULE])
    learner.update_from_episodes(episodes_of(space), num_epochs=learner.config.num_epochs)
    return learner, before, parameters_of(learner.module[MODULE])


def flat(parameters):
    return torch.cat([each.reshape(-1) for each in parameters.values()])


class Problem:
    """L, the mean KL and the Fisher matrix of equation 14 as functions of all of the policy's numbers."""

    def __init__(self, learner, policy):
        self.module, self.rows, self.old = learner.module[MODULE], learner.first, policy
        self.discrete = self.rows["actions"].dim() == 1
        self.start = flat(policy)

    def dist(self, numbers):
        shapes = [each.shape for each in self.old.values()]
        parts = numbers.split([each.numel() for each in self.old.values()])
        parameters = {name: part.reshape(shape) for name, part, shape in zip(self.old, parts, shapes)}
        inputs = functional_call(self.module, parameters, ({"obs": self.rows["obs"]},))["action_dist_inputs"]
        if self.discrete:
            return Categorical(logits=inputs)
        mean, log_std = inputs.chunk(2, -1)
        return Independent(Normal(mean, log_std.exp()), 1)

    def gain(self, numbers):
        ratios = (self.dist(numbers).log_prob(self.rows["actions"]) - self.rows["action_logp"]).exp()
        return (ratios * self.rows["advantages"]).mean()

    def distance(self, numbers):
        return kl_divergence(self.dist(self.start), self.dist(numbers)).mean()

    def whole_step(self, delta, damping):
        fisher = torch.autograd.functional.hessian(self.distance, self.start) + damping * torch.eye(len(self.start))
        gradient = torch.autograd.functional.jacobian(self.gain, self.start)
        direction = torch.linalg.solve(fisher, gradient)
        return direction * torch.sqrt(2 * delta / (direction @ fisher @ direction))


@pytest.mark.parametrize("space", [CHOICES, BOX], ids=["Discrete", "Box"])
@pytest.mark.parametrize("delta", [1e-4, 0.01, 0.3])
def test_the_step_is_the_natural_one_as_long_as_the_trust_region_allows(space, delta):
    learner, (policy, _), (after, _) = updated(space, max_kl=delta, **ALL_DIRECTIONS)
    problem = Problem(learner, policy)
    step, shares = problem.whole_step(delta, 0.001), [0.8**k for k in range(10)]
    good = [
        share
        for share in shares
        if problem.gain(problem.start + share * step) > problem.gain(problem.start)
        and problem.distance(problem.start + share * step) <= delta
    ]
    assert good, "this case says nothing about the length"
    torch.testing.assert_close(flat(after) - problem.start, good[0] * step, rtol=1e-6, atol=1e-9)


def test_the_policy_learns_once_per_update_and_the_value_in_every_pass():
    policies, values = [], []
    for num_epochs in (1, 5):
        _, _, (policy, value) = updated(num_epochs=num_epochs)
        policies.append(flat(policy))
        values.append(flat(value))
    assert torch.equal(*policies)
    assert not torch.equal(*values)


def test_the_learning_rate_and_the_clipping_are_of_the_value_function():
    (_, _, (policy, value)), (_, _, (same, other)) = updated(), updated(lr=0.1, grad_clip=1e-3)
    assert torch.equal(flat(policy), flat(same))
    assert not torch.equal(flat(value), flat(other))


def test_what_is_reported_is_what_the_step_did():
    learner = exact_learner(NotingConfig(), max_kl=0.05, num_epochs=3)
    before = parameters_of(learner.module[MODULE])[0]
    results = learner.update_from_episodes(some_episodes())[MODULE]
    problem, after = Problem(learner, before), flat(parameters_of(learner.module[MODULE])[0])
    assert results["policy_loss"] == pytest.approx(-problem.gain(after).item())
    assert results["mean_kl_loss"] == pytest.approx(problem.distance(after).item())
    assert 0 < results["mean_kl_loss"] <= 0.05
    assert results["line_search_share"] in [pytest.approx(0.8**k) for k in range(10)]


def test_without_anything_to_gain_the_policy_stays_as_it_is():
    learner = exact_learner(TRPOConfig(), num_epochs=2, lambda_=1.0)
    before = flat(parameters_of(learner.module[MODULE])[0])
    episode = SingleAgentEpisode(
        observations=np.zeros((2, 3), np.float32), actions=np.array([1]), rewards=np.array([1.0]), terminated=True
    )
    results = learner.update_from_episodes([episode])[MODULE]  # one row: its normalised advantage is 0
    assert torch.equal(flat(parameters_of(learner.module[MODULE])[0]), before)
    assert results["line_search_share"] == 0.0
    assert math.isfinite(results["vf_loss"])
