"""Environments in the form of RLlib's `MultiAgentEnv`: played as they say, refused where they cannot be."""

import re

import numpy as np
import pytest
from agent_games import BitGame, CountingGame, DictGame, TurnGame
from gymnasium import spaces

from lockstep.data import MultiAgentEnvError
from lockstep.envs import check_environment, record_parallel_episode
from lockstep.envs.multi_agent import AgentEnvs


def first_choice(observations):
    return dict.fromkeys(observations, 1)


@pytest.mark.parametrize("truncates", [False, True])
def test_agents_act_when_observed_and_all_ends_the_episode(truncates):
    episode = record_parallel_episode(DictGame(6, truncates=truncates), first_choice, seed=3)
    episode.validate()
    assert (len(episode), episode.is_terminated, episode.is_truncated) == (6, not truncates, truncates)
    times = {agent: single.get_observations()[:, 0].tolist() for agent, single in episode.agent_episodes.items()}
    assert times == {"a": [0, 1, 2, 4, 5, 6], "b": [0, 2, 4], "c": [2, 4, 5, 6]}
    rewards = {agent: single.get_rewards().tolist() for agent, single in episode.agent_episodes.items()}
    assert rewards == {"a": [1, 1, 2, 1, 1], "b": [20, 20], "c": [200, 100, 100]}
    ends = {agent: (single.is_terminated, single.is_truncated) for agent, single in episode.agent_episodes.items()}
    assert ends == {"a": (not truncates, truncates), "b": (True, False), "c": (not truncates, truncates)}


class AskedForSpaces(DictGame):
    """Gives the spaces of single agents, as RLlib's `get_observation_space` does."""

    observation_spaces = action_spaces = None

    def get_observation_space(self, agent):
        return DictGame.observation_spaces[agent]

    def get_action_space(self, agent):
        return DictGame.action_spaces[agent]


class SpacesAsDict(DictGame):
    possible_agents = ()
    observation_spaces = spaces.Dict(DictGame.observation_spaces)
    action_spaces = spaces.Dict(DictGame.action_spaces)


@pytest.mark.parametrize("env", [DictGame, AskedForSpaces, SpacesAsDict, f"{DictGame.__module__}:DictGame"])
def test_spaces_are_those_of_dicts_or_asked_for_agent_by_agent(env):
    envs = AgentEnvs(env, 2)
    assert envs.observation_space == DictGame.observation_spaces
    assert envs.action_space == DictGame.action_spaces
    assert (envs.agents, envs.num_envs, envs.backend) == (("a", "b", "c"), 2, "dicts by agent")
    envs.close()


def changed(change):
    class Changed(DictGame):
        def step(self, actions):
            return change(self, *super().step(actions))

    return Changed


def stranger(game, obs, rewards, *rest):
    return {**obs, "d": np.zeros(2, np.float32)}, rewards, *rest


def without_reward(game, obs, rewards, *rest):
    return obs, {}, *rest


def done_again(game, obs, *rest):
    return {**obs, **(game._obs("b") if game.t == 5 else {})}, *rest


REFUSED = [
    (stranger, r"agent 'd' in env step 0 .*unknown agent; the spaces know \['a', 'b', 'c'\]"),
    (without_reward, "agent 'a' in env step 0 .*received an observation, but no reward"),
    (done_again, "agent 'b' in env step 4 .*the agent was done at t=4"),
    (lambda game, obs, *rest: ({**obs, "a": np.zeros(5)}, *rest), r"agent 'a' at t=0: observation has shape \(5,\)"),
]


@pytest.mark.parametrize(("change", "words"), REFUSED)
def test_invalid_data_are_reported_by_agent_and_step(change, words):
    with pytest.raises(MultiAgentEnvError, match=words):
        record_parallel_episode(changed(change)(), first_choice)
    (finding, *_) = check_environment(changed(change))
    assert (finding.level, finding.code) == ("error", "agents_data")


class Nameless(DictGame):
    possible_agents = ()
    observation_spaces, action_spaces = {}, {}


class HalfNamed(DictGame):
    action_spaces = {"a": spaces.Discrete(2)}


class Unseeded(CountingGame):
    resets = 0

    def reset(self, seed=None, options=None):
        self.resets += 1
        return super().reset(self.resets)


class Raising(DictGame):
    def step(self, actions):
        raise RuntimeError("the board is on fire")


class Infinite(CountingGame):
    def __init__(self):
        super().__init__(nan_at=2)


@pytest.mark.parametrize(
    ("env", "code", "words"),
    [
        (Nameless, "agents_missing", "possible_agents"),
        (HalfNamed, "spaces_missing", r"no action space for agents \['b', 'c'\]"),
        (Unseeded, "seed_ignored", "different episodes"),
        (Raising, "step_raises", "the board is on fire"),
        (Infinite, "reward_not_finite", "agent 'a'"),
    ],
)
def test_a_broken_environment_of_several_agents_is_a_finding(env, code, words):
    findings = check_environment(env, num_steps=50)
    assert findings[0].code == code
    assert re.search(words, findings[0].message)


@pytest.mark.parametrize("env", [CountingGame, TurnGame, BitGame, DictGame])
def test_a_sound_multi_agent_environment_has_only_returns_and_speed(env):
    returns, speed = check_environment(env, num_steps=50)
    assert [(fact.level, fact.code) for fact in (returns, speed)] == [("info", "random_return"), ("info", "speed")]
