"""BC and MARWIL: losses against numbers worked out by hand and an implementation apart, options, probes, Minari."""

import numpy as np
import pytest
import torch
from algorithm_tools import BOX, MODULE, THREE, played, transitions
from gymnasium import spaces
from parts import one_in

from lockstep import BCConfig, MARWILConfig, SampleBatch
from lockstep.envs.toys.probes import ObservationActionProbe, ObservationActionProbeContinuous
from lockstep.policy.offline_data import offline_source
from lockstep.replay import ReplayBuffer
from lockstep.rollout import MalformedBufferError

DISCRETE = spaces.Discrete(3), spaces.Discrete(2)
LOGITS = np.array([[0.0, 1.0], [2.0, 0.0], [0.0, 0.0]])  # [state, action]
VALUES = np.array([1.0, 2.0, 3.0])
GAMMA = 0.5


def learner_of(kind, training=None, action_spaces=DISCRETE, **model):
    """A learner whose policy is the table `LOGITS` and whose values are `VALUES` (of states, one-hot)."""
    config = kind().framework(dtype="float64").training(gamma=GAMMA, lr=0.1, **(training or {}))
    learner = config.rl_module(model_config={"hiddens": (), **model}).build_learner(spaces=action_spaces)
    module = learner.module[MODULE]
    with torch.no_grad():
        if action_spaces is DISCRETE:
            module.policy_head.weight.copy_(torch.from_numpy(LOGITS.T))
            if module.value_head is not None:
                module.value_head.weight.copy_(torch.from_numpy(VALUES)[None])
    return learner


def batch_of(**more):
    columns = {
        "obs": np.array([0, 1, 2]),
        "actions": np.array([0, 0, 1]),
        "rewards": np.array([3.0, 1.0, 2.0]),
        "terminateds": np.array([False, False, True]),
        "new_obs": np.array([1, 2, 0]),
    }
    return SampleBatch({**columns, **more})


def log_probs():
    return LOGITS - np.log(np.exp(LOGITS).sum(-1, keepdims=True))


def test_bc_is_minus_the_mean_log_probability_of_the_given_actions():
    expected = -np.mean(log_probs()[[0, 1, 2], [0, 0, 1]])
    results = learner_of(BCConfig).update_from_batch(batch_of())[MODULE]
    assert results["total_loss"] == results["policy_loss"] == pytest.approx(expected)
    entropy = -np.mean((np.exp(log_probs()) * log_probs()).sum(-1))
    results = learner_of(BCConfig, {"entropy_coeff": 0.3}).update_from_batch(batch_of())[MODULE]
    assert results["total_loss"] == pytest.approx(expected - 0.3 * entropy)


def test_bc_in_a_box_is_the_gaussians_density_or_the_squared_distance():
    box = spaces.Box(-1.0, 1.0, (2,)), spaces.Box(-1.0, 1.0, (2,))
    rng = np.random.default_rng(0)
    batch = SampleBatch(obs=rng.normal(size=(5, 2)), actions=rng.uniform(-0.9, 0.9, (5, 2)))
    for squash in (False, True):
        for kind in ("log_prob", "mse"):
            learner = learner_of(BCConfig, {"loss": kind}, box, squash_actions=squash, policy_gain=1.0)
            head = learner.module[MODULE].policy_head
            mean = batch["obs"] @ head.weight.detach().numpy()[:2].T + head.bias.detach().numpy()[:2]
            raw = np.arctanh(batch["actions"]) if squash else batch["actions"]
            slope = np.log(1 - batch["actions"] ** 2) if squash else 0.0
            density = (-0.5 * (raw - mean) ** 2 - 0.5 * np.log(2 * np.pi) - slope).sum(-1)  # deviation 1
            distance = ((np.tanh(mean) if squash else mean) - batch["actions"]) ** 2
            expected = -density.mean() if kind == "log_prob" else distance.mean()
            assert learner.update_from_batch(batch)[MODULE]["total_loss"] == pytest.approx(expected)


