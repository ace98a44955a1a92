"""Values that a space cannot hold are refused at every boundary; all other values arrive unchanged."""

import re
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from lockstep import DQNConfig, PPOConfig
from lockstep.envs import check_environment, make_vector
from lockstep.envs.multi_agent import record_episode

BYTES = spaces.Box(0, 255, (4,), np.uint8)
UNIT = spaces.Box(-1, 1, (2,), np.float32)
ACTIONS = spaces.Discrete(2)


class Given(gym.Env):
    """Gives one observation at its reset and another one in each step; an episode has five steps."""

    action_space = ACTIONS

    def __init__(self, space, first, later, reward=1.0):
        self.observation_space, self.first, self.later, self.reward = space, first, later, reward
        self.t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.first, {}

    def step(self, action):
        self.t += 1
        return self.later, self.reward, False, self.t >= 5, {}


class NativeVector(VectorEnv):
    """Two environments in one, whose observations are of whatever dtype the single ones give."""

    num_envs = 2
    metadata = {"autoreset_mode": AutoresetMode.DISABLED}

    def __init__(self, make):
        self.envs = [make(), make()]
        self.single_observation_space, self.single_action_space = self.envs[0].observation_space, ACTIONS

    def joined(self, rows):
        first = rows[0]
        if isinstance(first, dict):
            return {key: np.stack([np.asarray(row[key]) for row in rows]) for key in first}
        return np.stack([np.asarray(row) for row in rows])

    def reset(self, *, seed=None, options=None):
        return self.joined([env.reset()[0] for env in self.envs]), {}

    def step(self, actions):
        obs, rewards, terminated, truncated, _ = zip(*(env.step(0) for env in self.envs))
        return self.joined(obs), np.array(rewards), np.array(terminated), np.array(truncated), {}


class PeerVector(NativeVector):
    """The same with the interface of Stable-Baselines3's `VecEnv`."""

    step_async = step_wait = None

    def __init__(self, make):
        super().__init__(make)
        self.observation_space, self.action_space = self.single_observation_space, ACTIONS

    def reset(self):
        return super().reset()[0]

    def step(self, actions):
        obs, rewards, terminated, truncated, _ = super().step(actions)
        return obs, rewards, terminated | truncated, [{"terminal_observation": env.later} for env in self.envs]


def peer_vector(make):
    """Return a vector that is not a gymnasium `VectorEnv`."""
    inner = PeerVector(make)

    class Peer:
        num_envs, observation_space, action_space = 2, inner.observation_space, ACTIONS
        step_async = step_wait = None
        reset, step = inner.reset, inner.step

        def close(self):
            pass

    return make_vector(Peer())


class Agents:
    """One agent of the environment, in the form of RLlib's `MultiAgentEnv`."""

    def __init__(self, make):
        self.env, self.possible_agents = make(), ["a"]
        self.observation_spaces, self.action_spaces = {"a": self.env.observation_space}, {"a": ACTIONS}

    def reset(self, *, seed=None, options=None):
        return {"a": self.env.reset()[0]}, {}

    def step(self, actions):
        obs, reward, terminated, truncated, _ = self.env.step(0)
        return {"a": obs}, {"a": reward}, {"__all__": terminated}, {"__all__": truncated}, {}


class Parallel(Agents):
    """The same in the form of PettingZoo's `ParallelEnv`."""

    def __init__(self, make):
        super().__init__(make)
        self.agents = ["a"]
        spaces_of = self.observation_spaces
        self.observation_space, self.action_space = spaces_of.get, self.action_spaces.get
        del self.observation_spaces, self.action_spaces

    def step(self, actions):
        obs, reward, terminated, truncated, _ = self.env.step(0)
        self.agents = [] if truncated else ["a"]
        return {"a": obs}, {"a": reward}, {"a": terminated}, {"a": truncated}, {"a": {}}


def play_vector(boundary):
    """Play six steps; return the observations after the first."""
    try:
        boundary.reset([0, 1])
        seen = None
        for _ in range(6):
            result = boundary.step(np.zeros(2, np.int64))
            seen = result.obs if seen is None else seen
        return seen
    finally:
        boundary.close()


def play_agents(env):
    """Play an episode; return the observation after the first step, as one of two rows."""
    episode = record_episode(env, lambda observations: dict.fromkeys(observations, 0))
    obs = episode.agent_episodes["a"].get_observations(1)
    return {key: np.stack([part] * 2) for key, part in obs.items()} if isinstance(obs, dict) else np.stack([obs] * 2)


