"""CQL, IQL and TD3+BC: each loss against a plain torch implementation, what reaches which network, probes, options.

The probe of values is for every offline algorithm that has values.
"""

import math

import numpy as np
import pytest
import torch
from algorithm_cases import ALGORITHM_CASES, OFFLINE, class_of
from algorithm_tools import MODULE, learned_transitions, noting, played
from gymnasium import spaces
from parts import fast_if

from lockstep import BCConfig, CQLConfig, IQLConfig, TD3BCConfig
from lockstep.envs.toys.probes import (
    DiscountProbe,
    ObservationActionProbe,
    ObservationActionProbeContinuous,
    TruncationProbe,
)

OBS, BOX, DISCRETE = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-2, 2, (2,), np.float32), spaces.Discrete(3)
ROWS, GAMMA = 12, 0.9


def learner_of(kind, action_space=BOX, **training):
    """Networks of 8 units whose learner notes the batch (with the noise that was drawn) and does not learn."""
    config = kind().framework(dtype="float64").rl_module(model_config={"hiddens": (8,)}).debugging(seed=3)
    still = {"lr": 0.0, "actor_lr": 0.0, "tau": 1e-30}
    config.training(gamma=GAMMA, learner_class=noting(kind.learner_class), **{**still, **training})
    learner = config.build_learner(spaces=(OBS, action_space))
    target = learner.registered[f"{MODULE}/target"]
    target.flat += 0.1 * torch.from_numpy(np.random.default_rng(5).normal(size=target.flat.shape))  # not the same
    return learner


def step(kind, action_space=BOX, **training):
    """The learner after an update, its metrics, and the batch as tensors with the noise."""
    learner = learner_of(kind, action_space, **training)
    results = learner.update_from_batch(learned_transitions(action_space))[MODULE]
    seen = learner.seen
    return learner, results, seen, (seen["obs"], seen["new_obs"], seen["actions"], seen["rewards"])


def values_of(critics, obs, actions=None):
    """Each critic by itself, as plain layers."""
    inputs = obs if actions is None else torch.cat([obs, actions], -1)
    return [critics.mlp.network(k).double()(inputs) for k in range(critics.mlp.num_networks)]


def goes_on(seen):
    return 1.0 - seen["terminateds"].double()


def near(results, **expected):
    for name, value in expected.items():
        assert results[name] == pytest.approx(float(value), rel=1e-9, abs=1e-10), name


# -- IQL ---


@pytest.mark.parametrize("action_space", [BOX, DISCRETE], ids=["box", "discrete"])
def test_iql_is_equations_5_to_7(action_space):
    learner, results, seen, (obs, new_obs, actions, rewards) = step(IQLConfig, action_space, expectile=0.8, beta=2.0)
    module, target = learner.module[MODULE], learner.registered[f"{MODULE}/target"].module
    with torch.no_grad():
        if action_space is DISCRETE:
            pick = (torch.arange(ROWS), actions)
            believed = torch.stack([q[pick] for q in values_of(target, obs)]).amin(0)
            taken = [q[pick] for q in values_of(module.critics, obs)]
            logp = torch.log_softmax(module._forward({"obs": obs})["action_dist_inputs"], -1)[pick]
        else:
            believed = torch.stack([q[:, 0] for q in values_of(target, obs, actions)]).amin(0)
            taken = [q[:, 0] for q in values_of(module.critics, obs, actions)]
            mean = module._forward({"obs": obs})["action_dist_inputs"][:, :2]
            logp = torch.distributions.Normal(mean, module.log_std.exp()).log_prob(actions).sum(-1)
        values, following = (module.compute_values({"obs": o}) for o in (obs, new_obs))
        u = believed - values
        vf_loss = (torch.where(u < 0, 0.2, 0.8) * u**2).mean()
        targets = rewards + GAMMA * goes_on(seen) * following
        critic = sum(0.5 * ((q - targets) ** 2).mean() for q in taken)
        actor = -(torch.exp(2.0 * u).clamp(max=100.0) * logp).mean()
    near(results, vf_loss=vf_loss, critic_loss=critic, actor_loss=actor, total_loss=vf_loss + critic + actor)


