"""DQN: the loss against numbers worked out by hand and plain torch, the target network, priorities, exploration."""

import copy

import numpy as np
import pytest
import torch
from algorithm_cases import OFF_POLICY, class_of, exploring_by
from algorithm_tools import BOX, MODULE, transitions
from gymnasium import spaces
from parts import fast_if
from space_envs import SpaceEnv
from torch import nn

from lockstep import DQNConfig, SampleBatch, policy_within_training_step
from lockstep.algorithms.dqn import DQNLearner
from lockstep.modules import EpsilonGreedy
from lockstep.replay import PrioritizedVectorReplayBuffer, VectorReplayBuffer

SPACES = spaces.Discrete(3), spaces.Discrete(2)
ONLINE = np.array([[1.0, 2.0], [4.0, 3.0], [0.5, 0.0]])  # [state, action]
TARGET = np.array([[10.0, 20.0], [30.0, 40.0], [5.0, 7.0]])
GAMMA = 0.9


class WrittenOut(DQNLearner):
    """Its loss is the one of `compute_loss_for_module`, not that of the compiled kernel."""

    def masked_mean(self, values, batch):
        return super().masked_mean(values, batch)


both_forms = pytest.mark.parametrize("form", [DQNLearner, WrittenOut])


def learner_of(training=None, **model):
    """A learner whose network is the table `ONLINE` and whose target network is `TARGET`."""
    config = DQNConfig().framework(dtype="float64")
    config.training(gamma=GAMMA, lr=0.1, huber_delta=None, grad_clip=None)
    config.training(**(training or {}))
    config.rl_module(model_config={"hiddens": (), **model})
    learner = config.build_learner(spaces=SPACES)
    if not model:
        target = learner.registered[f"{MODULE}/target"].module
        for module, table in ((learner.module[MODULE], ONLINE), (target, TARGET)):
            with torch.no_grad():
                module.policy_head.weight.copy_(torch.from_numpy(table.T))
                module.policy_head.bias.zero_()
    return learner


def batch_of(**more):
    """Three steps from states 0, 1, 2: one goes on, one is truncated, one terminated."""
    return SampleBatch(
        {
            "obs": np.array([0, 1, 2]),
            "actions": np.array([0, 1, 0]),
            "rewards": np.array([1.0, 2.0, 3.0]),
            "terminateds": np.array([False, False, True]),
            "truncateds": np.array([False, True, False]),
            "new_obs": np.array([1, 2, 0]),
            **more,
        }
    )


@both_forms
@pytest.mark.parametrize(
    "training, discounts, following",
    [
        # next states 1, 2: ONLINE prefers actions 0, 0, which TARGET gives 30 and 5; the third state has ended
        ({}, None, [0.9 * 30, 0.9 * 5, 0]),
        ({"double_q": False}, None, [0.9 * 40, 0.9 * 7, 0]),  # the target network picks itself
        ({}, [0.729, 0.81, 0.9], [0.729 * 30, 0.81 * 5, 0]),  # of n steps, from the buffer
    ],
    ids=["double", "single", "n-step"],
)
def test_errors_use_the_online_network_to_pick_and_the_target_to_evaluate(form, training, discounts, following):
    batch = batch_of() if discounts is None else batch_of(discounts=np.array(discounts))
    learner = learner_of({"learner_class": form, **training})
    results, errors = learner.update_from_batch(batch)[MODULE], learner.row_errors[MODULE].numpy()
    np.testing.assert_allclose(errors, np.array([1.0, 3.0, 0.5]) - np.array([1, 2, 3]) - following)
    assert results["total_loss"] == pytest.approx(np.mean(0.5 * errors**2))
    assert results["q_mean"] == pytest.approx((1.0 + 3.0 + 0.5) / 3)
    assert results["td_error_mean"] == pytest.approx(np.abs(errors).mean())


@both_forms
def test_errors_beyond_delta_count_linearly_and_rows_by_their_weights(form):
    weights = np.array([0.5, 1.0, 0.25])
    learner = learner_of({"learner_class": form, "huber_delta": 1.0})
    results = learner.update_from_batch(batch_of(weights=weights))[MODULE]
    each = learner.row_errors[MODULE].abs().numpy() - 0.5  # all are beyond 1
    assert results["total_loss"] == pytest.approx(np.mean(weights * each))


