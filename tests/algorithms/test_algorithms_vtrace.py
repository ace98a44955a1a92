"""IMPALA and APPO: losses, what a rollout becomes, target network and options, against written-out computations."""

import math

import numpy as np
import pytest
import torch
from algorithm_tools import MODULE, exact_learner, loss_and_gradients, some_episodes
from torch.distributions import Categorical, kl_divergence

from lockstep import A2CConfig, APPOConfig, IMPALAConfig
from lockstep.data.trajectories import trajectories_from_episodes

F64 = torch.float64


def rows(number=8, seed=0):
    """Network outputs and a train batch, random; importance weights from about 0.2 to 5."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, dtype=F64, generator=rng)

    inputs, target_inputs = normal(number, 3), normal(number, 3)
    actions = torch.randint(3, (number,), generator=rng)
    acted = torch.log_softmax(inputs + 0.7 * normal(number, 3), -1)[torch.arange(number), actions]
    batch = {
        "actions": actions,
        "action_logp": acted,
        "advantages": normal(number),
        "value_targets": normal(number),
        "action_dist_inputs": target_inputs,
    }
    return inputs, normal(number), batch


def written_out(inputs, values, batch, policy_term, *, vf_coeff=0.5, entropy_coeff=0.01, kl_coeff=0.0):
    """The mean over rows of `policy_term(ratio, logp, advantage)` and the other terms, row by row."""
    inputs, values = inputs.clone().requires_grad_(), values.clone().requires_grad_()
    total = torch.zeros((), dtype=F64)
    for row in range(len(values)):
        dist = Categorical(logits=inputs[row])
        logp = dist.log_prob(batch["actions"][row])
        ratio = (logp - batch["action_logp"][row]).exp()
        error = (values[row] - batch["value_targets"][row]) ** 2
        total = total - policy_term(ratio, logp, batch["advantages"][row]) + vf_coeff * 0.5 * error
        total = total - entropy_coeff * dist.entropy()
        if kl_coeff:
            total = total + kl_coeff * kl_divergence(Categorical(logits=batch["action_dist_inputs"][row]), dist)
    loss = total / len(values)
    return loss.detach(), torch.autograd.grad(loss, (inputs, values))


@pytest.mark.parametrize("limit", [1.0, 1.7, None])
def test_impala_loss_and_its_gradients_equal_a_plain_torch_computation(limit):
    learner = exact_learner(IMPALAConfig(), vtrace_clip_pg_rho_threshold=limit, vf_loss_coeff=0.7, entropy_coeff=0.2)
    most = math.inf if limit is None else limit
    expected = written_out(
        *rows(),
        lambda ratio, logp, advantage: min(ratio.detach(), torch.tensor(most, dtype=F64)) * logp * advantage,
        vf_coeff=0.7,
        entropy_coeff=0.2,
    )
    torch.testing.assert_close(loss_and_gradients(learner, *rows()), expected, rtol=0, atol=1e-12)


def test_impala_without_vtrace_is_a_plain_policy_gradient():
    inputs, values, batch = rows()
    del batch["action_logp"]
    learner = exact_learner(IMPALAConfig(), vtrace=False)
    plain = exact_learner(A2CConfig(), entropy_coeff=0.01, vf_loss_coeff=0.5)
    expected = loss_and_gradients(plain, inputs, values, batch)
    torch.testing.assert_close(loss_and_gradients(learner, inputs, values, batch), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("penalty", [0.0, 0.6])
def test_appo_loss_and_its_gradients_equal_a_plain_torch_computation(penalty):
    learner = exact_learner(APPOConfig(), clip_param=0.3, use_kl_loss=penalty > 0, kl_coeff=penalty, entropy_coeff=0.2)

    def surrogate(ratio, logp, advantage):
        return min(ratio * advantage, ratio.clamp(0.7, 1.3) * advantage)

    expected = written_out(*rows(), surrogate, entropy_coeff=0.2, kl_coeff=penalty)
    torch.testing.assert_close(loss_and_gradients(learner, *rows()), expected, rtol=0, atol=1e-12)


# -- what a rollout becomes ---


def outputs_of(module, obs, actions):
    with torch.no_grad():
        out = module.forward_train({"obs": torch.as_tensor(obs, dtype=F64)})
    logp = torch.log_softmax(out["action_dist_inputs"], -1)[torch.arange(len(actions)), torch.as_tensor(actions)]
    return logp.numpy() if len(actions) == len(obs) else None, out["vf_preds"].numpy()


def by_hand(learner, target, episodes, gamma, rho=1.0):
    """Equation 1 of the paper as its sum, for each episode: targets, unweighted advantages, log-probabilities."""
    targets, advantages, acted, wanted = [], [], [], []
    for episode in episodes:
        obs, actions, n = np.asarray(episode.get_observations()), np.asarray(episode.get_actions()), len(episode)
        values = outputs_of(learner.module[MODULE], obs, [0] * (n + 1))[1].copy()
        if episode.is_terminated:
            values[-1] = 0.0
        logp = outputs_of(target, obs[:-1], actions)[0]
        behaviour = np.asarray(episode.get_extra_model_outputs("action_logp"))
        ratios, rewards = np.exp(logp - behaviour), np.asarray(episode.get_rewards(), np.float64)
        deltas = np.minimum(rho, ratios) * (rewards + gamma * values[1:] - values[:-1])
        vs = [
            values[s] + sum(gamma ** (t - s) * np.prod(np.minimum(1.0, ratios[s:t])) * deltas[t] for t in range(s, n))
            for s in range(n)
        ] + [values[-1]]
        targets += vs[:-1]
        advantages += [rewards[t] + gamma * vs[t + 1] - values[t] for t in range(n)]
        acted += behaviour.tolist()
        wanted += logp.tolist()
    return np.array(targets), np.array(advantages), np.array(acted), np.array(wanted)


def test_impala_targets_and_advantages_are_those_of_the_paper():
    learner = exact_learner(IMPALAConfig(), gamma=0.9, vtrace_clip_rho_threshold=1.5)
    columns = learner.prepare_batch(trajectories_from_episodes(some_episodes(logp=True)), module_id=MODULE)
    targets, advantages, acted, _ = by_hand(learner, learner.module[MODULE], some_episodes(logp=True), 0.9, rho=1.5)
    np.testing.assert_allclose(columns["value_targets"].numpy(), targets, atol=1e-12)
    np.testing.assert_allclose(columns["advantages"].numpy(), advantages, atol=1e-12)
    np.testing.assert_allclose(columns["action_logp"].numpy(), acted, atol=1e-12)


def test_appo_corrects_towards_its_target_network_and_compares_with_it():
    learner = exact_learner(APPOConfig(), gamma=0.9, target_worker_clipping=1.2, lr=0.1, target_network_update_freq=9)
    learner.update_from_episodes(some_episodes(logp=True, seed=1))  # from here on the target network is another one
    target = learner.registered[f"{MODULE}/target"].module
    columns = learner.prepare_batch(trajectories_from_episodes(some_episodes(logp=True)), module_id=MODULE)
    targets, advantages, acted, old = by_hand(learner, target, some_episodes(logp=True), 0.9)
    weights = np.minimum(1.0, np.exp(old - acted))
    np.testing.assert_allclose(columns["value_targets"].numpy(), targets, atol=1e-12)
    np.testing.assert_allclose(columns["advantages"].numpy(), weights * advantages, atol=1e-12)
    # new / acted * min(acted / target, 1.2), written as one quotient
    ratio = np.minimum(np.exp(acted - old), 1.2)
    np.testing.assert_allclose(np.exp(-columns["action_logp"].numpy()), ratio * np.exp(-acted), atol=1e-12)
    assert not np.allclose(old, outputs_of(learner.module[MODULE], columns["obs"], columns["actions"])[0])


@pytest.mark.parametrize("config", [IMPALAConfig, APPOConfig])
def test_steps_without_a_log_probability_count_as_on_policy(config):
    learner, episodes = exact_learner(config(), lambda_=0.8), some_episodes()
    columns = learner.prepare_batch(trajectories_from_episodes(episodes), module_id=MODULE)
    plain = exact_learner(A2CConfig(), lambda_=0.8)
    expected = plain.prepare_batch(trajectories_from_episodes(episodes), module_id=MODULE)
    for name in ("advantages", "value_targets"):
        torch.testing.assert_close(columns[name], expected[name], rtol=0, atol=1e-12)
    if config is IMPALAConfig:
        results = learner.update_from_episodes(episodes)[MODULE]
        assert results["mean_importance_weight"] == 1.0


def test_pieces_with_and_without_a_log_probability_may_be_mixed():
    learner, episodes = exact_learner(IMPALAConfig()), some_episodes(logp=True)
    mixed = trajectories_from_episodes([*episodes[:2], *some_episodes()[2:]])
    assert np.isnan(mixed.action_logp[:, 0]).tolist() == [False] * 6 + [True] * 6
    columns = learner.prepare_batch(mixed, module_id=MODULE)
    own = outputs_of(learner.module[MODULE], columns["obs"], columns["actions"])[0]
    np.testing.assert_allclose(columns["action_logp"][6:].numpy(), own[6:], atol=1e-12)
    assert not np.allclose(columns["action_logp"][:6].numpy(), own[:6])


@pytest.mark.parametrize("config", [IMPALAConfig, APPOConfig])
def test_without_vtrace_older_policies_are_not_corrected_for(config):
    learner = exact_learner(config(), vtrace=False, lambda_=0.8)
    columns = learner.prepare_batch(trajectories_from_episodes(some_episodes(logp=True)), module_id=MODULE)
    plain = exact_learner(A2CConfig(), lambda_=0.8)
    expected = plain.prepare_batch(trajectories_from_episodes(some_episodes(logp=True)), module_id=MODULE)
    torch.testing.assert_close(columns["advantages"], expected["advantages"], rtol=0, atol=1e-12)


# -- target network, penalty ---


def test_the_target_network_follows_every_nth_update_and_is_in_the_state():
    learner = exact_learner(APPOConfig(), lr=0.1, target_network_update_freq=3, tau=0.5)
    target = learner.registered[f"{MODULE}/target"]
    start, distances = target.flat.clone(), []
    for _ in range(6):
        before = target.flat.clone()
        learner.update_from_episodes(some_episodes(logp=True), num_epochs=2, minibatch_size=4)
        distances.append(float((target.flat - before).abs().max()))
    assert [distance > 0 for distance in distances] == [False, False, True, False, False, True]
    saved = learner.get_state()
    other = exact_learner(APPOConfig(), lr=0.1, target_network_update_freq=3, tau=0.5)
    other.set_state(saved)
    torch.testing.assert_close(other.registered[f"{MODULE}/target"].flat, target.flat, rtol=0, atol=0)
    assert not torch.equal(start, target.flat)


@pytest.mark.parametrize(("target", "factor"), [(1e-9, 2.0), (1e9, 0.5)])
def test_kl_penalty_adapts(target, factor):
    learner = exact_learner(
        APPOConfig(), use_kl_loss=True, kl_coeff=0.4, kl_target=target, lr=0.1, target_network_update_freq=9
    )
    for number in range(1, 3):
        learner.update_from_episodes(some_episodes(logp=True), num_epochs=2)
        coefficient = float(learner.registered[f"{MODULE}/kl_coeff"])
        assert coefficient == pytest.approx(0.4 * factor**number)
