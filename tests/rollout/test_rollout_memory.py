"""The recurrent state while collecting: carried on, forgotten where episodes begin, handed over with the rollout."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from runner_tools import ManyRunners

from lockstep import DQNConfig, PPOConfig, policy_within_training_step
from lockstep.data.rollout import RolloutStore
from lockstep.data.trees import leaves
from lockstep.envs import make_vector
from lockstep.envs.toys.probes import MemoryProbe
from lockstep.options.restarts import RestartLimits
from lockstep.replay import ReplayBuffer
from lockstep.rollout import Collector, EnvRunnerGroup, GroupCollector
from lockstep.state.streams import RandomStreams

MODES = {
    "own vectoriser": None,
    "SAME_STEP": AutoresetMode.SAME_STEP,
    "NEXT_STEP": AutoresetMode.NEXT_STEP,
    "NEXT_STEP with reset rows": "native",
}


class Uneven(gym.Wrapper):
    """Episodes of 3, 4, 5, ... steps; every second one is cut by a time limit."""

    def __init__(self):
        super().__init__(MemoryProbe())
        self.number, self.steps = 0, 0

    def reset(self, *, seed=None, options=None):
        self.number, self.steps = self.number + 1, 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action):
        obs, reward, _, _, info = self.env.step(action)
        self.steps += 1
        ends = self.steps >= 2 + self.number
        return obs, reward, ends and self.number % 2 == 0, ends and self.number % 2 == 1, info


class CountingPolicy:
    """Its state counts the steps since it last forgot, and sums the observations; the action is the count's parity."""

    weights_seq_no = 0
    is_exploring = False
    is_stateful = True

    def __init__(self):
        self.seen = []

    def get_initial_state(self, num_rows):
        return {"count": np.zeros((num_rows, 1)), "sum": np.zeros(num_rows)}

    def act_with_state(self, obs, noise, state):
        self.seen.append({name: leaf.copy() for name, leaf in state.items()})
        after = {"count": state["count"] + 1, "sum": state["sum"] + obs[:, 0]}
        return after["count"][:, 0].astype(np.int64) % 2, after

    def act(self, obs, noise):
        raise TypeError("a policy with memory acts by act_with_state")

    def to_env(self, actions):
        return actions

    from_env = to_env

    def check_spaces(self, observation_space, action_space):
        pass


def vector(mode, num_envs=3):
    if mode is None:
        return make_vector(Uneven, num_envs=num_envs)
    if mode == "native":
        return gym.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="vector_entry_point")
    return SyncVectorEnv([Uneven] * num_envs, autoreset_mode=mode)


def collector_of(mode, num_steps=40, policy=None):
    envs = make_vector(vector(mode)) if mode is not None else vector(mode)
    assert envs.has_invalid_rows == (mode == "native")
    store = RolloutStore(num_steps, 3, envs.observation_space, envs.action_space)
    return Collector(policy or CountingPolicy(), envs, store, streams=RandomStreams(0))


@pytest.mark.parametrize("mode", MODES)
def test_every_row_is_acted_on_with_the_state_of_its_own_episode(mode):
    collector = collector_of(MODES[mode])
    for _ in range(3):  # episodes go on from one rollout into the next
        collector.buffer.clear()
        collector.policy.seen.clear()
        collector.collect(n_step=120)
        counts = np.stack([state["count"][:, 0] for state in collector.policy.seen])
        sums = np.stack([state["sum"] for state in collector.policy.seen])
        checked = 0
        for episode in collector.buffer.episodes():
            obs = np.asarray(episode.get_observations())[:, 0]
            rows = _rows_of(collector.buffer, episode)
            assert counts[rows].tolist() == list(range(episode.t_started, episode.t))
            if episode.t_started == 0:
                np.testing.assert_allclose(sums[rows], np.concatenate([[0.0], np.cumsum(obs[:-2])]), atol=1e-5)
            checked += len(episode)
        assert checked == len(collector.buffer) > 80