def marwil_by_hand(beta=1.0, start=4.0, rate=0.25, limit=None, discounts=(0.5, 0.5, 0.5)):
    """Losses, weights and the new average, in plain numpy."""
    following = np.array([VALUES[1], VALUES[2], 0.0])  # the last one has ended
    advantages = np.array([3.0, 1.0, 2.0]) + np.array(discounts) * following - VALUES
    average = start + rate * (np.mean(advantages**2) - start)
    weights = np.exp(beta * advantages / np.sqrt(average))
    weights = weights if limit is None else np.minimum(weights, limit)
    policy = -np.mean(weights * log_probs()[[0, 1, 2], [0, 0, 1]])
    return policy, 0.5 * np.mean(advantages**2), weights, average


NORM = {"moving_average_sqd_adv_norm_start": 4.0, "moving_average_sqd_adv_norm_update_rate": 0.25, "max_weight": None}


@pytest.mark.parametrize(
    "beta, limit, discounts", [(1.0, None, None), (2.0, None, [0.5, 0.25, 0.125]), (3.0, 1.2, None), (0.0, None, None)]
)
def test_marwil_weighs_by_the_exponential_of_scaled_advantages(beta, limit, discounts):
    learner = learner_of(MARWILConfig, {**NORM, "beta": beta, "max_weight": limit, "vf_coeff": 0.7})
    batch = batch_of() if discounts is None else batch_of(discounts=np.array(discounts))
    results = learner.update_from_batch(batch)[MODULE]
    policy, value, weights, average = marwil_by_hand(beta, limit=limit, discounts=discounts or (0.5, 0.5, 0.5))
    assert results["policy_loss"] == pytest.approx(policy)
    assert results["vf_loss"] == pytest.approx(value)
    assert results["weight_mean"] == pytest.approx(weights.mean())
    assert results["total_loss"] == pytest.approx(policy + 0.7 * value)
    assert float(learner.registered[f"{MODULE}/squared_advantages"]) == pytest.approx(average)


def test_the_gradient_of_marwil_does_not_reach_the_weights():
    """The policy's gradient is that of weighted imitation with the weights as constants, the value's that of its error
    alone: an implementation apart, by autograd on leaves."""
    learner = learner_of(MARWILConfig, {**NORM, "grad_clip": None})
    module = learner.module[MODULE]
    columns = {name: torch.from_numpy(np.asarray(column)) for name, column in batch_of().items()}
    fwd = learner.forward_train({MODULE: columns})
    learner.rows_in_step = 3
    learner.compute_gradients(learner.compute_losses(fwd_out=fwd, batch={MODULE: columns}))
    logits, values = torch.tensor(LOGITS, requires_grad=True), torch.tensor(VALUES, requires_grad=True)
    _, _, weights, _ = marwil_by_hand()
    taken = torch.log_softmax(logits, -1)[[0, 1, 2], [0, 0, 1]]
    targets = torch.tensor([3.0 + 0.5 * 2, 1.0 + 0.5 * 3, 2.0])
    (-(torch.from_numpy(weights) * taken).mean() + 0.5 * (targets - values).square().mean()).backward()
    torch.testing.assert_close(module.policy_head.weight.grad, logits.grad.T)
    torch.testing.assert_close(module.value_head.weight.grad[0], values.grad)


def trained(kind, probe, data, steps=300, **training):
    config = kind().environment(probe).offline_data(input_=data).training(lr=1e-2, train_batch_size=128, **training)
    config.rl_module(model_config={"hiddens": (16,)}).reporting(total_steps=steps, steps_per_epoch=steps)
    trainer = config.evaluation(evaluation_interval=0).build_trainer()
    trainer.run()
    return trainer.policy


