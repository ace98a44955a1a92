"""Env runners in real Ray actors sample what one collector in this process samples."""

import os
import signal
import threading
import time
from functools import partial

import numpy as np
import pytest
from cluster_parts import gone

from lockstep import PPOConfig, RolloutStore
from lockstep.envs.toys.counting import CountingEnv
from lockstep.rollout import EnvRunnerError, rollout_of

ray = pytest.importorskip("ray")


def config_of(num_env_runners, num_envs, env="CartPole-v1", **runners):
    return (
        PPOConfig()
        .environment(env)
        .training(train_batch_size=64, minibatch_size=32)
        .rl_module(model_config={"hiddens": (8,)})
        .env_runners(
            num_env_runners=num_env_runners, num_envs_per_env_runner=num_envs, num_cpus_per_env_runner=0.5, **runners
        )
        .debugging(seed=3)
    )


@pytest.fixture(scope="module")
def two(cluster):
    with config_of(2, 2).build_env_runner_group() as group:
        yield group


def test_two_remote_runners_give_the_rows_of_one_collector(two):
    config = config_of(0, 4)
    policy = config.build_policy()
    collector = config.build_collector(policy)
    collector.buffer = RolloutStore(20, 4, policy.observation_space, policy.action_space)
    two.set_weights(policy.acting_weights())
    for _ in range(3):
        collector.buffer.clear()
        collector.collect(80)
        fragments = two.sample(80)
    store = rollout_of(fragments, policy.observation_space, policy.action_space)
    for name in ("obs", "actions", "rewards", "terminateds", "cuts", "bootstrap_index", "bootstrap_obs"):
        mine, theirs = getattr(store.trajectories(), name), getattr(collector.buffer.trajectories(), name)
        np.testing.assert_array_equal(mine, theirs, err_msg=name)
    collector.close()


def test_requests_stay_pending_and_large_weights_use_the_object_store(two):
    config = config_of(0, 4)
    policy = config.build_policy()
    found = []
    while len(found) < 6:
        for index in range(2):
            for _ in range(2 - two.num_asked(index)):
                two.ask(index, 8)
        found += two.ready(20.0)
    found += two.drain()
    assert two.num_in_flight == 0
    assert {(fragment.runner, len(fragment)) for fragment in found} == {(0, 8), (1, 8)}
    weights = policy.acting_weights()
    two.set_weights(weights)
    assert two.foreach_env_runner(lambda runner: runner.policy.weights_seq_no) == [weights.version] * 2
    with pytest.raises(ValueError, match="of another network"):
        two.set_weights(type(weights)(9, np.zeros(100_000, np.uint8)))
        two.sample(8)
    two.set_weights(weights)
    state = two.get_state()
    first = two.sample(8)
    two.set_state(state)
    np.testing.assert_array_equal(two.sample(8)[1].obs, first[1].obs)


class Slow(CountingEnv):
    """Takes its time, so that a kill comes in the middle of a sample; hangs where a file says so."""

    hang_file = ""

    def step(self, action):
        time.sleep(0.01)
        while self.hang_file and os.path.exists(self.hang_file):
            time.sleep(0.05)
        return super().step(action)


def make_hanging(path):
    env = Slow(((1000, "terminate"),))
    env.hang_file = path
    return env


def test_a_standby_takes_the_place_of_a_killed_runner(cluster):
    with config_of(1, 2).fault_tolerance(num_standby_processes=1).build_env_runner_group() as group:
        (standby,) = group._backend._processes._standby
        process, _ = ray.get(standby.location.remote())
        os.kill(group.process_ids()[0], signal.SIGKILL)
        assert sum(len(fragment.rewards) for fragment in group.sample(20)) >= 10
        assert group.process_ids() == [process]


@pytest.mark.faults
def test_the_successor_of_a_killed_runner_goes_on_in_the_same_sample(cluster):
    config = config_of(2, 1, partial(Slow, ((1000, "terminate"),))).fault_tolerance(max_restarts_in_window=5)
    with config.build_env_runner_group() as group:
        group.sample(20)
        for kill in range(2):
            killer = threading.Timer(0.3, os.kill, (group.process_ids()[1], signal.SIGKILL))
            killer.start()
            fragments = group.sample(160)
            killer.join()
            assert [f.t_started.tolist() for f in fragments] == [[10 + 80 * kill]] * 2
            assert not any(f.begins.any() for f in fragments)
            assert [len(f) for f in fragments] == [80, 80]
        assert group.num_restarts == 2
        left = group.process_ids()
    assert gone(left)


@pytest.mark.faults
def test_a_hanging_runner_is_replaced_or_named_if_restarts_are_off(cluster, tmp_path):
    hang = tmp_path / "hang"
    config = config_of(1, 1, partial(make_hanging, str(hang)), sample_timeout_s=10.0)
    with config.fault_tolerance(max_env_runner_restarts=1).build_env_runner_group() as group:
        group.sample(4)
        hang.touch()
        threading.Timer(0.8, hang.unlink).start()
        os.kill(group.process_ids()[0], signal.SIGSTOP)
        assert group.sample(4)[0].t_started.tolist() == [4]
        os.kill(group.process_ids()[0], signal.SIGKILL)
        words = r"env runner 0 of 1 was lost .* is not replaced: 1 restarts in this run, at most 1"
        with pytest.raises(EnvRunnerError, match=words):
            group.sample(4)


def test_more_runners_than_the_cluster_has_room_for_are_refused(cluster, monkeypatch):
    monkeypatch.setattr("lockstep.cluster.processes.RESERVE_TIMEOUT_S", 0.5)
    with pytest.raises(EnvRunnerError, match=r"no room for 2 env runners with {'CPU': 20.0} each"):
        config_of(2, 1).env_runners(num_cpus_per_env_runner=20.0).build_env_runner_group()


def callback_class():
    """A class that other processes can be sent."""
    from lockstep.trainer import Callback

    class Measuring(Callback):
        def on_episode_step(self, episode, env_index):
            self.metrics.log_value("place", episode.get_observations(-1)[0], reduce="ema")

        def on_episode_end(self, episode, env_index):
            self.metrics.log_value("ended", 1, reduce="lifetime_sum")
            self.metrics.log_value("return", episode.get_return())
            if self.metrics.peek("ended") == 20:
                raise LookupError("enough", 20)

    return Measuring


@pytest.mark.long
def test_callbacks_in_remote_runners_log_equally_and_raise_whole_errors(cluster):
    measuring, reports = callback_class(), []
    for num_runners, num_envs in ((0, 4), (2, 2)):
        config = config_of(num_runners, num_envs).callbacks(measuring)
        policy = config.build_policy()
        collector = config.build_collector(policy)
        if num_runners == 0:
            collector.set_callbacks([measuring()])
        collector.buffer = RolloutStore(20, 4, policy.observation_space, policy.action_space)
        found = []
        for _ in range(3):
            found.append(dict(collector.collect(80).metrics))
            collector.buffer.clear()
        reports.append(found)
        with pytest.raises(LookupError) as raised:
            for _ in range(100):
                collector.collect(80)
                collector.buffer.clear()
        assert raised.value.args == ("enough", 20)
        assert any("in Measuring.on_episode_end of environment" in note for note in raised.value.__notes__)
        collector.close()
    assert reports[0] == reports[1]
    assert len(reports[0][-1]) == 3