def _rows_of(store, episode):
    """Index (steps, environment) of the rows that an episode is a view on."""
    first = np.asarray(episode.get_rewards())
    for b in range(store.num_envs):
        for t in range(store.size):
            if np.shares_memory(store.rewards[t, b : b + 1], first[:1]):
                return slice(t, t + len(episode)), b
    raise LookupError


@pytest.mark.parametrize("mode", MODES)
def test_the_store_knows_where_memory_was_reset_and_its_first_state(mode):
    collector = collector_of(MODES[mode])
    for number in range(2):
        collector.buffer.clear()
        collector.policy.seen.clear()
        collector.collect(n_step=120)
        data = collector.buffer.trajectories()
        counts = np.stack([state["count"][:, 0] for state in collector.policy.seen])
        assert data.starts.shape == (len(counts), 3)
        assert 120 <= (data.starts.size if data.valid is None else data.valid.sum()) < 123
        assert np.array_equal(data.starts, counts == 0)
        assert data.state_index.tolist() == [0, 1, 2]
        assert np.array_equal(data.states["count"][:, 0], counts[0])
        assert bool(counts[0].any()) == (number > 0)


@pytest.mark.parametrize("fails", [False, True])
def test_new_episodes_after_a_failed_collect_forget_everything(fails):
    collector = collector_of(None)
    collector.collect(n_step=30)

    def fail(step):
        raise KeyboardInterrupt

    if fails:
        collector.on_step_hook = fail
        with pytest.raises(KeyboardInterrupt):
            collector.collect(n_step=30)
        collector.on_step_hook = None
    else:
        collector.reset_env()  # in the middle of a rollout: a boundary
    collector.collect(n_step=30)
    data = collector.buffer.trajectories()
    assert data.starts.shape == (20, 3)
    assert data.starts[10].all()
    assert not data.starts[9].all()


def test_collecting_by_episodes_begins_with_an_empty_memory():
    collector = collector_of(None, num_steps=400)
    collector.collect(n_step=9)
    collector.buffer.clear()
    collector.policy.seen.clear()
    stats = collector.collect(n_episode=5)
    assert stats.n_collected_episodes == 5
    assert not collector.policy.seen[0]["count"].any()


def test_random_actions_are_remembered_too():
    collector = collector_of(None)
    collector.collect(n_step=6, random=True)
    collector.collect(n_step=3)
    assert collector.policy.seen[-1]["count"].max() == 2


def test_collector_without_a_buffer_remembers_as_well():
    policy = CountingPolicy()
    collector = Collector(policy, vector(None), streams=RandomStreams(0))
    collector.collect(n_episode=4)
    assert max(state["count"].max() for state in policy.seen) >= 3
    assert not any(state["count"][0, 0] > 8 for state in policy.seen)


def test_two_collectors_of_one_policy_do_not_share_their_memory():
    """Evaluation in between changes nothing: the same states, with and without."""
    runs = []
    for evaluates in (False, True):
        policy = CountingPolicy()
        train = collector_of(None, policy=policy)
        other = Collector(policy, vector(None), streams=RandomStreams(1))
        train.collect(n_step=15)
        if evaluates:
            other.collect(n_episode=2)
        policy.seen.clear()
        train.buffer.clear()
        train.collect(n_step=15)
        runs.append(np.stack([state["count"] for state in policy.seen]))
    assert np.array_equal(*runs)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_state_of_a_collector_carries_the_memory_on_bit_by_bit(kind):
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=3)
        .rl_module(model_config={"hiddens": (4,), "recurrent": kind, "recurrent_size": 4})
    )
    policy = config.build_policy()

    def made():
        collector = config.build_collector(policy)
        spaces = collector.observation_space, policy.action_space
        collector.buffer = RolloutStore(10, 3, *spaces)
        return collector

    first, second = made(), made()
    with policy_within_training_step(policy):
        first.collect(n_step=30)
        first.buffer.clear()
        state = first.get_state()
        assert any(leaf.any() for leaf in state["memory"]["state"].values())
        second.set_state(state)
        first.collect(n_step=30)
        second.collect(n_step=30)
    assert np.array_equal(first.buffer.obs, second.buffer.obs)
    assert np.array_equal(first.buffer.actions[:10], second.buffer.actions[:10])
    for name, leaf in first.buffer.state_in.items():
        assert leaf.any()
        assert np.array_equal(leaf, second.buffer.state_in[name])
    for name, leaf in first.stepper.memory.state.items():
        assert np.array_equal(leaf, second.stepper.memory.state[name])


