"""`env_runners(exploration=)` in runs: who may, the same bits everywhere and after a resume, learning, refusals."""

import itertools

import gymnasium as gym
import numpy as np
import pytest
import torch
from algorithm_cases import NAMES
from gymnasium import spaces
from parts import one_in

from lockstep import AsyncCollector, Collector, RolloutStore, get_config
from lockstep.data.trees import leaves
from lockstep.modules import AddedNoise, EpsilonGreedy, GaussianNoise, OrnsteinUhlenbeckNoise, StateDependentNoise
from lockstep.rollout import rollout_of
from lockstep.state.streams import RandomStreams
from lockstep.trainer import restore_trainer

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
KINDS = ("epsilon", "normal", "ou", "gsde", "noisy")
REMEMBERING = [("td3", "ou"), ("sac", "ou"), ("sac", "gsde"), ("ppo", "gsde"), ("a2c", "gsde")]


class Drift(gym.Env):
    """A point is pushed by the action and slides on; five to nine steps, terminated and truncated by turns."""

    state_attributes = ("place", "t", "last")

    def __init__(self):
        self.observation_space, self.action_space = spaces.Box(-9.0, 9.0, (3,), np.float32), BOX
        self.place, self.t, self.last = np.zeros(2, np.float32), 0, 5

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.t, self.last = np.zeros(2, np.float32), 0, int(self.np_random.integers(5, 10))
        return self._observe(), {}

    def step(self, action):
        self.place, self.t = (0.9 * self.place + 0.1 * np.asarray(action)).astype(np.float32), self.t + 1
        done = self.t == self.last
        return self._observe(), -float(np.abs(self.place - 0.3).sum()), done and self.last % 2 == 0, done, {}

    def _observe(self):
        return np.array([*self.place, self.t / 10], np.float32)


def config_of(algorithm, kind=None, env=Drift, **options):
    config = get_config(algorithm).environment(env).rl_module(model_config={"hiddens": (8,)})
    config.env_runners(num_envs_per_env_runner=4, exploration=kind, exploration_config=options)
    config.evaluation(evaluation_interval=0).debugging(seed=3)
    if config.is_off_policy:
        config.training(train_batch_size=16).replay(capacity=500, learning_starts=16, update_per_step=0.25)
    else:
        config.training(train_batch_size=64)
    return config


# -- who may ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", NAMES)
def test_what_an_algorithm_has_no_use_for_is_refused_by_name(algorithm, kind):
    config = get_config(algorithm).environment(Drift).env_runners(exploration=kind)
    if kind in config.explorations:
        config.validate()
        return
    with pytest.raises(ValueError, match=rf"env_runners.exploration='{kind}' is not allowed for {algorithm}"):
        config.validate()


@pytest.mark.parametrize(
    ("algorithm", "kind", "options", "words"),
    [
        ("sac", "ou", {"sigm": 0.1}, r"exploration_config\['sigm'\].*'sigma'"),
        ("sac", "ou", {"mean": 0.1}, r"exploration_config\['mean'\]=0.1.*list"),
        ("td3", "normal", {"weights": [-1.0]}, r"exploration_config\['weights'\].*at least 0"),
        ("ppo", "gsde", {"sample_freq": 0}, "sample_freq"),
        ("dqn", None, {"epsilon": 0.1}, "exploration_config.*needs env_runners.exploration"),
        ("dqn", "epsilon", {"epsilon": 2.0}, "at most 1"),
    ],
)
def test_options_are_checked_when_the_configuration_is(algorithm, kind, options, words):
    with pytest.raises(ValueError, match=words):
        config_of(algorithm, kind, **options).validate()


@pytest.mark.parametrize(("algorithm", "kind"), [("sac", "normal"), ("sac", "gsde"), ("ppo", "gsde")])
def test_noise_of_actions_needs_a_box(algorithm, kind):
    with pytest.raises(ValueError, match=f"{algorithm}: env_runners.exploration='{kind}' needs a Box.*Discrete"):
        config_of(algorithm, kind, env="CartPole-v1").build_learner()


def test_several_agents_missing_heads_and_async_collectors_are_refused():
    several = config_of("ppo", "gsde").multi_agent(policies=["a", "b"], policy_mapping_fn=lambda agent, episode: agent)
    with pytest.raises(ValueError, match="several agents"):
        several.validate()
    policy = config_of("td3", "ou").build_policy()
    with pytest.raises(ValueError, match="from step to step"):
        AsyncCollector(policy, Drift)


