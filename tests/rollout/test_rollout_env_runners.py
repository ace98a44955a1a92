"""Env runners and groups of them: fragments, their order, weights, asynchronous samples, runners that are lost."""

from dataclasses import replace
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from runner_tools import ManyRunners, config_of, sample_when_ready

from lockstep import DQNConfig, OffpolicyTrainer, PPOConfig, RolloutStore
from lockstep.algorithms import get_config
from lockstep.data.trees import leaves
from lockstep.envs import make_vector
from lockstep.envs.errors import EnvironmentStepError
from lockstep.envs.toys.counting import CountingEnv
from lockstep.options.restarts import RestartLimits
from lockstep.replay import VectorReplayBuffer
from lockstep.rollout import EnvRunner, EnvRunnerError, EnvRunnerGroup, GroupCollector, rollout_of
from lockstep.rollout.fragments import UnstoredFragment, append_fragments
from lockstep.state.streams import RandomStreams

COLUMNS = ("obs", "actions", "rewards", "terminateds", "cuts", "dones", "bootstrap_index", "bootstrap_obs", "valid")
MANY = RestartLimits(10, 10, 60.0)


def group_of(config, num_runners=2, limits=MANY, with_logp=False):
    build = partial(config.build_env_runner, config.find_spaces(), with_logp)
    return EnvRunnerGroup(ManyRunners(build, num_runners), config.sections["env_runners"], limits)


def store_of(group, fragments):
    return rollout_of(fragments, group.envs.stored_observation_space, group.envs.action_space)


def assert_same(one, other):
    for name in (*COLUMNS, "starts", "states"):
        for mine, theirs in zip(leaves(getattr(one, name)), leaves(getattr(other, name)), strict=True):
            np.testing.assert_array_equal(mine, theirs, err_msg=name)


def collected(config, collects, **how):
    """The rollout after several collects of one collector in this process, which keeps only the last."""
    collector = config.build_collector(config.build_policy())
    spaces_ = collector.observation_space, collector.env.action_space
    collector.buffer = RolloutStore(8, collector.num_envs, *spaces_)
    for _ in range(collects):
        collector.buffer.clear()
        stats = collector.collect(**how)
    return collector.buffer, stats


