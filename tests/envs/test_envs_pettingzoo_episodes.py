"""Contract, section 5: real PettingZoo environments feed a `MultiAgentEpisode`, parallel and turn-based."""

import warnings
from collections import defaultdict

import numpy as np
import pytest
from parts import one_in

from lockstep.data import MultiAgentEnvError
from lockstep.envs import record_aec_episode, record_parallel_episode

pytest.importorskip("pettingzoo", reason="pip install 'pettingzoo>=1.25'")
warnings.simplefilter("ignore", DeprecationWarning)


def knights_archers_zombies(**options):
    knights = pytest.importorskip("pettingzoo.butterfly.knights_archers_zombies_v11")
    return knights.parallel_env(max_cycles=300, **options)


def chooser(env, seed):
    """Random allowed actions, the same for the same seed."""
    rng = np.random.default_rng(seed)

    def choose(agent, observation):
        n = env.action_space(agent).n
        mask = observation["action_mask"] if isinstance(observation, dict) else np.ones(n)
        return int(rng.choice(np.flatnonzero(mask)))

    return lambda observations: {agent: choose(agent, obs) for agent, obs in observations.items()}


def spawning(**options):
    """PettingZoo's own test environment: agents appear and end all the time, and nobody knows which there will be."""
    example = pytest.importorskip("pettingzoo.test.example_envs.generated_agents_parallel_v0")
    return example.parallel_env(**options)


@pytest.mark.parametrize(
    "make, steps, seed",
    one_in(2, [(knights_archers_zombies, None, 1), (knights_archers_zombies, None, 2), (spawning, 60, 3)]),
)
def test_parallel_environment_where_agents_come_and_go(make, steps, seed):
    env = make()
    episode = record_parallel_episode(env, chooser(env, seed), seed=seed, id_="e", max_steps=steps)
    episode.validate()
    # the same play, written down by hand
    again = make()
    act = chooser(again, seed)
    observations, _ = again.reset(seed=seed)
    seen, rewards, ended = defaultdict(list), defaultdict(list), {}
    for agent, obs in observations.items():
        seen[agent].append(obs)
    for _ in range(steps or 1000):
        if not again.agents:
            break
        alive = [*again.agents]
        observations, reward, terminated, truncated, _ = again.step(act({a: observations[a] for a in alive}))
        for agent, obs in observations.items():
            seen[agent].append(obs)
            rewards[agent] += [reward[agent]] * (agent in alive)
            ended[agent] = terminated[agent], truncated[agent]
    assert episode.agent_ids == set(seen)
    assert episode.is_done == (steps is None)
    assert len({len(one) for one in episode.agent_episodes.values()}) > 1  # some died before others
    for agent, single in episode.agent_episodes.items():
        np.testing.assert_array_equal(single.get_observations(), np.stack(seen[agent]))
        assert single.get_rewards().tolist() == rewards[agent]
        assert (single.is_terminated, single.is_truncated) == ended[agent]
    assert episode.get_return() == sum(map(sum, rewards.values()))


def by_pettingzoos_own_loop(env, seed):
    """agent -> observations, actions, rewards since it last acted (which come with the observation)."""
    act = chooser(env, seed)
    env.reset(seed=seed)
    seen, actions, rewards = defaultdict(list), defaultdict(list), defaultdict(list)
    for agent in env.agent_iter():
        obs, reward, terminated, truncated, _ = env.last()
        seen[agent].append(obs)
        rewards[agent].append(reward)
        action = None if terminated or truncated else act({agent: obs})[agent]
        if action is not None:
            actions[agent].append(action)
        env.step(action)
    return seen, actions, rewards