def test_the_options_arrive():
    def exploration(algorithm, kind, env=Drift, **options):
        return config_of(algorithm, kind, env, **options).build_policy().acting["default_policy"].exploration

    assert exploration("dqn", "epsilon", "CartPole-v1", epsilon=0.25).epsilon(0) == 0.25
    assert type(exploration("dqn", None, "CartPole-v1")) is EpsilonGreedy
    assert exploration("td3", "normal").scale(0) == 0.1
    assert exploration("td3", "normal", scale=0.3).scale(0) == 0.3
    ou = exploration("td3", "ou", sigma=0.4, theta=0.3, dt=0.5)
    assert (type(ou), ou.sigma(0), ou.theta, ou.dt) == (OrnsteinUhlenbeckNoise, 0.4, 0.3, 0.5)
    added = exploration("sac", "normal", scale=0.3)
    assert (type(added), type(added.noise), added.noise.scale(0)) == (AddedNoise, GaussianNoise, 0.3)
    assert type(exploration("sac", "ou").noise) is OrnsteinUhlenbeckNoise
    gsde = exploration("ppo", "gsde", sample_freq=None, log_std_init=-1.5)
    assert (type(gsde), gsde.sample_freq, gsde.shape) == (StateDependentNoise, None, (8, 2))
    assert exploration("ppo", None) is exploration("sac", None) is None


# -- the same bits ---