def test_iqls_mean_is_squashed_when_acting_and_draws_are_around_it():
    policy = IQLConfig().debugging(seed=1).build_policy(spaces=(OBS, BOX))
    module = policy.module
    with torch.no_grad():
        module.policy_head.weight.mul_(1e3)
        obs = np.random.default_rng(0).uniform(-1, 1, (50, 3)).astype(np.float32)
        linear = module.policy_head(module.encoder({"obs": torch.from_numpy(obs)}["obs"], torch.float32))
        inputs = module.forward_inference({"obs": torch.from_numpy(obs)})["action_dist_inputs"]
    assert linear.abs().max() > 3.0
    np.testing.assert_allclose(inputs[:, :2], linear.tanh(), atol=1e-6)
    # Acting sums in another order than torch; the weights, multiplied by 1e3, enlarge its rounding on some processors.
    np.testing.assert_allclose(policy.compute_actions(obs, explore=False), 2.0 * linear.tanh(), atol=1e-4)


def test_an_iql_policy_of_version_0_2_keeps_its_mean():
    written = IQLConfig().rl_module(model_config={"hiddens": (4,)}).to_dict()
    assert written["rl_module"]["model_config"].pop("squash_mean") is True
    assert IQLConfig().update_from_dict(written).rl_module.model_config.squash_mean is False
    shortened = {"rl_module": {"model_config": {"hiddens": [4]}}}
    assert IQLConfig().update_from_dict(shortened).rl_module.model_config.squash_mean is True


@pytest.mark.parametrize(
    ("kind", "model_config", "words"),
    [
        (IQLConfig, {"squash_actions": True}, "squash_mean=True does not go with squash_actions=True"),
        (BCConfig, {"squash_mean": True, "squash_actions": True}, "does not go with squash_actions"),
    ],
)
def test_a_mean_is_not_squashed_twice(kind, model_config, words):
    with pytest.raises(ValueError, match=words):
        kind().rl_module(model_config=model_config).build_policy(spaces=(OBS, BOX))


def test_only_the_mean_of_a_gaussian_is_squashed():
    for config, space in ((BCConfig(), DISCRETE), (TD3BCConfig(), BOX)):
        with pytest.raises(ValueError, match="squash_mean=True needs a Gaussian"):
            config.rl_module(model_config={"squash_mean": True}).build_policy(spaces=(OBS, space))
    assert IQLConfig().build_policy(spaces=(OBS, DISCRETE)).module.model_config.squash_mean is False


def test_iqls_target_critics_follow_the_gradient_step_when_compiled_too():
    learner = learner_of(IQLConfig, tau=1.0)
    target = learner.registered[f"{MODULE}/target"]
    learner.optimizers.get(MODULE, "critic").flat.data.add_(1.0)
    learner.after_gradient_step()
    torch.testing.assert_close(target.flat, learner.optimizers.get(MODULE, "critic").flat.data, rtol=0, atol=0)


def gradients_by_part(learner):
    return {entry.name: entry.flat.grad.clone() for entry in learner.optimizers}


def test_each_part_of_iql_reaches_its_own_network_only():
    learner = learner_of(IQLConfig, exp_adv_max=1e-30)  # the policy's part is nothing
    learner.update_from_batch(learned_transitions(BOX))
    parts = gradients_by_part(learner)
    assert set(parts) == {"actor", "value", "critic"}
    assert parts["actor"].abs().max() < 1e-25
    assert parts["value"].abs().max() > 1e-3
    assert parts["critic"].abs().max() > 1e-3
    for beta in (0.0, 3.0):  # the weights are no way from the policy's part to the value
        other = learner_of(IQLConfig, beta=beta)
        other.update_from_batch(learned_transitions(BOX))
        found = gradients_by_part(other)
        assert found["actor"].abs().max() > 1e-3
        torch.testing.assert_close(found["value"], parts["value"], rtol=0, atol=1e-12)
        torch.testing.assert_close(found["critic"], parts["critic"], rtol=0, atol=1e-12)
    sizes = {entry.name: entry.flat.data.numel() for entry in learner.optimizers}
    assert sizes == {"actor": 32 + 18 + 2, "value": 32 + 9, "critic": 2 * (48 + 9)}


# -- TD3+BC ---


def test_td3_bc_is_td3_with_scaled_values_and_the_distance_to_the_data():
    learner, results, _, (obs, _, actions, _) = step(TD3BCConfig, alpha=2.0, policy_delay=1)
    module = learner.module[MODULE]
    with torch.no_grad():
        own = module.compute_actions({"obs": obs})
        values = values_of(module.critics, obs, own)[0][:, 0]
        distance = ((own - actions) ** 2).mean()
        actor = distance - 2.0 * values.mean() / values.abs().mean()
    near(results, bc_loss=distance, actor_loss=actor, total_loss=results["critic_loss"] + actor)
    assert learner.registered[f"{MODULE}/target"].num_steps == 1