BACK_ENDS = {
    "in this process": lambda make: play_vector(make_vector(make, num_envs=2, mode="sync")),
    "workers": lambda make: play_vector(make_vector(make, num_envs=2, mode="async")),
    "gymnasium's vector": lambda make: play_vector(make_vector(SyncVectorEnv([make] * 2))),
    "native vector": lambda make: play_vector(make_vector(NativeVector(make))),
    "vector of a peer": lambda make: play_vector(peer_vector(make)),
    "dicts by agent": lambda make: play_agents(Agents(make)),
    "parallel agents": lambda make: play_agents(Parallel(make)),
}
REFUSED = {
    "fractions for bytes": (BYTES, np.zeros(4, np.uint8), np.full(4, 0.7, np.float32), "observation[0] is 0.69"),
    "300 for a byte": (BYTES, np.zeros(4, np.uint8), np.array([0, 300, 0, 0]), "observation[1] is 300"),
    "-1 for a byte": (BYTES, np.zeros(4, np.uint8), np.full(4, -1, np.int64), "observation[0] is -1"),
    "200 for an int8": (
        spaces.Box(-128, 127, (4,), np.int8),
        np.zeros(4, np.int8),
        np.full(4, 200, np.int64),
        "observation[0] is 200",
    ),
    "an infinite float32": (UNIT, np.zeros(2, np.float32), np.array([0.0, 1e300]), "observation[1] is 1e+300"),
    "2.7 for a choice": (spaces.MultiDiscrete([5, 5]), np.zeros(2, np.int64), np.full(2, 2.7), "observation[0] is 2.7"),
    "in a Dict": (
        spaces.Dict(a=BYTES),
        {"a": np.zeros(4, np.uint8)},
        {"a": np.full(4, 0.5)},
        "observation['a'][0] is 0.5",
    ),
    "another shape": (UNIT, np.zeros(2, np.float32), np.zeros(1, np.float32), "shape"),
    "a choice beyond the space": (spaces.Discrete(4), 0, 7, "observation is 7, outside of its space Discrete(4)"),
}


@pytest.mark.parametrize("back_end", BACK_ENDS)
@pytest.mark.parametrize("case", REFUSED)
def test_a_step_with_an_unfit_observation_is_refused_by_name(case, back_end):
    space, first, later, words = REFUSED[case]
    with pytest.raises((RuntimeError, ValueError)) as refused:
        BACK_ENDS[back_end](lambda: Given(space, first, later))
    if back_end in ("native vector", "vector of a peer"):  # the row stands before the place
        words = re.sub(r"\[(\d)\]", r"[0, \1]", words)
    assert words in str(refused.value)


HELD = {
    "whole numbers as floats": (BYTES, np.array([1.0, 2.0, 3.0, 255.0]), [1, 2, 3, 255]),
    "int64 pixels": (BYTES, np.array([0, 1, 2, 200]), [0, 1, 2, 200]),
    "float64 for float32": (UNIT, np.array([0.1, -0.2]), np.float32([0.1, -0.2])),
    "whole numbers for floats": (UNIT, np.array([1, -1]), [1.0, -1.0]),
    "a list": (UNIT, [0.5, 0.25], [0.5, 0.25]),
    "a tensor": (UNIT, torch.tensor([0.5, 0.25]), [0.5, 0.25]),
    "a choice as a float": (spaces.Discrete(3), 2.0, 2),
    "a choice as int32": (spaces.Discrete(3), np.int32(2), 2),
}


@pytest.mark.parametrize("back_end", [name for name in BACK_ENDS if name != "gymnasium's vector"])  # which refuses some
@pytest.mark.parametrize("case", HELD)
def test_an_observation_that_the_space_can_hold_arrives_in_its_dtype(case, back_end):
    space, given, wanted = HELD[case]
    seen = BACK_ENDS[back_end](lambda: Given(space, given, given))
    assert np.asarray(seen).dtype == space.dtype
    assert np.array_equal(seen, [wanted, wanted])


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_numbers_beyond_the_bounds_of_a_box_are_warned_of_once(mode):
    boundary = make_vector(lambda: Given(UNIT, np.zeros(2, np.float32), np.float32([5, 0])), num_envs=2, mode=mode)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        play_vector(boundary)
    told = [str(each.message) for each in caught if "outside of its space" in str(each.message)]
    assert len(told) == 1
    assert "observation[0] is 5.0" in told[0]


def test_bounds_are_compared_in_the_first_episodes_only():
    boundary = make_vector(lambda: Given(UNIT, np.zeros(2, np.float32), np.zeros(2, np.float32)), num_envs=2)
    boundary.reset()
    for _ in range(30):  # 12 episodes
        boundary.step(np.zeros(2, np.int64))
    assert boundary._watch is None