@pytest.mark.parametrize(("env", "num_runners"), [("CartPole-v1", 1), ("CartPole-v1", 4), ("Pendulum-v1", 2)])
def test_m_runners_of_k_environments_give_the_rows_of_one_collector_of_all(env, num_runners):
    expected, stats = collected(config_of(env, 4), 3, n_step=120)
    config = config_of(env, 4 // num_runners)
    with group_of(config, num_runners) as group:
        policy = config.build_policy()
        collector = GroupCollector(policy, group, RolloutStore(30, 4, policy.observation_space, policy.action_space))
        assert collector.env.max_episode_steps == gym.spec(env).max_episode_steps
        for _ in range(3):
            collector.buffer.clear()
            own = collector.collect(n_step=120)
        assert (own.returns.tolist(), own.n_collected_steps) == (stats.returns.tolist(), 120)
        assert own.lens.tolist() == stats.lens.tolist()
        assert_same(collector.buffer.trajectories(), expected.trajectories())
        ids = [(e.id_, e.t_started, len(e)) for e in collector.buffer.episodes()]
        assert ids == [(e.id_, e.t_started, len(e)) for e in expected.episodes()]


def test_random_actions_and_memory_do_not_depend_on_the_number_of_runners():
    recurrent = {"rl_module": {"model_config": {"hiddens": (4,), "recurrent": "lstm", "recurrent_size": 4}}}
    for how, sections in (({"random": True}, {}), ({}, recurrent)):
        expected, _ = collected(config_of(num_envs=4, **sections), 2, n_step=80, **how)
        config = config_of(num_envs=2, **sections)
        with group_of(config) as group:
            group.set_weights(config.build_policy().acting_weights())
            group.sample(80, **how)
            assert_same(store_of(group, group.sample(80, **how)).trajectories(), expected.trajectories())


def test_a_fragment_gives_its_columns_and_its_episodes():
    config = config_of(num_envs=2)
    runner = config.build_env_runner_group()._backend.runner
    assert type(runner) is EnvRunner
    fragment = runner.sample(num_timesteps=60)
    assert (fragment.num_steps, fragment.num_envs, len(fragment)) == (30, 2, 60)
    about = runner.describe()
    episodes = fragment.episodes(about.observation_space, about.action_space)
    assert sum(len(episode) for episode in episodes) == 60
    assert fragment.begins.all()
    assert not runner.sample(num_timesteps=60).begins.any()
    assert runner.collector.collect_step == 120
    runner.close()


@pytest.mark.parametrize("renew", [False, True])
def test_a_runner_without_storage_reports_the_end_of_each_episode(renew):
    """The same as for the second of two runners that stores its steps, beyond the 128 vector steps of one run too."""
    config = config_of(num_envs=2)
    build = partial(config.build_env_runner, config.find_spaces(), index=1, num_runners=2)
    storing, other = build(), build(evaluates=True)
    weights = config.build_policy().acting_weights()
    for runner in (storing, other):
        runner.collector.reseed(RandomStreams(5))
        runner.apply(EnvRunner.reset, weights=weights)
    expected, found = (runner.sample(num_timesteps=300, renew=renew) for runner in (storing, other))
    assert type(found) is UnstoredFragment
    assert found.runner == 1
    steps, envs = np.divmod(expected.final_index, 2)
    assert found.ended_in_step.tolist() == steps.tolist()
    assert found.ended_in_env.tolist() == (2 + envs).tolist()
    assert max(found.ended_in_step) > 128
    assert found.stats.lens.tolist() == expected.stats.lens.tolist()
    assert len(found) == len(expected) == 300
    storing.close()
    other.close()


def test_episodes_are_shared_out_and_runners_without_a_share_are_left_out():
    config = config_of(num_envs=2)
    with group_of(config, 3) as group:
        policy = config.build_policy()
        assert [f.stats.n_collected_episodes for f in group.sample(num_episodes=5)] == [2, 2, 1]
        store = RolloutStore(4, 6, policy.observation_space, policy.action_space)
        stats = GroupCollector(policy, group, store).collect(n_episode=2)
        assert (stats.n_collected_episodes, len(store)) == (2, sum(stats.lens))
        assert sorted(len(e) for e in store.episodes() if len(e)) == sorted(stats.lens)
        np.testing.assert_array_equal(store.valid[:, 4:][: store.size], False)


@pytest.mark.parametrize(
    "given", [{}, {"num_timesteps": 0}, {"num_episodes": True}, {"num_timesteps": 4, "num_episodes": 1}]
)
def test_a_sample_takes_exactly_one_amount(given):
    with (
        group_of(config_of()) as group,
        pytest.raises(ValueError, match=r"give exactly one of num_timesteps and num_episodes|must be a whole number"),
    ):
        group.sample(**given)


def test_weights_are_one_flat_buffer_put_once_and_fetched_with_a_request():
    config = config_of(rl_module={"model_config": {"hiddens": (160, 160)}})
    with group_of(config) as group:
        policy = config.build_policy()
        weights = policy.acting_weights()
        needed = policy.module.get_state(inference_only=True)
        assert weights.num_bytes == sum(array.nbytes for array in needed.values()) > 98304
        group.set_weights(weights)
        assert (group._backend.puts, group.get_stats()["weights_seq_no"]) == (1, weights.version)
        group.sample(4)
        for runner in group._backend.runners:
            np.testing.assert_array_equal(runner.policy.module.get_flat_weights(), weights.flat)
        assert group._backend.puts == 1
        with pytest.raises(ValueError, match="they are of another network"):
            policy.module.set_flat_weights(weights.flat[4:])


def test_statistics_of_observations_come_with_the_weights():
    config = config_of("Pendulum-v1", environment={"normalize_observations": True})
    with group_of(config) as group:
        policy = config.build_policy()
        policy.connectors.obs.update(np.full((3, 3), 7.0, np.float32))
        group.set_weights(policy.acting_weights())
        group.sample(4)
        for runner in group._backend.runners:
            assert runner.policy.connectors.obs.connectors[0].moments[0].mean[0] == 7.0


def test_asynchronous_samples_have_their_version_and_log_probabilities():
    config = config_of()
    with group_of(config, with_logp=True) as group:
        policy = config.build_policy()
        group.set_weights(policy.acting_weights())
        first = sample_when_ready(group, 8, 2)
        assert [(f.runner, f.weights_seq_no, len(f)) for f in first] == [(0, 0, 8), (0, 0, 8), (1, 0, 8), (1, 0, 8)]
        with policy.within_training_step():
            policy.update(0, store_of(group, first))
        assert group.num_in_flight == 0
        group.set_weights(policy.acting_weights())
        second = sample_when_ready(group, 8, 2)
        assert {f.weights_seq_no for f in second} == {policy.weights_seq_no}
        store = store_of(group, [first[0], second[0]])
        versions = [0, 0, policy.weights_seq_no, policy.weights_seq_no]
        np.testing.assert_array_equal(store.sampler_versions().reshape(4, 4)[0], versions)
        rows = store.size * store.num_envs
        now = policy.action_logp(store.obs[:4].reshape(rows, -1), store.actions[:4].reshape(rows)).reshape(4, 4)
        np.testing.assert_allclose(store.action_logp[:, 2:], now[:, 2:], atol=1e-6)
        assert np.abs(store.action_logp[:, :2] - now[:, :2]).max() > 1e-6
        with pytest.raises(KeyError, match="boom"):
            group.foreach_env_runner(lambda runner: {}["boom"])
        assert group.drain() == []


def scaled(weights, factor, version):
    flat = (weights.flat.view(np.float32) * np.float32(factor)).view(np.uint8)
    return replace(weights, flat=flat, version=version)


def samples_of(env, lose, **options):
    """Return the rollouts of six samples whose weights differ; `lose(group, number)` is called before each."""
    config = config_of(env, 2, rl_module={"model_config": options})
    with group_of(config) as group:
        weights, rollouts = config.build_policy().acting_weights(), []
        for number in range(6):
            group.set_weights(scaled(weights, 1 - 0.1 * number, number))
            lose(group, number)
            rollouts.append(store_of(group, group.sample(28)))
        return rollouts, group.get_stats()


@pytest.mark.parametrize(
    ("env", "options"), [("CartPole-v1", {}), ("Pendulum-v1", {}), ("CartPole-v1", {"recurrent": "lstm"})]
)
def test_the_successor_of_a_lost_runner_goes_on_to_the_last_bit(env, options):
    expected, _ = samples_of(env, lambda group, number: None, **options)
    found, stats = samples_of(env, lambda group, number: group._backend.lost.add(number % 2), **options)
    for mine, theirs in zip(found, expected, strict=True):
        assert_same(mine.trajectories(), theirs.trajectories())
        assert [(e.id_, e.t_started) for e in mine.episodes()] == [(e.id_, e.t_started) for e in theirs.episodes()]
    assert (stats["num_restarts"], stats["num_lost_requests"]) == (6, 6)


def test_requests_of_a_lost_runner_are_made_again_with_the_weights_of_then():
    def waiting(lose):
        config = config_of()
        with group_of(config) as group:
            weights = config.build_policy().acting_weights()
            for number in range(3):
                group.set_weights(scaled(weights, 1 - 0.3 * number, number))
                group.ask(1, 32)
            if lose:
                group._backend.lost.add(1)
            fragments = group.drain()
            assert [fragment.weights_seq_no for fragment in fragments] == [0, 1, 2]
            return store_of(group, fragments)

    assert_same(waiting(True).trajectories(), waiting(False).trajectories())


def forgetful():
    """Return an environment that cannot tell its state."""
    return gym.wrappers.RecordEpisodeStatistics(CountingEnv(((50, "terminate"),)))


def test_environments_without_state_do_not_affect_the_others():
    config = config_of(forgetful, 2)
    with group_of(config) as group:
        group.set_weights(config.build_policy().acting_weights())
        before = group.sample(40)
        store = store_of(group, before)
        group._backend.lost.add(1)
        fragments = group.sample(40)
        assert [f.begins.all() for f in fragments] == [False, True]
        assert [f.t_started.tolist() for f in fragments] == [[10, 10], [0, 0]]
        both = store_of(group, before)  # rows before the lost runner are cut off from those after it
        append_fragments(fragments, both, by_runner=True)
        lengths = sorted((len(e), e.is_terminated, e.is_truncated) for e in both.episodes())
        assert lengths == [(10, False, False)] * 4 + [(20, False, False)] * 2
        assert both.trajectories().cuts[9].tolist() == [False, False, True, True]
        store.clear()
        append_fragments(fragments, store, by_runner=True)
        assert [(e.id_, e.t_started) for e in store.episodes()] == [("4", 10), ("5", 10), ("8", 0), ("9", 0)]
        assert group.get_stats() | {"weights_seq_no": 0} == {
            "num_env_runners": 2,
            "num_restarts": 1,
            "num_in_flight": 0,
            "num_lost_requests": 1,
            "weights_seq_no": 0,
        }
        assert group.foreach_env_runner(lambda runner: runner.collector.collect_step) == [40, 20]


def test_a_runner_whose_successor_is_lost_as_well_begins_anew():
    """What it was asked for may be what ends its process."""
    config = config_of(partial(CountingEnv, ((50, "terminate"),)), 2)
    with group_of(config) as group:
        group.sample(40)
        group._backend.lost.add(1)
        group._backend.replace = partial(lose_once_more, group._backend)
        fragments = group.sample(40)
        assert [f.t_started.tolist() for f in fragments] == [[10, 10], [0, 0]]
        assert (group.num_restarts, [runner.generation for runner in group._runners]) == (2, [0, 1])
        group._backend.lost.add(1)
        assert [f.t_started.tolist() for f in group.sample(40)] == [[20, 20], [10, 10]]


def lose_once_more(backend, index, generation):
    ManyRunners.replace(backend, index, generation)
    del backend.replace
    backend.lost.add(index)


def test_a_hanging_runner_is_replaced_after_sample_timeout_s():
    config = config_of(num_envs=1, env_runners={"sample_timeout_s": 0.05})
    with group_of(config) as group:
        group._backend.hanging.add(1)
        assert [len(f) for f in group.sample(8)] == [4, 4]
        group._backend.hanging.add(0)
        found = []
        while {fragment.runner for fragment in found} != {0, 1}:
            found += sample_when_ready(group, 4)
        assert group.num_restarts == 2


def test_without_restarts_left_the_error_says_so():
    for limits, words in ((RestartLimits(0), "0 restarts in this run, at most 0"), (RestartLimits(9, 1), "last 60 s")):
        words = rf"env runner 1 of 2 was lost \(lost on purpose\).*{words}"
        with group_of(config_of(), limits=limits) as group, pytest.raises(EnvRunnerError, match=words):
            for _ in range(2):
                group._backend.lost.add(1)
                group.sample(8)


class Raising(CountingEnv):
    """Raises in its tenth step."""

    count = 0

    def step(self, action):
        type(self).count += 1
        if type(self).count == 10:
            raise ArithmeticError("a broken environment")
        return super().step(action)


def test_an_environment_error_arrives_and_the_next_sample_starts_over():
    Raising.count = 0
    with group_of(config_of(partial(Raising, ((50, "terminate"),)), 1)) as group:
        with pytest.raises(EnvironmentStepError, match="ArithmeticError: a broken environment") as caught:
            group.sample(40)
        assert caught.value.__notes__[0] == "in env runner 0 of 2"
        fragments = group.sample(8)
        assert [f.begins.all() for f in fragments] == [True, True]


def test_the_state_of_a_group_goes_on_exactly():
    config = config_of(num_envs=2)
    with group_of(config) as group, group_of(config) as other:
        group.sample(40)
        state = group.get_state()
        other.set_state(state)
        assert_same(store_of(group, group.sample(40)).trajectories(), store_of(other, other.sample(40)).trajectories())
    with group_of(config_of(num_envs=1), 4) as bigger:
        bigger.set_state(state)
        assert [f.begins.all() for f in bigger.sample(8)] == [True] * 4


def test_a_group_collector_fills_a_replay_buffer_as_a_collector_does():
    config = DQNConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=2).debugging(seed=5)
    policy = config.build_policy()
    with group_of(config) as group:
        collector = GroupCollector(policy, group, VectorReplayBuffer(400, 4))
        other = config.copy().env_runners(num_envs_per_env_runner=4).build_collector(policy)
        for one in (collector, other):
            one.collect(n_step=100, random=True)
            one.collect(n_step=60)
        for name, column in other.buffer.all().items():
            np.testing.assert_array_equal(collector.buffer.all()[name], column, err_msg=name)