def test_the_critics_of_td3_bc_are_those_of_td3_and_its_policy_waits():
    learner = learner_of(TD3BCConfig, tau=0.1)
    target = learner.registered[f"{MODULE}/target"].module
    before = [p.clone() for p in target.parameters()]
    results = learner.update_from_batch(learned_transitions(BOX))[MODULE]
    seen = learner.seen
    noise = (0.2 * seen["target_noise"]).clamp(-0.5, 0.5)
    with torch.no_grad():
        actions = (target.compute_actions({"obs": seen["new_obs"]}) + noise).clamp(-1, 1)
        following = torch.stack([q[:, 0] for q in values_of(target.critics, seen["new_obs"], actions)]).amin(0)
        targets = seen["rewards"] + GAMMA * goes_on(seen) * following
        taken = values_of(learner.module[MODULE].critics, seen["obs"], seen["actions"])
        near(results, critic_loss=sum(0.5 * ((q[:, 0] - targets) ** 2).mean() for q in taken))
    assert "actor_loss" not in results
    assert all(torch.equal(a, b) for a, b in zip(before, target.parameters()))
    assert "actor_loss" in learner.update_from_batch(learned_transitions(BOX))[MODULE]
    assert not all(torch.equal(a, b) for a, b in zip(before, target.parameters()))


# -- CQL ---


def sac_parts(learner, seen, backup):
    """Critic loss (the whole squared error) and policy terms of SAC, row by row, by torch's own distributions."""
    module, target = learner.module[MODULE], learner.registered[f"{MODULE}/target"].module

    def drawn(obs, noise):
        mean, log_std = module._forward({"obs": obs})["action_dist_inputs"].chunk(2, -1)
        raw = mean + log_std.exp() * noise
        base = torch.distributions.Normal(mean, log_std.exp()).log_prob(raw).sum(-1)
        return torch.tanh(raw), base - torch.log(1 - torch.tanh(raw) ** 2).sum(-1)

    alpha = float(learner.registered[f"{MODULE}/log_alpha"].exp())
    actions, logp = drawn(seen["new_obs"], seen["next_action_noise"])
    following = torch.stack([q[:, 0] for q in values_of(target, seen["new_obs"], actions)]).amin(0)
    following = following - (alpha * logp if backup else 0.0)
    targets = seen["rewards"] + GAMMA * goes_on(seen) * following
    taken = [q[:, 0] for q in values_of(module.critics, seen["obs"], seen["actions"])]
    critic = sum(((q - targets) ** 2).mean() for q in taken)
    own, logp = drawn(seen["obs"], seen["action_noise"])
    values = torch.stack([q[:, 0] for q in values_of(module.critics, seen["obs"], own)]).amin(0)
    return critic, (alpha * logp - values).mean(), taken, drawn, logp


@pytest.mark.parametrize("backup", [True, False])
def test_cql_presses_down_what_sampled_actions_promise(backup):
    learner, results, seen, _ = step(
        CQLConfig, num_actions=4, temperature=0.5, min_q_weight=3.0, deterministic_backup=not backup, alpha=0.3
    )
    module = learner.module[MODULE]
    with torch.no_grad():
        critic, actor, taken, drawn, _ = sac_parts(learner, seen, backup)
        gap = 0.0
        noise = seen["cql_noise"].reshape(ROWS, 3, 4, 2)
        for row in range(ROWS):
            obs, new_obs = seen["obs"][row].expand(4, -1), seen["new_obs"][row].expand(4, -1)
            uniform = 2 * torch.distributions.Normal(0.0, 1.0).cdf(noise[row, 0]) - 1
            here, logp_here = drawn(obs, noise[row, 1])
            after, logp_after = drawn(new_obs, noise[row, 2])
            density = torch.cat([torch.full((4,), 2 * math.log(0.5)), logp_here, logp_after])
            for k, values in enumerate(values_of(module.critics, obs.repeat(3, 1), torch.cat([uniform, here, after]))):
                soft_maximum = 0.5 * torch.logsumexp((values[:, 0] - density) / 0.5, 0)
                gap += (soft_maximum - taken[k][row]) / ROWS
    near(results, critic_loss=critic, actor_loss=actor, cql_gap=gap, total_loss=critic + actor + 3.0 * gap)


def test_cql_of_discrete_actions_sums_over_all_of_them():
    learner, results, seen, _ = step(CQLConfig, DISCRETE, min_q_weight=2.0, alpha=0.1)
    with torch.no_grad():
        critics = values_of(learner.module[MODULE].critics, seen["obs"])
        pick = (torch.arange(ROWS), seen["actions"])
        gap = sum((torch.logsumexp(values, -1) - values[pick]).mean() for values in critics)
    near(results, cql_gap=gap, total_loss=results["critic_loss"] + results["actor_loss"] + 2.0 * gap)