def test_dueling_values_are_value_plus_advantages_without_their_mean():
    for shared in (False, True):
        learner = learner_of(dueling=True, vf_share_layers=shared)
        module = learner.module[MODULE]
        batch = {"obs": torch.tensor([0, 1, 2])}
        advantages = module._forward(batch)["action_dist_inputs"]
        encoder = module.value_encoder or module.encoder
        value = module.value_head(encoder(batch["obs"], torch.float64))
        expected = value + advantages - advantages.mean(-1, keepdim=True)
        values = module.forward_train(batch)["q_values"]
        torch.testing.assert_close(values, expected)
        assert torch.equal(values.argmax(-1), advantages.argmax(-1))  # acting needs the advantages only
        assert sum(p.numel() for p in module.parameters()) == (3 + 1) * 2 + (3 + 1)


def test_the_target_network_is_part_of_the_learners_state():
    one, other = learner_of({"target_update_interval": 2}), learner_of({"target_update_interval": 2})
    for _ in range(3):
        one.update_from_batch(batch_of())
    other.set_state(one.get_state())
    for learner in (one, other):
        learner.update_from_batch(batch_of())
    flats = [learner.registered[f"{MODULE}/target"].flat for learner in (one, other)]
    assert torch.equal(*flats)


# -- step for step beside the same algorithm in plain torch: autograd, `torch.optim.Adam`, deep copies ---

CLIP, LR, ROWS = 0.5, 3e-3, 16


def layers_like(module):
    """The default network as plain layers with the same numbers."""
    linears = [layer for layer in (*module.encoder.mlp, module.policy_head) if isinstance(layer, nn.Linear)]
    made = []
    for linear in linears:
        own = nn.Linear(linear.in_features, linear.out_features, dtype=torch.float64)
        own.load_state_dict(linear.state_dict())
        made += [own, nn.ReLU()]
    return nn.Sequential(*made[:-1])


def plain_losses(net, given, *, double, interval, tau):
    """What the textbook does with these batches; the network learns in place."""
    target, optimizer, losses = copy.deepcopy(net), torch.optim.Adam(net.parameters(), lr=LR, eps=1e-8), []
    for step, batch in enumerate(given, start=1):
        tensors = {name: torch.from_numpy(np.asarray(value)) for name, value in batch.items()}
        obs, new_obs, rewards = (tensors[name].double() for name in ("obs", "new_obs", "rewards"))
        with torch.no_grad():
            chosen = (net if double else target)(new_obs).argmax(1)
            following = target(new_obs)[torch.arange(ROWS), chosen]
            following = torch.where(tensors["terminateds"], 0.0, following)
            wanted = rewards + tensors.get("discounts", 0.97) * following
        taken = net(obs)[torch.arange(ROWS), tensors["actions"]]
        each = nn.functional.smooth_l1_loss(taken, wanted, reduction="none")
        loss = (each * tensors.get("weights", 1.0)).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
        if step % interval == 0:
            with torch.no_grad():
                for own, other in zip(target.parameters(), net.parameters()):
                    own.mul_(1.0 - tau).add_(tau * other)
    return losses


@pytest.mark.parametrize("weights", fast_if(bool, [False, True]), ids=["plain", "weights and n steps"])
@pytest.mark.parametrize("double, interval, tau", [(True, 5, 1.0), (False, 3, 1.0), (True, 1, 0.05)])
def test_losses_and_parameters_of_100_steps_are_those_of_plain_torch(double, interval, tau, weights):
    config = DQNConfig().framework(dtype="float64")
    config.training(gamma=0.97, lr=LR, grad_clip=CLIP, double_q=double, huber_delta=1.0)
    config.training(target_update_interval=interval, tau=tau)
    config.rl_module(model_config={"hiddens": (16, 16), "activation": "relu", "policy_gain": 1.0})
    learner = config.build_learner(spaces=(BOX, SPACES[1]))
    rng, net = np.random.default_rng(0), layers_like(learner.module[MODULE])
    more = {"weights": rng.random(ROWS), "discounts": 0.97 ** rng.integers(1, 4, ROWS)} if weights else {}
    batches = [transitions(SPACES[1], seed, ROWS, **more) for seed in range(100)]
    expected = plain_losses(net, batches, double=double, interval=interval, tau=tau)
    found = [learner.update_from_batch(batch)[MODULE]["qf_loss"] for batch in batches]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    for own, other in zip(learner.module[MODULE].parameters(), net.parameters()):
        torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-6)


# -- the policy, the buffer, chance actions ---


def policy_and_buffer(kind=VectorReplayBuffer, **training):
    config = DQNConfig().training(**training).rl_module(model_config={"hiddens": (8,)})
    policy = config.build_policy(spaces=(spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2)))
    buffer, rng = kind(400, 4, seed=1), np.random.default_rng(0)
    for _ in range(50):
        batch = {name: rng.random((4, 3), np.float32) for name in ("obs", "new_obs")}
        batch |= {"actions": rng.integers(0, 2, 4), "rewards": rng.random(4, np.float32)}
        buffer.add(batch | {"terminateds": rng.random(4) < 0.1, "truncateds": np.zeros(4, bool)})
    return policy, buffer