@pytest.mark.parametrize("game", ["connect_four_v3", "tictactoe_v3"])
def test_turn_based_game_gives_each_player_its_own_steps(game):
    module = pytest.importorskip(f"pettingzoo.classic.{game}")
    winners = set()
    for seed in range(8):
        env = module.env()
        episode = record_aec_episode(
            env, chooser(env, seed), seed=seed, agent_to_module_mapping_fn=lambda agent, _: agent
        )
        episode.validate()
        seen, actions, rewards = by_pettingzoos_own_loop(module.env(), seed)
        assert episode.is_terminated
        assert len(episode) == sum(map(len, actions.values()))
        for agent, single in episode.agent_episodes.items():
            boards = np.stack([obs["observation"] for obs in seen[agent]])
            np.testing.assert_array_equal(single.get_observations()["observation"], boards)
            np.testing.assert_array_equal(single.get_actions(), actions[agent])
            np.testing.assert_array_equal(single.get_rewards(), rewards[agent][1:])
        first, second = episode.env_t_to_agent_t.values()
        assert first[:4] == [0, "S", 1, "S"]  # they take turns
        assert second[:4] == ["S", 0, "S", 1]
        returns = {agent: single.get_return() for agent, single in episode.agent_episodes.items()}
        assert sum(returns.values()) == 0.0  # who wins, wins from the other
        winners.add(max(returns.values()))
        batch = episode.get_sample_batch()
        assert batch.agent_steps() == batch.env_steps() == len(episode)
        assert sum(part.agent_steps() for part in batch.timeslices(2)) == len(episode)
    assert 1.0 in winners


def test_turn_based_environment_where_agents_come_and_go():
    example = pytest.importorskip("pettingzoo.test.example_envs.generated_agents_env_v0")
    env = example.raw_env(max_cycles=20)
    episode = record_aec_episode(env, chooser(env, 4), seed=4)
    episode.validate()
    seen, actions, rewards = by_pettingzoos_own_loop(example.raw_env(max_cycles=20), 4)
    assert (episode.is_truncated, len(episode)) == (True, sum(map(len, actions.values())))
    assert episode.agent_ids == set(seen)
    assert len(seen) > 8
    for agent, single in episode.agent_episodes.items():
        assert single.get_observations().shape == np.stack(seen[agent]).shape  # new kinds of agents see noise
        assert (single.get_actions().tolist(), single.get_rewards().tolist()) == (actions[agent], rewards[agent][1:])
    early = sum(rewards[agent][0] for agent in seen)  # rewards before the first observation
    assert episode.get_return(include_hanging_rewards=True) == episode.get_return() + early


def test_max_steps_leaves_the_episode_unfinished():
    tictactoe = pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    env = tictactoe.env()
    episode = record_aec_episode(env, chooser(env, 0), seed=0, max_steps=3)
    assert (episode.is_done, len(episode), episode.agent_steps()) == (False, 3, 2)
    assert episode.get_agents_to_act() == {"player_2"}
    assert len(episode.get_actions()["player_1"]) == 2
    env = knights_archers_zombies()
    assert len(record_parallel_episode(env, chooser(env, 0), seed=0, max_steps=5)) == 5


def test_act_may_give_model_outputs():
    env = knights_archers_zombies()
    choose = chooser(env, 0)

    def act(observations):
        return choose(observations), {agent: {"action_logp": -1.5} for agent in observations}

    episode = record_parallel_episode(env, act, seed=0, max_steps=4)
    outputs = episode.get_extra_model_outputs("action_logp")
    assert {agent: rows.tolist() for agent, rows in outputs.items()} == {agent: [-1.5] * 4 for agent in env.agents}


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        ({}, MultiAgentEnvError, r"env step 0 act gave actions for \[\]; agents to act are \['archer_0'"),
        ([0], TypeError, "act returned a list"),
    ],
)
def test_act_must_answer_for_every_agent(answer, error, words):
    with pytest.raises(error, match=words):
        record_parallel_episode(knights_archers_zombies(), lambda observations: answer, seed=0)


def test_agents_that_leave_without_a_flag_are_named():
    class Leaving:
        possible_agents = None
        agents = ("a", "b")
        observation_space = action_space = lambda self, agent: None

        def reset(self, seed=None, options=None):
            return {"a": 0, "b": 0}, {}

        def step(self, actions):
            self.agents = ("a",)
            return {"a": 1, "b": 1}, {"a": 0.0, "b": 0.0}, {"a": False}, {}, {}

    with pytest.raises(MultiAgentEnvError, match=r"agents \['b'\] left the environment in env step 0"):
        record_parallel_episode(Leaving(), lambda observations: dict.fromkeys(observations, 0))
