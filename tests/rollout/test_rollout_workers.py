"""Workers that die or hang are started again and lose their own unfinished episode only; `AsyncCollector`."""

import os
import signal
import time
import traceback
from functools import partial
from multiprocessing import connection

import numpy as np
import pytest
from acting_tools import Acting

from lockstep import A2CConfig, AsyncCollector, Collector, RolloutStore
from lockstep.data.columns import Columns
from lockstep.envs import CountingEnv, RestartLimits, WorkerVectorEnv, make_vector
from lockstep.envs.errors import EnvironmentStepError, EnvironmentTimeoutError
from lockstep.replay import VectorReplayBuffer

EPISODES = ((5, "terminate"), (3, "truncate"))
BAD = 1


class Breaking(CountingEnv):
    """Breaks once (`how`) at its `at`-th step, of all its lives; a file remembers that it did.

    `until`: number of steps after which it waits until the file `marker` is there.
    """

    def __init__(self, how, at, marker, offset, until=None):
        super().__init__(EPISODES, offset=offset)
        self.how, self.at, self.marker, self.until, self.steps = how, at, marker, until, 0
        self.breaking = f"{marker}.breaking"
        if how and os.path.exists(self.breaking):  # the one before this may have been killed before it wrote the marker
            open(marker, "w").close()

    def step(self, action):
        self.steps += 1
        while self.steps == self.until and not os.path.exists(self.marker):
            time.sleep(0.001)
        if self.how and self.steps == self.at and (self.how == "always" or not os.path.exists(self.breaking)):
            open(self.breaking, "w").close()  # before the end of the channel, at which this process may be killed
            if self.how in ("die", "always"):
                os.closerange(3, 1024)  # whoever waits for the marker finds this end of the channel closed
            open(self.marker, "w").close()
            while self.how == "hang":
                time.sleep(1)
            if self.how == "raise":
                raise LookupError("the wheel came off")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class WorkersWithoutClock(WorkerVectorEnv):
    """Workers of which `BAD` has had its `step_timeout` when it has written the marker, and the others never.

    So which row is late does not depend on how busy the machine is.
    """

    marker = None

    def _receive(self, row, deadline):
        waits = row == BAD and self.marker is not None
        while waits and not connection.wait([self._channels[row]], 0.01):
            self._end_time_of_bad()
        return super()._receive(row, None)

    def _rows_to_receive(self):
        rows = super()._rows_to_receive()
        if self.marker is not None and BAD in self.in_flight and self.marker.exists():
            return [BAD, *(row for row in rows if row != BAD)]
        return rows

    def _end_time_of_bad(self):
        if self.marker.exists():
            self.marker = None  # once
            raise TimeoutError


def vector_of(folder, how="die", at=7, num_envs=3, until=None, **options):
    """Return workers of which row `BAD` breaks. One that hangs is noticed at once, whatever `step_timeout` is."""
    marker = folder / "marker"
    makers = [
        partial(Breaking, how if row == BAD else "", at, str(marker), row, None if row == BAD else until)
        for row in range(num_envs)
    ]
    vector = WorkersWithoutClock(makers, step_timeout=600.0 if how == "hang" else None, **options)
    vector.marker = marker if how == "hang" else None
    return vector


def check_transitions(obs, next_obs, rewards, terminateds):
    """Each row is a step of one episode: the counter goes on by one, the reward says which step it was."""
    assert np.array_equal(next_obs[:, 0], obs[:, 0] + 1)
    assert np.array_equal(next_obs[:, 1], obs[:, 1])
    assert np.array_equal(rewards, 10 * next_obs[:, 0])
    assert not (terminateds & (next_obs[:, 0] < 3)).any()


@pytest.mark.parametrize("how", ["die", "hang"])
def test_a_restarted_worker_loses_only_its_own_unfinished_episode(how, tmp_path):
    env = vector_of(tmp_path, how)
    collector = Collector(Acting(), env)
    collector.buffer = RolloutStore(10, 3, env.observation_space, env.action_space)
    what = "did not answer within step_timeout=600.0 s" if how == "hang" else "ended without an answer .*exit code -9"
    with env, pytest.warns(RuntimeWarning, match=f"environment {BAD} {what}.*started again .1 of 10"):
        stats = collector.collect(n_step=36)
    # row 1: 3 steps and a truncation, then 3 of 5 when it breaks at its 7th; then new episodes of 5, 3, ...
    # the row in which it was started again is no step: a 13th vector step makes up for it
    assert (stats.n_collected_steps, stats.env_restarts, env.num_restarts) == (38, 1, 1)
    others = [5, 3, 5, 5, 3, 5]  # ended of rows 0 and 2 in 13 steps each
    assert sorted(stats.lens) == sorted([3, 3, *others])
    batch = collector.buffer.trajectories()
    assert not batch.valid[6, BAD]
    assert batch.valid.sum() == 38
    assert batch.cuts[5, BAD]  # bootstrapped from what it saw last
    k = list(batch.bootstrap_index).index(5 * 3 + BAD)
    assert batch.bootstrap_obs[k].tolist() == [3.0, 1.0]
    assert stats.to_dict()["env_restarts"] == 1
    for episode in collector.buffer.episodes():
        obs = np.asarray(episode.get_observations())
        assert np.array_equal(np.diff(obs[:, 0]), np.ones(len(obs) - 1))


