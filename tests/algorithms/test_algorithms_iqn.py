"""IQN: the network and the loss against the paper's equations in plain numpy, and the levels that it draws."""

import copy

import numpy as np
import pytest
import torch
from algorithm_tools import MODULE
from gymnasium import spaces

from lockstep import IQNConfig, SampleBatch

OBS, CHOICES = spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(2)
LEVELS = {"num_quantiles": 4, "num_target_quantiles": 3, "num_policy_quantiles": 5, "num_cosines": 6}
GAMMA, KAPPA, ROWS = 0.9, 0.5, 4


def learner_of(double_q=True, **model):
    config = IQNConfig().framework(dtype="float64").environment(observation_space=OBS, action_space=CHOICES)
    config.training(gamma=GAMMA, kappa=KAPPA, double_q=double_q, grad_clip=None, **LEVELS)
    config.rl_module(model_config={"hiddens": (7,), "orthogonal_init": False, **model})
    learner = config.build_learner()
    for parameter in learner.registered[f"{MODULE}/target"].module.parameters():
        parameter.mul_(1.5)  # another network than the one that learns
    return learner


def batch_of():
    rng = np.random.default_rng(0)
    return SampleBatch(
        {
            "obs": rng.uniform(-1, 1, (ROWS, 3)),
            "new_obs": rng.uniform(-1, 1, (ROWS, 3)),
            "actions": np.array([0, 1, 1, 0]),
            "rewards": rng.normal(size=ROWS),
            "terminateds": np.array([False, False, True, False]),
            "truncateds": np.array([False, True, False, False]),
            "weights": rng.uniform(0.2, 1.0, ROWS),
        }
    )


def quantile(module, obs, level, action, dueling=False):
    """`f(psi(x) * phi(tau))` of equation 4, for one observation, level and action."""
    weights = {name: p.detach().numpy() for name, p in module.named_parameters()}

    def linear(name, x):
        return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]

    cosines = np.array([np.cos(np.pi * i * level) for i in range(LEVELS["num_cosines"])])
    embedded = np.maximum(linear("embedding.0", cosines), 0.0)
    hidden = np.tanh(linear("hidden.0", np.tanh(linear("encoder.mlp.0", obs)) * embedded))
    outputs = linear("policy_head", hidden)
    if not dueling:
        return outputs[action]
    hidden = np.tanh(linear("value_hidden.0", np.tanh(linear("value_encoder.mlp.0", obs)) * embedded))
    return linear("value_head", hidden)[0] + outputs[action] - outputs.mean()


def drawn_levels(generator):
    """The levels of each row: here, for the next action, and for what it is worth."""
    sizes = [LEVELS[f"num_{name}quantiles"] for name in ("", "policy_", "target_")]
    normal = torch.from_numpy(generator.standard_normal((ROWS, sum(sizes)), np.float32)).double()
    levels = torch.distributions.Normal(0.0, 1.0).cdf(normal).numpy()
    return np.split(levels, np.cumsum(sizes)[:-1], axis=1)


@pytest.mark.parametrize("double_q", [True, False])
@pytest.mark.parametrize("dueling", [True, False])
def test_loss_and_errors_are_those_of_the_papers_equations(double_q, dueling):
    learner, batch = learner_of(double_q, dueling=dueling), batch_of()
    module, target = (copy.deepcopy(learner.module[MODULE]), learner.registered[f"{MODULE}/target"].module)
    taus, policy_taus, target_taus = drawn_levels(copy.deepcopy(learner.streams.numpy(f"noise/{MODULE}")))
    losses, errors = [], []
    for row in range(ROWS):
        obs, after = batch["obs"][row], batch["new_obs"][row]
        judge = module if double_q else target
        worth = [np.mean([quantile(judge, after, tau, a, dueling) for tau in policy_taus[row]]) for a in range(2)]
        best = int(np.argmax(worth))
        goes_on = GAMMA * (not batch["terminateds"][row])
        targets = [
            batch["rewards"][row] + goes_on * quantile(target, after, t, best, dueling) for t in target_taus[row]
        ]
        values = [quantile(module, obs, tau, batch["actions"][row], dueling) for tau in taus[row]]
        loss = 0.0
        for tau, value in zip(taus[row], values):
            for sample in targets:
                delta = sample - value
                huber = 0.5 * delta**2 if abs(delta) <= KAPPA else KAPPA * (abs(delta) - 0.5 * KAPPA)
                loss += abs(tau - (delta < 0)) * huber / KAPPA / len(targets)
        losses.append(loss * batch["weights"][row])
        errors.append(np.mean(values) - np.mean(targets))
    results = learner.update_from_batch(batch)[MODULE]
    np.testing.assert_allclose(learner.row_errors[MODULE].numpy(), errors, rtol=1e-6)
    assert results["total_loss"] == pytest.approx(np.mean(losses), rel=1e-6)


def test_each_update_draws_new_levels_and_acting_always_takes_the_same():
    learner = learner_of()
    module, seen = learner.module[MODULE], []
    forward = module.forward_train
    module.forward_train = lambda batch: seen.append(module.levels_of(batch)) or forward(batch)
    for _ in range(2):
        learner.update_from_batch(batch_of())
    assert len(torch.cat(seen).unique()) == 2 * ROWS * LEVELS["num_quantiles"]
    obs = torch.zeros(2, 3, dtype=torch.float64)
    np.testing.assert_allclose(module.levels_of({"obs": obs}), [0.1, 0.3, 0.5, 0.7, 0.9])
    values = module.forward_inference({"obs": obs})["action_dist_inputs"]
    expected = [np.mean([quantile(module, np.zeros(3), t, a) for t in (0.1, 0.3, 0.5, 0.7, 0.9)]) for a in range(2)]
    np.testing.assert_allclose(values.detach(), [expected, expected], rtol=1e-6)


def test_quantiles_of_a_reward_by_chance_are_learned_at_every_level():
    config = IQNConfig().environment(observation_space=OBS, action_space=spaces.Discrete(1))
    learner = config.training(lr=3e-3, kappa=0.0, num_cosines=16).debugging(seed=1).build_learner()
    rng, rows = np.random.default_rng(0), 256
    for _ in range(300):
        obs, flags = np.full((rows, 3), 0.5, np.float32), np.ones(rows, bool)
        rewards = rng.uniform(-1.0, 1.0, rows).astype(np.float32)
        batch = {"obs": obs, "new_obs": obs, "actions": np.zeros(rows, np.int64), "rewards": rewards}
        learner.update_from_batch(SampleBatch({**batch, "terminateds": flags, "truncateds": ~flags}))
    module = learner.module[MODULE]
    found = module.value_outputs({"obs": torch.full((1, 3), 0.5)}).detach()[0, 0]
    np.testing.assert_allclose(found, 2.0 * module.middles - 1.0, atol=0.12)