# -- into a replay buffer, with the state before each row ---


def replay_of(mode, buffer_num=3, n_step=120):
    """What a counting policy collected into a replay buffer, all rows in time order."""
    envs = make_vector(vector(mode)) if mode is not None else vector(mode)
    buffer = ReplayBuffer(900, buffer_num=buffer_num, sequence_length=3, burn_in=2)
    collector = Collector(CountingPolicy(), envs, buffer, streams=RandomStreams(0))
    for _ in range(3):
        collector.collect(n_step=n_step)
    return buffer


@pytest.mark.parametrize("mode", MODES)
def test_a_replay_buffer_holds_the_state_before_each_row(mode):
    buffer = replay_of(MODES[mode])
    batch = buffer.to_batch()
    assert len(batch) > 300
    assert np.array_equal(batch["state_in"]["count"][:, 0], batch["t"])
    begins = np.flatnonzero(batch["t"] == 0)
    sums = np.cumsum(batch["obs"][:, 0], dtype=np.float64)
    before = sums - batch["obs"][:, 0]
    before -= np.repeat(before[begins], np.diff(np.append(begins, len(batch))))
    np.testing.assert_allclose(batch["state_in"]["sum"], before, atol=1e-4)
    drawn = buffer.sample(50)
    starts = np.cumsum(drawn["seq_lens"]) - drawn["seq_lens"]
    stored = buffer[drawn["batch_indexes"][starts]]["state_in"]["count"]
    assert np.array_equal(drawn["state_in"]["count"], stored)


def test_whole_episodes_and_random_actions_have_their_states_too():
    envs = vector(None)
    buffer = ReplayBuffer(900, buffer_num=3, sequence_length=3)
    collector = Collector(CountingPolicy(), envs, buffer, streams=RandomStreams(0), whole_episodes=True)
    collector.collect(n_step=50, random=True)
    collector.collect(n_step=50)
    batch = buffer.to_batch()
    assert np.array_equal(batch["state_in"]["count"][:, 0], batch["t"])


@pytest.mark.parametrize(
    "memory",
    [
        {"recurrent": "lstm", "recurrent_size": 4},
        {"attention": {"size": 4, "num_heads": 2, "memory": 3, "hidden_size": 4}},
    ],
    ids=["lstm", "attention"],
)
def test_m_runners_store_the_states_that_one_collector_stores(memory):
    found = []
    for num_envs in (4, 2):
        config = DQNConfig().environment(Uneven).env_runners(num_envs_per_env_runner=num_envs)
        config.rl_module(model_config={"hiddens": (4,), **memory})
        config.replay(sequence_length=4).training(epsilon=0.5)
        policy = config.build_policy()
        if num_envs == 4:
            collector = config.build_collector(policy)
        else:
            build = partial(config.build_env_runner, (policy.observation_space, policy.action_space))
            group = EnvRunnerGroup(ManyRunners(build, 2), config.env_runners, RestartLimits(10, 10, 60.0))
            collector = GroupCollector(policy, group, config.build_replay_buffer(4))
        with policy_within_training_step(policy):
            for random in (True, False, False):
                collector.collect(n_step=80, random=random)
        found.append(collector.buffer.to_batch())
        collector.close()
    for name, column in found[0].items():
        if name == "state_in":  # products of matrices of other heights may differ in the last bit
            for one, two in zip(leaves(column), leaves(found[1][name]), strict=True):
                np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_equal(found[1][name], column, err_msg=name)
