"""An environment that writes into what it is given changes nothing that is stored; what a hook is given stays."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv, VectorEnv

from lockstep import MultiAgentCollector, PPOConfig, RolloutStore
from lockstep.connectors import ObsPipeline, PreviousActions
from lockstep.data.rollout import EpisodeStore
from lockstep.envs import WorkerVectorEnv, make_vector
from lockstep.envs.multi_agent import record_episode
from lockstep.envs.sb3_vec_env import VecEnvBoundary
from lockstep.envs.tensor import TensorVecEnv
from lockstep.rollout import Collector, EnvironmentCallback, TensorCollector
from lockstep_sb3.common.vec_env import DummyVecEnv

OBS = spaces.Box(-100.0, 100.0, (2,), np.float32)
PUSH = spaces.Box(-5.0, 5.0, (2,), np.float32)
PARTS = spaces.Tuple((PUSH, spaces.Discrete(2)))
WRITTEN = 77.0
LENGTH = 3


class Scribbling(gym.Env):
    """Rewards the sum of the action; writes over the action, and over what it told before."""

    observation_space, action_space = OBS, PUSH

    def __init__(self, action_space=PUSH):
        self.action_space = action_space
        self._told = {"time": np.zeros(1), "parts": [{"time": np.zeros(1)}]}

    def _info(self):
        self._told["time"][:] = self._told["parts"][0]["time"][:] = self.t
        return self._told

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), self._info()

    def step(self, action):
        pushed = action[0] if isinstance(action, tuple) else action
        reward = float(pushed.sum())
        pushed[:] = WRITTEN
        self.t += 1
        return np.full(2, self.t, np.float32), reward, False, self.t == LENGTH, self._info()


class ScribblingVector(VectorEnv):
    """A native vector, which gets the numbers of all rows in one array."""

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs=2):
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = OBS, spaces.Discrete(3)
        self.observation_space = gym.vector.utils.batch_space(OBS, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self._obs, self._rewards = np.zeros((num_envs, 2), np.float32), np.zeros(num_envs)

    def reset(self, *, seed=None, options=None):
        self._obs[:] = 0.0
        return self._obs, {}

    def step(self, actions):
        self._rewards[:] = actions
        self._obs += 1.0
        actions[:] = 2
        no = np.zeros(self.num_envs, bool)
        return self._obs, self._rewards, no, no.copy(), {}


class ScribblingTensors(TensorVecEnv):
    """The same on tensors."""

    def __init__(self, action_space=PUSH, num_envs=2):
        self.num_envs, self.device = num_envs, torch.device("cpu")
        self.single_observation_space, self.single_action_space = OBS, action_space
        self.max_episode_length, self.gives_final_obs = None, False
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.int64)

    episode_length_buf = None

    def reset(self, seed=None):
        return self.get_observations()

    def get_observations(self):
        return torch.zeros(self.num_envs, 2)

    def step(self, actions):
        rewards, no = actions.reshape(self.num_envs, -1).sum(-1).float(), torch.zeros(self.num_envs, dtype=torch.bool)
        actions.fill_(WRITTEN)
        return self.get_observations(), rewards, no, {"time_outs": no}

    def get_state(self):
        return None

    def set_state(self, state):
        raise ValueError("no state")


class Acting:
    """Takes actions by chance, which the environment gets as they are."""

    weights_seq_no, is_exploring = 0, True

    def __init__(self, space):
        self.space = space

    def act(self, obs, noise):
        return noise

    def draw_noise(self, rng, leading_shape):
        if isinstance(self.space, spaces.Discrete):
            return rng.integers(0, 2, leading_shape)
        return rng.normal(size=(*leading_shape, 2)).astype(np.float32)

    def to_env(self, actions):
        return (actions, np.zeros(len(actions), np.int64)) if isinstance(self.space, spaces.Tuple) else actions

    def from_env(self, actions):
        return actions

    def check_spaces(self, observation_space, action_space):
        return None


BACKENDS = {
    "light": lambda: make_vector(Scribbling, num_envs=2),
    "parts": lambda: make_vector(lambda: Scribbling(PARTS), num_envs=2),
    "gymnasium": lambda: make_vector(SyncVectorEnv([Scribbling] * 2, autoreset_mode="SameStep")),
    "native": lambda: make_vector(ScribblingVector()),
    "workers": lambda: WorkerVectorEnv([Scribbling] * 2),
    "vec_env": lambda: VecEnvBoundary(DummyVecEnv([Scribbling] * 2)),
    "tensors": lambda: make_vector(ScribblingTensors()),
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_environment_that_modifies_its_action_leaves_the_stored_one(backend):
    with BACKENDS[backend]() as boundary:
        policy = Acting(boundary.action_space)
        if backend in ("light", "gymnasium"):  # what is remembered of the action is the action, too
            policy.recorded = ObsPipeline([PreviousActions(PUSH)], OBS)
        collector = Collector(policy, boundary, seed=1)
        is_discrete = isinstance(boundary.action_space, spaces.Discrete)
        store = RolloutStore(12, 2, collector.observation_space, spaces.Discrete(3) if is_discrete else PUSH)
        collector.buffer = store
        collector.collect(n_step=24)
        actions = store.actions[:12]
        np.testing.assert_allclose(actions if is_discrete else actions.sum(-1), store.rewards[:12], rtol=1e-5)
        if hasattr(policy, "recorded"):
            followed = (np.arange(12) % LENGTH != 0)[1:]
            before = store.obs["previous_actions"][1:12]
            np.testing.assert_array_equal(before[followed], actions[:11][followed])


def test_a_collector_on_tensors_stores_the_actions_as_they_were_chosen():
    three = spaces.Discrete(3)
    config = PPOConfig().environment(observation_space=OBS, action_space=three)
    policy = config.rl_module(model_config={"hiddens": (4,)}).build_policy()
    collector = TensorCollector(policy, make_vector(ScribblingTensors(three)), 6, exploration_noise=True, seed=1)
    collector.collect(n_step=12)
    assert collector.buffer.actions[:6].tolist() == collector.buffer.rewards[:6].tolist()


class ScribblingPair:
    """Two agents in RLlib's form; each one's reward is the sum of its action."""

    possible_agents = ("a", "b")
    observation_spaces, action_spaces = dict.fromkeys("ab", OBS), dict.fromkeys("ab", PUSH)

    def __init__(self):
        self._told = {agent: {"time": np.zeros(1)} for agent in "ab"}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self._seen()

    def _seen(self):
        for info in self._told.values():
            info["time"][:] = self.t
        return {agent: np.full(2, self.t, np.float32) for agent in "ab"}, self._told

    def step(self, actions):
        rewards = {agent: float(action.sum()) for agent, action in actions.items()}
        for action in actions.values():
            action[:] = WRITTEN
        self.t += 1
        obs, infos = self._seen()
        return obs, rewards, {"__all__": self.t == LENGTH}, {"__all__": False}, infos


class Reading(EnvironmentCallback):
    """Keeps episodes with their infos, and writes into what it reads."""

    needs_infos = True

    def __init__(self):
        self.episodes = []

    def on_episode_end(self, episode, env_index):
        self.episodes.append(episode)
        seen = episode.get_observations(-1)
        for each in seen.values() if isinstance(seen, dict) else [seen]:
            each[:] = WRITTEN


def test_agents_that_modify_their_actions_do_not_change_stored_ones():
    config = PPOConfig().environment(ScribblingPair).rl_module(model_config={"hiddens": (4,)})
    config.multi_agent(policies=["one"], policy_mapping_fn={"a": "one", "b": "one"})
    policy, reading = config.build_policy(), Reading()
    collector = MultiAgentCollector(policy, ScribblingPair, EpisodeStore(), exploration_noise=True, seed=1)
    collector.set_callbacks([reading])
    collector.collect(n_step=9)
    part = policy.acting["one"]
    for piece in collector.buffer.episodes():
        for single in piece.agent_episodes.values():
            taken = part.to_env(single.get_actions())
            np.testing.assert_allclose(taken.sum(-1), single.get_rewards(), rtol=1e-5)
            np.testing.assert_array_equal(single.get_observations()[:, 0], range(LENGTH + 1))
    for episode in reading.episodes:
        for single in episode.agent_episodes.values():
            np.testing.assert_allclose(single.get_actions().sum(-1), single.get_rewards(), rtol=1e-5)
            assert [info["time"].tolist() for info in single.get_infos()] == [[t] for t in range(LENGTH + 1)]
    recorded = record_episode(ScribblingPair(), lambda seen: {agent: np.ones(2, np.float32) for agent in seen})
    assert all((single.get_actions() == 1.0).all() for single in recorded.agent_episodes.values())


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_hook_is_given_is_not_written_over_by_the_next_step(backend):
    with BACKENDS[backend]() as boundary:
        kept, seen = [], []

        def hook(step):
            kept.append(step)
            parts = (step.obs, step.rewards, step.terminateds, step.truncateds)
            seen.append([np.array(part) for part in parts])

        Collector(Acting(boundary.action_space), boundary, on_step_hook=hook, seed=1).collect(n_step=8)
    assert len(kept) == 4
    for step, before in zip(kept, seen):
        for part, was in zip((step.obs, step.rewards, step.terminateds, step.truncateds), before, strict=True):
            np.testing.assert_array_equal(part, was)


@pytest.mark.parametrize("backend", ["light", "gymnasium", "workers", "vec_env"])
def test_infos_of_an_episode_stay_as_they_were_told(backend):
    with BACKENDS[backend]() as boundary:
        collector, reading = Collector(Acting(PUSH), boundary, seed=1), Reading()
        collector.set_callbacks([reading])
        collector.collect(n_step=12)
    assert len(reading.episodes) == 4
    first = 1 if backend == "vec_env" else 0  # which has no infos of a reset
    for episode in reading.episodes:
        told = episode.get_infos()[first:]
        assert [float(info["time"][0]) for info in told] == list(range(first, LENGTH + 1))
        if backend != "gymnasium":  # whose vector has no lists
            assert [float(info["parts"][0]["time"][0]) for info in told] == list(range(first, LENGTH + 1))