@pytest.mark.parametrize("config", [PPOConfig, DQNConfig])
@pytest.mark.parametrize("case", ["300 for a byte", "fractions for bytes", "2.7 for a choice", "in a Dict"])
def test_compute_actions_refuses_observations_that_the_space_cannot_hold(config, case):
    space, _, given, words = REFUSED[case]
    policy = config().environment(observation_space=space, action_space=ACTIONS).build_policy()
    with pytest.raises(ValueError, match="cannot hold") as refused:
        policy.compute_single_action(given)
    number = words.rsplit(" ", 1)[1]
    assert number in str(refused.value)


def test_multi_agent_actions_are_not_computed_for_invalid_observations():
    config = PPOConfig().environment(lambda: Agents(lambda: Given(BYTES, np.zeros(4, np.uint8), np.zeros(4, np.uint8))))
    policy = config.build_policy()
    with pytest.raises(ValueError, match=r"observations\['a'\]\[1\] is 300"):
        policy.compute_actions({"a": np.array([0, 300, 0, 0])})


@pytest.mark.parametrize("case", [case for case in REFUSED if case != "another shape"])
def test_the_check_names_values_that_the_space_cannot_hold(case):
    space, first, later, _ = REFUSED[case]
    findings = check_environment(lambda: Given(space, first, later), num_steps=20)
    assert any(each.level == "error" and each.code.startswith("observation") for each in findings)


EMPTY = {
    "a Box": spaces.Box(-1, 1, (0,), np.float32),
    "in a Dict": spaces.Dict(a=UNIT, b=spaces.Box(-1, 1, (3, 0), np.float32)),
}


@pytest.mark.parametrize("case", EMPTY)
def test_a_box_without_entries_is_refused_by_name(case):
    space = EMPTY[case]

    def make():
        zeros = {"a": np.zeros(2, np.float32), "b": np.zeros((3, 0), np.float32)}
        given = zeros if isinstance(space, spaces.Dict) else np.zeros(0, np.float32)
        return Given(space, given, given)

    errors = [each for each in check_environment(make) if each.level == "error"]
    assert any("observation_space" in each.message and "no entries" in each.message for each in errors)
    with pytest.raises(ValueError, match="no entries"):
        PPOConfig().environment(make).build_trainer()
    with pytest.raises(ValueError, match=r"observation space.* has no entries"):
        PPOConfig().environment(observation_space=space, action_space=ACTIONS).build_policy()
    with pytest.raises(ValueError, match=r"action space.* has no entries"):
        PPOConfig().environment(observation_space=UNIT, action_space=spaces.Box(-1, 1, (0,))).build_learner()


REWARDS = {
    "an int": 2,
    "a bool": True,
    "a float32": np.float32(2),
    "an array ()": np.array(2.0),
    "an array (1,)": np.array([2.0]),
    "a tensor (1,)": torch.tensor([2.0]),
}


def total_reward(back_end, reward):
    make = lambda: Given(UNIT, np.zeros(2, np.float32), np.zeros(2, np.float32), reward)  # noqa: E731
    if back_end in ("dicts by agent", "parallel agents"):
        env = (Agents if back_end == "dicts by agent" else Parallel)(make)
        return record_episode(env, lambda observations: dict.fromkeys(observations, 0)).get_return() / 5
    boundary = {
        "in this process": lambda: make_vector(make, num_envs=2, mode="sync"),
        "workers": lambda: make_vector(make, num_envs=2, mode="async"),
        "native vector": lambda: make_vector(NativeVector(make)),
        "vector of a peer": lambda: peer_vector(make),
    }[back_end]()
    try:
        boundary.reset([0, 1])
        rewards = boundary.step(np.zeros(2, np.int64)).rewards
        assert rewards.shape == (2,)
        return float(rewards[1])
    finally:
        boundary.close()


@pytest.mark.parametrize("back_end", [name for name in BACK_ENDS if name != "gymnasium's vector"])
@pytest.mark.parametrize("kind", REWARDS)
def test_a_reward_is_a_number_or_an_array_of_one(kind, back_end):
    assert total_reward(back_end, REWARDS[kind]) == (1.0 if kind == "a bool" else 2.0)


@pytest.mark.parametrize("back_end", [name for name in BACK_ENDS if name != "gymnasium's vector"])
@pytest.mark.parametrize("reward", [None, "1.5x", np.array([1.0, 2.0])])
def test_a_reward_that_is_no_number_is_refused_by_name(reward, back_end):
    with pytest.raises((RuntimeError, ValueError), match="reward"):
        total_reward(back_end, reward)
