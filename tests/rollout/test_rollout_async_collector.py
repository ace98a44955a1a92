"""`AsyncCollector` in this process: hooks, exploration, random actions, resets, NaN, episodes, training."""

import time
from functools import partial

import numpy as np
import pytest
from acting_tools import Acting, Exploring

from lockstep import AsyncCollector, DQNConfig, OffpolicyTrainer
from lockstep.envs import CountingEnv, WorkerVectorEnv, make_vector
from lockstep.envs.errors import EnvironmentStepError
from lockstep.replay import ReplayBuffer, VectorReplayBuffer
from lockstep.rollout import MalformedBufferError

EPISODES = ((5, "terminate"), (3, "truncate"))
ENVS = 2


@pytest.fixture
def env():
    with WorkerVectorEnv([partial(CountingEnv, EPISODES, offset=row) for row in range(ENVS)]) as vector:
        yield vector


def buffer_of(**options):
    return VectorReplayBuffer(400, ENVS, **options)


def test_hooks_are_called_with_every_arrival_and_every_episode(env):
    arrived, ended = [], []
    collector = AsyncCollector(
        Acting(),
        env,
        buffer_of(),
        on_step_hook=arrived.append,
        on_episode_done_hook=lambda *episode: ended.append(episode),
    )
    stats = collector.collect(n_step=60)
    assert sum(map(len, arrived)) == 60
    assert sum(one.reward for some in arrived for one in some) == collector.buffer.all()["rewards"].sum()
    assert [(value, length) for _, value, length in ended] == list(zip(stats.returns, stats.lens))
    assert {row for row, _, _ in ended} == {0, 1}
    assert {length for _, _, length in ended} == {5, 3}


@pytest.mark.parametrize("told", [False, True])
def test_a_policy_of_several_explores_in_training_or_if_asked(env, told):
    likeliest = AsyncCollector(Acting(), env, buffer_of())
    likeliest.collect(n_step=40)
    assert not likeliest.buffer.all()["actions"].any()
    collector = AsyncCollector(Acting() if told else Exploring(), env, buffer_of(), exploration_noise=told)
    collector.reset()
    collector.collect(n_step=80)
    assert set(np.unique(collector.buffer.all()["actions"])) == {0, 1, 2, 3}


def test_it_has_no_vector_steps(env):
    with pytest.raises(ValueError, match="AsyncCollector does not step its environments together: use collect"):
        AsyncCollector(Acting(), env, buffer_of()).collect_vector_steps(3)


class Poisoned(CountingEnv):
    """Gives a reward that is no number in one step, and an observation that is none."""

    def __init__(self, episodes, blinds=False):
        super().__init__(episodes)
        self.blinds = blinds

    def step(self, action):
        obs, reward, *rest = super().step(action)
        if self.step_number == 4:
            obs, reward = obs * (np.nan if self.blinds else 1.0), np.nan
        return obs, reward, *rest


@pytest.mark.parametrize(("blinds", "column"), [(False, "rewards"), (True, "new_obs")])
def test_async_collector_refuses_nan_in_a_new_row_unless_allowed(blinds, column):
    with WorkerVectorEnv([partial(Poisoned, EPISODES, blinds)]) as env:
        collector = AsyncCollector(Acting(), env, ReplayBuffer(50), raise_on_nan_in_buffer=False)
        assert collector.collect(n_step=9).n_collected_steps == 9
        assert collector.buffer.hasnull()
        collector.raise_on_nan_in_buffer = True
        collector.reset()
        with pytest.raises(MalformedBufferError, match=f"environment 0 .* column '{column}' at step 3"):
            collector.collect(n_step=9)
        assert len(collector.buffer) == 3


class SlowToBreak(CountingEnv):
    """Breaks in the first step that it ever makes, when the file is there."""

    def __init__(self, episodes, file):
        super().__init__(episodes)
        self.file = file

    def step(self, action):
        answer = super().step(action)
        if self.episode_number == 0 and self.step_number == 1:
            while not self.file.exists():
                time.sleep(0.001)
            raise LookupError("the wheel came off")
        return answer


@pytest.mark.parametrize("name", ["reset_env", "set_state"])
def test_an_error_in_a_pending_step_starts_new_episodes_everywhere(name, tmp_path):
    long = ((50, "terminate"),)
    with WorkerVectorEnv([partial(CountingEnv, long), partial(SlowToBreak, long, tmp_path / "file")]) as env:
        collector = AsyncCollector(Acting(), env, buffer_of())
        collector.reset()
        state = collector.get_state()
        collector.collect(n_step=3)
        assert 1 in env.in_flight
        (tmp_path / "file").touch()
        with pytest.raises(EnvironmentStepError, match="LookupError: the wheel came off"):
            collector.reset_env() if name == "reset_env" else collector.set_state(state)
        (tmp_path / "file").unlink()
        assert collector.collect(n_step=20).n_collected_steps == 20
        batch = collector.buffer.all()
        (tmp_path / "file").touch()
    np.testing.assert_array_equal(batch["new_obs"][:, 0] - batch["obs"][:, 0], 1)  # the broken step is in no row
    assert len(batch) == 23


def test_async_collector_counts_the_first_episodes_that_start():
    with make_vector(partial(CountingEnv, EPISODES), num_envs=3, mode="async") as env:
        collector = AsyncCollector(Acting(), env, VectorReplayBuffer(90, 3))
        stats = collector.collect(n_episode=4)
        assert sorted(stats.lens) == [3, 5, 5, 5]
        assert (stats.n_collected_steps, len(collector.buffer)) == (18, 18)
        assert collector.collect(n_episode=1).lens.tolist() == [5]
        assert collector.collect(n_step=5, random=True).n_collected_steps == 5


def test_async_collector_trains_from_replay_resumes_and_cannot_evaluate():
    config = DQNConfig().environment(partial(CountingEnv, EPISODES)).rl_module(model_config={"hiddens": (4,)})
    policy = config.env_runners(num_envs_per_env_runner=2).build_policy()
    with make_vector(partial(CountingEnv, EPISODES), num_envs=2, mode="async") as env:
        collector = AsyncCollector(policy, env, VectorReplayBuffer(100, 2), exploration_noise=True)
        common = {"max_epoch": 2, "batch_size": 4, "step_per_epoch": 20, "step_per_collect": 5}
        with pytest.raises(ValueError, match="test_collector is an AsyncCollector, whose runs are not repeatable"):
            OffpolicyTrainer(policy, train_collector=collector, test_collector=collector, episode_per_test=1, **common)
        info = OffpolicyTrainer(policy, train_collector=collector, update_per_step=0.2, **common).run()
        assert (info.train_step, info.gradient_step, len(collector.buffer)) == (40, 8, 40)
        state = collector.get_state()
        collector.set_state(state)
        assert collector.collect(n_step=3).n_collected_steps == 3