@pytest.mark.parametrize(("algorithm", "kind"), REMEMBERING)
def test_runners_with_a_part_of_the_environments_equal_one_collector(algorithm, kind):
    config = config_of(algorithm, kind)
    policy = config.build_policy()
    found = []
    for number in (1, 2):
        config.env_runners(num_envs_per_env_runner=4 // number)
        spaces_ = policy.observation_space, policy.action_space
        runners = [config.build_env_runner(spaces_, index=i, num_runners=number) for i in range(number)]
        fragments = []
        for runner in runners:
            runner.policy.set_weights(policy.acting_weights())
            runner.sample(32 // number)
            fragments.append(runner.sample(160 // number))
        found.append(rollout_of(fragments, *spaces_).trajectories())
    np.testing.assert_array_equal(found[0].actions, found[1].actions)
    np.testing.assert_array_equal(found[0].rewards, found[1].rewards)
    assert np.unique(found[0].actions).size > 100


@pytest.mark.parametrize(("algorithm", "kind"), one_in(3, REMEMBERING))
def test_a_run_goes_on_bit_for_bit(tmp_path, algorithm, kind):
    def trainer(total):
        options = {"sample_freq": 5} if kind == "gsde" else {}
        return config_of(algorithm, kind, **options).reporting(total_steps=total, steps_per_epoch=64).build_trainer()

    half, rest, whole = trainer(128), trainer(256), trainer(256)
    half.run()
    restore_trainer(rest, half.save_to_path(tmp_path / "half"))
    rest.run()
    whole.run()
    np.testing.assert_array_equal(rest.policy.acting_weights().flat, whole.policy.acting_weights().flat)
    states = [run.collector.get_state()["exploring"] for run in (rest, whole)]
    for mine, theirs in zip(leaves(states[0]), leaves(states[1])):
        np.testing.assert_array_equal(mine, theirs)


def actions_of(config, steps=24):
    policy = config.build_policy()
    store = RolloutStore(steps, 2, policy.observation_space, policy.action_space)
    collector = Collector(policy, config.make_envs(2), store, exploration_noise=True, seed=5)
    collector.collect(2 * steps)
    return policy, collector, store.trajectories()


def test_noise_goes_on_within_an_episode_and_begins_anew_with_the_next():
    policy, collector, rows = actions_of(config_of("td3", "ou", sigma=0.05))
    means = policy.act(rows.flat_obs(), None).reshape(24, 2, 2)
    noise = rows.actions - means  # sigma is small: nothing was limited
    drawn = policy.acting["default_policy"].draw_noise(RandomStreams(5).numpy("exploration"), (24, 2))
    expected = np.zeros((2, 2))
    begins = np.ones(2, bool)
    for t in range(24):
        expected[begins] = 0.0
        expected = expected * 0.85 + drawn[t]
        np.testing.assert_allclose(noise[t], expected, atol=1e-6)
        begins = rows.dones[t]
    assert rows.dones.sum() >= 4
    np.testing.assert_allclose(collector.stepper.exploring.state["noise"], expected, atol=1e-6)


def test_gsde_actions_are_smooth_and_their_density_is_that_of_the_loss():
    policy, _, rows = actions_of(config_of("ppo", "gsde", sample_freq=None))
    module = policy.module
    obs = torch.from_numpy(rows.flat_obs())
    with torch.no_grad():
        inputs, features = (
            module.forward_inference({"obs": obs})["action_dist_inputs"],
            module.encoder(obs, torch.float32),
        )
    noise = torch.from_numpy(rows.actions).reshape(-1, 2) - inputs[:, :2]
    features, noise, dones = (x.reshape(24, 2, -1) for x in (features, noise, torch.from_numpy(rows.dones)))
    ends = [0, *(torch.nonzero(dones[:, 0, 0])[:, 0] + 1).tolist()]
    for start, stop in itertools.pairwise(ends):  # one matrix explains each whole episode
        seen, wanted = features[start:stop, 0], noise[start:stop, 0]
        solved = torch.linalg.lstsq(seen.double(), wanted.double(), driver="gelsd").solution
        torch.testing.assert_close(seen.double() @ solved, wanted.double(), atol=1e-4, rtol=0.0)
    actions = rows.actions.reshape(-1, 2)
    expected = (
        torch.distributions.Normal(inputs[:, :2], inputs[:, 2:].exp()).log_prob(torch.from_numpy(actions)).sum(-1)
    )
    np.testing.assert_allclose(policy.action_logp(rows.flat_obs(), actions), expected, rtol=1e-4)
    matrices = np.random.default_rng(0).standard_normal((len(actions), 8, 2)).astype(np.float32)
    taken, logp = policy.act_with_logp(rows.flat_obs(), matrices)
    np.testing.assert_allclose(logp, policy.action_logp(rows.flat_obs(), taken))


def test_what_does_not_use_it_has_no_memory_around_its_loop():
    for algorithm, kind in (("td3", None), ("td3", "normal"), ("sac", None), ("ppo", None)):
        _, collector, _ = actions_of(config_of(algorithm, kind))
        assert collector.stepper.exploring is None
        collector.buffer.clear()
        assert "exploring" not in collector.get_state()


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.faults)])
def test_sigma_learns_in_ppo_and_sac(compiled):
    for algorithm in ("ppo", "sac"):
        config = config_of(algorithm, "gsde").reporting(total_steps=128)
        if compiled and algorithm == "ppo":
            config.framework(compile=True, compile_after=0)
        trainer = config.build_trainer()
        before = trainer.policy.module.policy_head.log_std.detach().clone()
        trainer.run()
        assert (trainer.policy.module.policy_head.log_std != before).float().mean() > 0.2


# -- a task in which plain noise stays where it is ---


class Valley(gym.Env):
    """MountainCarContinuous with an easier slope: only pushing the same way for long climbs out of the valley."""

    def __init__(self):
        self.observation_space, self.action_space = spaces.Box(-2.0, 2.0, (2,), np.float32), spaces.Box(-1, 1, (1,))
        self.place, self.speed, self.t = 0.0, 0.0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.speed, self.t = float(self.np_random.uniform(-0.1, 0.1)), 0.0, 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.speed = 0.9 * self.speed + 0.1 * float(action[0]) - 0.05 * np.sin(self.place)
        self.place, self.t = float(np.clip(self.place + 0.3 * self.speed, -2, 2)), self.t + 1
        out = self.place >= 0.8
        obs = np.array([self.place, self.speed], np.float32)
        return obs, 10.0 * out - 0.01 * float(action[0]) ** 2, out, self.t >= 100, {}


@pytest.mark.parametrize(
    ("kind", "options"), [("ou", {"sigma": 0.3, "theta": 0.05}), ("gsde", {"sample_freq": None, "log_std_init": -0.5})]
)
def test_noise_that_goes_on_leaves_a_valley(kind, options):
    def furthest(kind, **options):
        config = config_of("sac", kind, env=Valley, **options).rl_module(model_config={"log_std_init": -2.0})
        policy = config.build_policy()
        store = RolloutStore(200, 8, policy.observation_space, policy.action_space)
        Collector(policy, config.make_envs(8), store, exploration_noise=True, seed=1).collect(1_600)
        return np.abs(store.trajectories().obs[..., 0]).max()

    assert furthest(kind, **options) > 1.5 * furthest(None)