def test_marwil_with_beta_0_is_bc_to_the_last_bit():
    data = played(ObservationActionProbe)
    one = trained(BCConfig, ObservationActionProbe, data, 50)
    other = trained(MARWILConfig, ObservationActionProbe, data, 50, beta=0.0)
    own = one.module.state_dict()
    assert {name.partition(".")[0] for name in own} == {"encoder", "policy_head"}
    for name, value in own.items():
        torch.testing.assert_close(value, other.module.state_dict()[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("probe", one_in(2, [ObservationActionProbe, ObservationActionProbeContinuous]))
def test_marwil_finds_the_best_action_in_random_data_and_bc_does_not(probe):
    data, obs = played(probe), np.array(probe.observations, np.float32)
    best = np.array([probe().best_action(row) for row in obs], np.float32)
    limits = {"moving_average_sqd_adv_norm_start": 1.0, "max_weight": 20.0}
    policy = trained(MARWILConfig, probe, data, beta=4.0, **limits)
    np.testing.assert_allclose(policy.compute_actions(obs), best, atol=0.15)
    values = policy.module.compute_values({"obs": torch.from_numpy(obs)}).detach().numpy()
    np.testing.assert_allclose(values, [data["rewards"][data["obs"][:, 0] == o].mean() for o in obs[:, 0]], atol=0.15)
    cloned = trained(BCConfig, probe, data)
    if probe is ObservationActionProbe:
        probabilities = torch.softmax(
            cloned.module.forward_train({"obs": torch.from_numpy(obs)})["action_dist_inputs"], -1
        )
        np.testing.assert_allclose(probabilities.detach(), 0.5, atol=0.15)


def test_bc_imitates_an_expert_with_normalised_observations():
    probe, obs = ObservationActionProbeContinuous, np.array([[-1.0], [1.0]], np.float32)
    data = played(probe, noise=0.1)
    config = BCConfig().environment(probe, normalize_observations=True).offline_data(input_=data)
    config.training(lr=1e-2, train_batch_size=128, loss="mse").reporting(total_steps=200, steps_per_epoch=200)
    trainer = config.rl_module(model_config={"hiddens": (16,)}).evaluation(evaluation_interval=0).build_trainer()
    (normalizer,) = trainer.policy.connectors.obs.connectors
    assert normalizer.moments[0].count == len(data)
    np.testing.assert_allclose(normalizer.moments[0].mean, data["obs"].mean(0), atol=1e-6)
    trainer.run()
    assert normalizer.moments[0].count == len(data)
    np.testing.assert_allclose(trainer.policy.compute_actions(obs), 0.5 * obs, atol=0.1)


def test_a_minari_dataset_is_read_and_its_actions_translated(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    spaces_of = spaces.Box(-9.0, 9.0, (2,)), spaces.Box(-2.0, 4.0, (1,))
    batch = SampleBatch(
        obs=np.arange(8, dtype=np.float32).reshape(4, 2),
        new_obs=np.arange(2, 10, dtype=np.float32).reshape(4, 2),
        actions=np.array([[-2.0], [1.0], [4.0], [2.5]], np.float32),
        rewards=np.arange(4.0),
        terminateds=np.array([0, 0, 0, 1], bool),
        truncateds=np.zeros(4, bool),
    )
    ReplayBuffer.from_batch(batch).to_minari("lockstep/tiny-v0", *spaces_of)
    config = MARWILConfig().environment(observation_space=spaces_of[0], action_space=spaces_of[1], rescale_actions=True)
    config.offline_data(input_="lockstep/tiny-v0").rl_module(model_config={"hiddens": (4,)})
    data = offline_source("lockstep/tiny-v0", config.build_policy())
    np.testing.assert_allclose(data.all()["actions"][:, 0], [-1.0, 0.0, 1.0, 0.5])
    monkeypatch.chdir(tmp_path)  # where the id is a path too
    assert len(offline_source("lockstep/tiny-v0", config.build_policy())) == 4
    ReplayBuffer.from_batch(batch[:3]).save("buffer-v0")
    with pytest.raises(MalformedBufferError, match="holds the environment's actions"):  # it was read
        offline_source("buffer-v0", config.build_policy())
    assert config.reporting(total_steps=3).training(train_batch_size=2).build_trainer().run().gradient_step == 3
    buffer, policy = ReplayBuffer.from_batch(batch), config.build_policy()
    with pytest.raises(MalformedBufferError, match="holds the environment's actions, and the policy learns from"):
        offline_source(buffer, policy)
    buffer.action_form = policy.action_form  # which they are not
    with pytest.raises(MalformedBufferError, match=r"reach from -2 to 4, the policy's lie within \[-1, 1\]"):
        offline_source(buffer, policy)


def test_marwil_goes_on_after_a_batch_that_is_not_finite():
    config = MARWILConfig().rl_module(model_config={"hiddens": (32, 32)}).debugging(seed=3)
    learner = config.training(nan_policy="skip").build_learner(spaces=(BOX, THREE))
    bad = transitions(THREE, rows=64)
    bad["rewards"][0] = np.nan
    with pytest.warns(RuntimeWarning, match="not finite"):
        learner.update_from_batch(bad)
    assert np.isfinite(learner.update_from_batch(transitions(THREE, rows=64))[MODULE]["total_loss"])