def test_cql_with_a_learned_weight_aims_at_the_threshold():
    learner = learner_of(CQLConfig, lagrangian=True, lagrangian_thresh=1000.0, critic_lr=1e-2, alpha=0.1)
    results = learner.update_from_batch(learned_transitions(BOX))[MODULE]
    assert results["multiplier"] == 1.0
    missing = 5.0 * results["cql_gap"] - 2 * 1000.0
    near(
        results, multiplier_loss=-missing, total_loss=results["critic_loss"] + results["actor_loss"] + missing - missing
    )
    assert float(learner.registered[f"{MODULE}/log_multiplier"].detach()) == pytest.approx(
        -1e-2, rel=1e-3
    )  # less of it


def test_the_policy_of_cql_imitates_in_the_first_steps():
    learner = learner_of(CQLConfig, bc_iters=1, alpha=0.3)
    results = learner.update_from_batch(learned_transitions(BOX))[MODULE]
    with torch.no_grad():
        _, _, _, _, logp = sac_parts(learner, learner.seen, False)
        module = learner.module[MODULE]
        dist = module.action_dist_cls.from_inputs(module._forward({"obs": learner.seen["obs"]})["action_dist_inputs"])
        near(results, actor_loss=(0.3 * logp - dist.log_prob(learner.seen["actions"])).mean())
    again = learner.update_from_batch(learned_transitions(BOX))[MODULE]
    with torch.no_grad():
        near(again, actor_loss=sac_parts(learner, learner.seen, False)[1])


# -- what they learn, and what they refuse ---

LEARN = {
    CQLConfig: {
        "lr": 3e-3,
        "actor_lr": 3e-3,
        "num_actions": 4,
        "min_q_weight": 0.2,
        "tau": 0.05,
        "target_entropy": -3.0,
    },
    IQLConfig: {"lr": 1e-2, "beta": 10.0, "tau": 0.05, "expectile": 0.8},
    TD3BCConfig: {"lr": 3e-3, "tau": 0.05, "alpha": 20.0},
}


@pytest.mark.parametrize(
    "kind, probe",
    fast_if(
        lambda kind, probe: (kind is CQLConfig) is (probe is ObservationActionProbe),
        [(kind, ObservationActionProbeContinuous) for kind in LEARN]
        + [(kind, ObservationActionProbe) for kind in (CQLConfig, IQLConfig)],
    ),
)
def test_the_best_action_is_found_in_random_data(kind, probe):
    settings = LEARN[kind]
    if probe is ObservationActionProbe and kind is CQLConfig:
        settings = {**settings, "target_entropy": 0.1}
    config = kind().environment(probe).offline_data(input_=played(probe)).training(train_batch_size=64, **settings)
    config.rl_module(model_config={"hiddens": (16,), "activation": "tanh"}).reporting(total_steps=400)
    trainer = config.evaluation(evaluation_interval=0).build_trainer()
    trainer.run()
    obs = np.array(probe.observations, np.float32)
    best = np.array([probe().best_action(row) for row in obs], np.float32)
    np.testing.assert_allclose(trainer.policy.compute_actions(obs), best, atol=0.2)


SLOW = {"tau": 0.2, "actor_lr": 3e-3}
VALUED = {
    CQLConfig: {**SLOW, "num_actions": 2, "min_q_weight": 1e-3, "deterministic_backup": True, "alpha": 1e-3},
    IQLConfig: SLOW,
    TD3BCConfig: SLOW,
}


@pytest.mark.parametrize("probe", [pytest.param(DiscountProbe, marks=pytest.mark.long), TruncationProbe])
@pytest.mark.parametrize("kind", [class_of(name) for name in OFFLINE if ALGORITHM_CASES[name].has_values])
def test_values_are_discounted_and_go_on_where_an_episode_was_truncated(kind, probe):
    class Box(probe):
        continuous = True

    config = kind().environment(Box, normalize_observations=False).offline_data(input_=played(Box, 64))
    config.training(gamma=0.5, train_batch_size=32, lr=[[0, 1e-2], [300, 1e-3]], **VALUED.get(kind, {}))
    config.rl_module(model_config={"hiddens": (16,), "activation": "tanh"}).reporting(total_steps=300)
    trainer = config.evaluation(evaluation_interval=0).build_trainer()
    trainer.run()
    obs = np.array(probe.observations, np.float32)
    with torch.no_grad():
        values = trainer.policy.module.compute_values({"obs": torch.from_numpy(obs)}).numpy()
    np.testing.assert_allclose(values, [probe().exact_value(row, 0.5) for row in obs], atol=0.1)