def test_a_seed_of_a_trainer_that_does_not_reach_env_runners_is_refused():
    config = DQNConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=2)
    policy = config.build_policy()
    amounts = {"max_epoch": 1, "batch_size": 4, "step_per_epoch": 8, "step_per_collect": 8}
    with group_of(config) as group:
        collector = GroupCollector(policy, group, VectorReplayBuffer(400, 4))
        with pytest.raises(ValueError, match=r"seed=3 does not reach the env runners of train_collector.*debugging"):
            OffpolicyTrainer(policy, train_collector=collector, seed=3, **amounts)


def test_episodes_cut_by_a_short_fragment_bootstrap_from_their_true_next():
    policy = PPOConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=2).build_policy()
    runners = [
        EnvRunner(policy, make_vector("CartPole-v1", num_envs=2, mode="vector"), index=i, num_runners=2)
        for i in range(2)
    ]
    found = 0
    for _ in range(6):  # rows that only reset count for nothing, so that some take one vector step more
        fragments = [runner.sample(100) for runner in runners]
        rollout = rollout_of(fragments, policy.observation_space, policy.action_space).trajectories()
        last = dict(zip(rollout.bootstrap_index.tolist(), rollout.bootstrap_obs))
        longest = max(fragment.num_steps for fragment in fragments)
        for i, fragment in enumerate(fragments):
            t = fragment.num_steps - 1
            for b in fragment.still_open if t + 1 < longest else ():
                assert rollout.cuts[t, 2 * i + b]
                np.testing.assert_array_equal(last[t * 4 + 2 * i + b], fragment.obs[-1, b])
                found += 1
    for runner in runners:
        runner.close()
    assert found


@pytest.mark.parametrize("algorithm", ["td3", "dqn"])
def test_replay_is_filled_while_an_asynchronous_update_runs(algorithm):
    env = "CartPole-v1" if algorithm == "dqn" else "Pendulum-v1"
    config = get_config(algorithm).environment(env).replay(learning_starts=0, capacity=500)
    policy = config.rl_module(model_config={"hiddens": (8,)}).build_policy()
    collector = config.build_collector(policy)
    with policy.within_training_step():
        collector.collect(n_step=64, random=True)
        batch = collector.buffer.sample(64)
        policy.learner_group.update_from_batch(batch, async_update=True, num_epochs=40, minibatch_size=8)
        assert policy.has_update_in_flight
        collector.collect(n_step=16)
        policy.learner_group.drain()
    assert len(collector.buffer) == 80
    collector.close()
