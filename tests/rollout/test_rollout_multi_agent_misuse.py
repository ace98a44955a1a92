"""`MultiAgentCollector` and the environments of several agents: what is refused, and what environments get wrong."""

import numpy as np
import pytest
from agent_games import CountingGame, TurnGame, game_config

from lockstep import MultiAgentCollector, PPOConfig
from lockstep.data import MultiAgentEpisode
from lockstep.data.rollout import EpisodeStore
from lockstep.envs import EnvironmentStepError


@pytest.fixture(scope="module")
def policy():
    return game_config().build_policy()


def test_a_finished_environment_of_a_configuration_is_the_only_one():
    config = game_config(CountingGame(), num_envs=4).evaluation(evaluation_interval=0)
    collector = config.build_trainer().train_collector
    assert collector.num_envs == 1
    assert collector.collect(n_step=5).n_collected_steps == 5


def changed(change):
    """A `CountingGame` whose observations `change(game, observations)` after each step."""

    class Changed(CountingGame):
        def step(self, actions):
            observations, *rest = super().step(actions)
            return change(self, observations), *rest

    return Changed


def test_observations_are_taken_in_the_form_of_their_space_from_the_first_on(policy):
    class Doubles(CountingGame):
        def _obs(self, agents):
            return {agent: obs.astype(np.float64).tolist() for agent, obs in super()._obs(agents).items()}

    plain, doubles = (MultiAgentCollector(policy, env, EpisodeStore(), seed=1) for env in (CountingGame, Doubles))
    for one in (plain, doubles):
        one.collect(n_step=20)
    for piece, other in zip(plain.buffer.episodes(), doubles.buffer.episodes(), strict=True):
        for agent, single in other.agent_episodes.items():
            assert single.get_observations().dtype == np.float32
            np.testing.assert_array_equal(single.get_observations(), piece.agent_episodes[agent].get_observations())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda game, obs: {**obs, "a": 1.0}, r"agent 'a' at t=0: observation has shape \(\), its space says \(2,\)"),
        (lambda game, obs: {**obs, "a": "no"}, r"agent 'a' at t=0: observation has shape \(\)"),
        (lambda game, obs: {**obs, "a": [None, 1]}, "agent 'a' at t=0: observation has values of dtype object"),
        (lambda game, obs: {k: v for k, v in obs.items() if k != "a"}, r"agents \['a'\] are in env.agents at t=1, but"),
    ],
)
def test_an_observation_of_another_form_or_none_is_told_with_the_agent(policy, change, message):
    with pytest.raises(EnvironmentStepError, match=message):
        MultiAgentCollector(policy, changed(change), EpisodeStore()).collect(n_step=9)


def test_an_agent_that_is_done_and_stays_is_told(policy):
    def stay(game, obs):
        game.agents = list(obs)
        return obs

    with pytest.raises(EnvironmentStepError, match=r"agents \['b'\] are in env.agents at t=2, but are done"):
        MultiAgentCollector(policy, changed(stay), EpisodeStore()).collect(n_step=9)


def league(agent, episode):
    """Who acts for whom changes with the episode, as in self-play against others."""
    return ("first", "others")[(int(episode.id_[:8], 36) + (agent == "a")) % 2]


def test_the_mapping_is_asked_with_an_episode_and_a_module_may_act_in_some_episodes_only():
    config = game_config(TurnGame, PPOConfig, num_envs=2)
    config.multi_agent(policies=["first", "others", "third"], policy_mapping_fn=league)
    trainer = config.build_trainer()
    assert trainer.run().train_step == 64
    assert trainer.policy.observation_space["third"] == TurnGame().observation_space("a")
    collector = trainer.train_collector
    collector.buffer.clear()
    collector.collect(n_step=40)
    seen = set()
    for piece in collector.buffer.episodes():
        modules = {agent: single.module_id for agent, single in piece.agent_episodes.items()}
        assert all(module_id == league(agent, piece) for agent, module_id in modules.items())
        seen |= set(modules.items())
    assert len(seen) == 4  # both agents with both modules


def test_a_mapping_to_a_module_that_is_not_there_is_told_with_the_agent():
    config = game_config().multi_agent(policy_mapping_fn=lambda agent, episode: "nobody")
    with pytest.raises(KeyError, match=r"agent 'a' is mapped to the module 'nobody'; there are \['first', 'others'\]"):
        config.build_policy()


def test_the_module_of_an_agent_is_that_of_the_episode_that_is_given_also_before_its_first_step():
    policy = game_config(TurnGame).multi_agent(policy_mapping_fn=league).build_policy()
    for id_ in ("0", "1", "2"):
        episode = MultiAgentEpisode(id_)
        assert len(episode) == 0
        assert policy.module_for("a", MultiAgentEpisode(id_, agent_to_module_mapping_fn=league)) == league("a", episode)