def test_a_lost_episode_is_not_glued_to_the_next_in_a_replay_buffer(tmp_path):
    env = vector_of(tmp_path)
    buffer = VectorReplayBuffer(90, 3, n_step=3, gamma=1.0)
    collector = Collector(Acting(), env, buffer)
    with env, pytest.warns(RuntimeWarning, match="started again"):
        restarts = [collector.collect(n_step=3).env_restarts for _ in range(12)]
    assert restarts == [0] * 6 + [1] + [0] * 5  # each collect counts its own
    assert len(buffer) == 38  # the collect with the restart took one more vector step
    batch = buffer[buffer.permutation()]
    first, last = batch["obs"], batch[Columns.NEXT_OBS]
    assert np.array_equal(first[:, 1], last[:, 1])  # three steps never reach into another episode


def test_a_lost_episode_is_not_counted_and_another_replaces_it(tmp_path):
    env = vector_of(tmp_path, at=2)
    collector = Collector(Acting(), env)
    with env, pytest.warns(RuntimeWarning, match="started again"):
        stats = collector.collect(n_episode=3)
    assert (stats.n_collected_episodes, len(stats.lens)) == (3, 3)
    assert stats.returns.tolist() == [float(sum(10 * k for k in range(1, n + 1))) for n in stats.lens]


def test_a_worker_that_is_started_again_begins_another_episode_than_it_had():
    def before_and_after():
        with make_vector("CartPole-v1", num_envs=1, mode="async") as env:
            first = env.reset([5]).tolist()
            os.kill(env._processes[0].pid, signal.SIGKILL)
            with pytest.warns(RuntimeWarning, match="started again"):
                return first, env.step(np.zeros(1, np.int64)).obs.tolist()

    first, other = before_and_after()
    assert other != first
    assert before_and_after() == (first, other)  # its seed follows from the one it had


@pytest.mark.parametrize(
    ("limits", "told", "words"),
    [
        ({"restarts": RestartLimits(in_run=2, in_window=9)}, "2 of 2", "2 restarts in this run, at most 2 are allowed"),
        ({}, "1 of 10", "1 restarts in the last 60 s, at most 1 are allowed"),
    ],
    ids=["given", "default"],
)
def test_the_limits_of_restarts_are_kept_and_told(tmp_path, limits, told, words):
    env = vector_of(tmp_path, "always", at=2, **limits)
    collector = Collector(Acting(), env)
    limit = f"was not started again: {words}. All workers were ended"
    with pytest.warns(RuntimeWarning, match=told), pytest.raises(EnvironmentStepError, match=limit) as caught:
        collector.collect(n_step=30)
    assert (caught.value.env_index, int(caught.value.action)) == (BAD, 0)
    with pytest.raises(EnvironmentStepError, match="build the vector again"):
        collector.collect(n_step=3)
    assert not any(process.is_alive() for process in env._processes)


def test_the_limits_of_a_configuration_hold_for_its_worker_processes():
    config = A2CConfig().environment("CartPole-v1").rl_module(model_config={"hiddens": (4,)})
    config.env_runners(num_envs_per_env_runner=1, vectorize_mode="async").fault_tolerance(restart_failed_envs=False)
    collector = config.build_collector(config.build_policy())
    with collector.env as env:
        assert env.restarts.limits == RestartLimits(in_run=0)
        os.kill(env._processes[0].pid, signal.SIGKILL)
        with pytest.raises(EnvironmentStepError, match="0 restarts in this run, at most 0 are allowed"):
            collector.collect(n_step=1)
    with pytest.raises(ValueError, match="restarts applies to mode='async' only, got mode='sync'"):
        make_vector("CartPole-v1", mode="sync", restarts=RestartLimits())