def test_each_gradient_step_has_a_fresh_sample_and_is_in_the_statistics():
    """Many steps in one call are the same as one call for each."""
    (one, first), (other, second) = policy_and_buffer(), policy_and_buffer()
    with policy_within_training_step(one), policy_within_training_step(other):
        stats = one.update(16, first, repeat=70)
        for _ in range(70):
            other.update(16, second)
    assert stats.gradient_steps == 70
    assert stats.metrics["qf_loss"].count == 70
    for name, weight in one.module.state_dict().items():
        assert torch.equal(weight, other.module.state_dict()[name])


def test_a_prioritised_buffer_gets_the_errors_of_each_step():
    policy, buffer = policy_and_buffer(PrioritizedVectorReplayBuffer)
    with policy_within_training_step(policy):
        policy.update(16, buffer, repeat=3)
    rows = policy.last_batch["batch_indexes"]
    errors = np.abs(policy.learner_group.learner.row_errors[MODULE].numpy())
    last = dict(zip(rows, errors))  # of a row drawn twice the last counts
    for row, error in last.items():
        assert buffer.priorities.tree[np.array([row])][0] == pytest.approx((error + 1e-6) ** 0.6, rel=1e-5)
    assert "weights" in policy.last_batch


def test_no_sample_size_is_one_step_on_everything():
    policy, buffer = policy_and_buffer()
    with policy_within_training_step(policy):
        stats = policy.update(0, buffer)
    assert stats.gradient_steps == 1
    assert sorted(policy.last_batch["batch_indexes"]) == list(range(200))


def test_what_cannot_be_learned_from_a_replay_buffer_is_refused():
    policy, buffer = policy_and_buffer()
    with pytest.raises(RuntimeError, match="outside of a training step"):
        policy.update(16, buffer)
    with policy_within_training_step(policy):
        for given, message in (
            ((-1, buffer), "sample_size=-1 is not allowed"),
            ((16, buffer, 8), "batch_size=8: a gradient step takes a whole sample of 16"),
            ((16, buffer, None, 0), "repeat=0 is not allowed"),
            ((16, VectorReplayBuffer(10, 2)), "the buffer is empty"),
        ):
            with pytest.raises(ValueError, match=message):
                policy.update(*given)


def test_epsilon_is_the_share_of_random_actions_and_follows_sampled_steps():
    policy, _ = policy_and_buffer(epsilon=[[0, 1.0], [100, 0.0]])
    obs, rng = np.random.default_rng(1).random((20_000, 3), np.float32), np.random.default_rng(2)
    best = policy.compute_actions(obs, explore=False)
    for step, share in ((0, 0.5), (50, 0.25), (100, 0.0)):
        policy.timesteps["num_env_steps_sampled_lifetime"] = step
        actions = policy.act(obs, policy.draw_noise(rng, (len(obs),)))
        assert np.mean(actions != best) == pytest.approx(share, abs=0.015)  # half of the chance actions are the best
        again = policy.act(obs, policy.draw_noise(np.random.default_rng(3), (len(obs),)))
        assert np.array_equal(again, policy.act(obs, policy.draw_noise(np.random.default_rng(3), (len(obs),))))
    with pytest.raises(ValueError, match=r"epsilon=1\.5 at step 0 is not allowed"):
        EpsilonGreedy(1.5, 2).draw_noise(rng, (1,), 0)


class RewardIsAction(SpaceEnv):
    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, float(action), *rest


@pytest.mark.parametrize("cls", [class_of(name) for name in exploring_by("epsilon") if name in OFF_POLICY])
def test_evaluation_takes_chance_actions_with_an_epsilon_of_its_own(cls):
    for epsilon, share in ((None, 0.0), (0.5, 0.25), (1.0, 0.5)):
        config = cls().environment(lambda: RewardIsAction(action_space=spaces.Discrete(2))).training(epsilon=1.0)
        config.evaluation(evaluation_duration=200, **({} if epsilon is None else {"epsilon": epsilon}))
        policy = config.build_policy()
        with torch.no_grad():
            policy.module.policy_head.weight.zero_()
            policy.module.policy_head.bias.copy_(torch.linspace(1, -1, len(policy.module.policy_head.bias)))
        assert policy.compute_single_action(np.zeros(3, np.float32)) == 0
        stats = config.build_test_collector(policy).collect(n_episode=200)
        assert stats.returns_stat.mean / 5 == pytest.approx(share, abs=0.05)  # of five steps, half of chance's are 1
        assert config.epsilon == 1.0  # that of training