@pytest.mark.parametrize("value", [0, 3, False])
def test_a_number_in_place_of_restart_limits_is_refused(value):
    with pytest.raises(ValueError, match=f"restarts={value} is not allowed; it must be a lockstep.envs.RestartLimits"):
        make_vector(CountingEnv, num_envs=1, mode="async", restarts=value)


def test_a_hang_beyond_the_limits_is_a_timeout_error(tmp_path):
    makers = [partial(Breaking, "hang", 1, str(tmp_path / "marker"), 0)]
    env = WorkerVectorEnv(makers, restarts=RestartLimits(in_run=0))
    env.reset([0])
    env.step_timeout = 0.05
    with pytest.raises(EnvironmentTimeoutError, match=r"environment 0 did not answer within step_timeout=0\.05 s"):
        env.step(np.zeros(1, np.int64))


def test_an_exception_has_traceback_index_and_action_and_no_restart(tmp_path):
    env = vector_of(tmp_path, "raise")
    with env:
        collector = Collector(Acting(), env)
        with pytest.raises(EnvironmentStepError, match="LookupError: the wheel came off") as caught:
            collector.collect(n_step=36)
        assert (caught.value.env_index, int(caught.value.action), env.num_restarts) == (BAD, 0, 0)
        assert "test_rollout_workers.py" in "".join(traceback.format_exception(caught.value))
        assert collector.collect(n_step=3).n_collected_steps == 3  # new episodes


def test_workers_exchange_state_with_environments_in_one_process():
    spawned, plain = (make_vector("CartPole-v1", num_envs=2, mode=mode) for mode in ("async", "sync"))
    with spawned:
        first = [vector.reset([1, 2]).copy() for vector in (spawned, plain)]
        assert np.array_equal(*first)
        for vector in (spawned, plain):
            vector.step(np.array([0, 1]))
        state = plain.get_state()
        assert spawned.get_state()["obs"].tolist() == state["obs"].tolist()
        obs = [vector.step(np.array([1, 1])).obs.copy() for vector in (spawned, plain)]
        assert np.array_equal(*obs)
        spawned.set_state(state)
        assert np.array_equal(spawned.step(np.array([1, 1])).obs, obs[0])
        assert spawned.render() is None


# -- AsyncCollector ---


def test_async_collector_waits_for_no_slow_environment_and_counts_exactly(tmp_path):
    marker = tmp_path / "marker"
    makers = [partial(Breaking, "", 0, str(marker), row, 3 if row == 2 else None) for row in range(3)]
    env = WorkerVectorEnv(makers)
    buffer = VectorReplayBuffer(600, 3)
    with env:
        collector = AsyncCollector(Acting(), env, buffer)
        stats = [collector.collect(n_step=n) for n in (1, 7, 50)]
        counts = np.bincount(buffer.permutation() % 3, minlength=3)  # rows of sub-buffers take turns
        assert counts[2] == 2  # it is still in its third step
        marker.touch()
        stats.append(collector.collect(n_step=100))
        assert [one.n_collected_steps for one in stats] == [1, 7, 50, 100]
        assert len(buffer) == collector.collect_step == 158
        batch = buffer[buffer.permutation()]
        check_transitions(batch["obs"], batch[Columns.NEXT_OBS], batch["rewards"], batch["terminateds"])
        lens = [n for one in stats for n in one.lens]
        assert set(lens) == {5, 3}
        assert sum(len(one.returns) for one in stats) == collector.collect_episode
        assert all(
            ret == sum(10 * k for k in range(1, n + 1)) for one in stats for ret, n in zip(one.returns, one.lens)
        )


@pytest.mark.parametrize("how", ["die", "hang"])
def test_async_collector_restarts_workers_without_gluing_episodes(how, tmp_path):
    env = vector_of(tmp_path, how, at=3, until=20)  # the others are not done before
    buffer = VectorReplayBuffer(900, 3, n_step=3, gamma=0.5)
    with env, pytest.warns(RuntimeWarning, match="started again"):
        stats = AsyncCollector(Acting(), env, buffer).collect(n_step=200)
    assert (stats.n_collected_steps, stats.env_restarts, len(buffer)) == (200, 1, 200)
    batch = buffer[buffer.permutation()]
    first, last = batch["obs"], batch[Columns.NEXT_OBS]
    assert np.array_equal(first[:, 1], last[:, 1])
    np.testing.assert_array_equal(batch["discounts"], 0.5 ** (last[:, 0] - first[:, 0]))  # none goes back to a start
    assert set(zip(stats.lens, stats.returns)) == {(5, 150.0), (3, 60.0)}
