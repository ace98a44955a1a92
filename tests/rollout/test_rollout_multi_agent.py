"""`MultiAgentCollector`: what several agents did, counted exactly, whatever the collects are and whoever is there."""

import numpy as np
import pytest
from agent_games import CountingGame, TurnGame, game_config

from lockstep import MultiAgentCollector, PPOConfig
from lockstep.data import MultiAgentEpisode
from lockstep.data.rollout import EpisodeStore
from lockstep.envs import EnvironmentStepError
from lockstep.learner.many.sharding import parts_of_episodes
from lockstep.policy.acting import ActingPolicy
from lockstep.rollout import CollectorLike, MalformedBufferError
from lockstep.state.streams import RandomStreams


def collector_of(env=CountingGame, num_envs=3, *, store=True, seed=5, policy=None, **model):
    config = game_config(env, num_envs=num_envs)
    if model:
        config.rl_module(model_config=model)
    made = MultiAgentCollector(
        policy or config.build_policy(), env, EpisodeStore() if store else None, num_envs=num_envs
    )
    made.reseed(RandomStreams(seed))
    return made


@pytest.fixture(scope="module")
def policy():
    return game_config().build_policy()


def joined(pieces):
    """The pieces of each episode put together again, by id."""
    whole = {}
    for piece in pieces:
        piece.validate()
        if piece.id_ in whole:
            whole[piece.id_].concat_episode(piece)
        else:
            whole[piece.id_] = piece
    return whole


@pytest.mark.parametrize("env", [CountingGame, TurnGame])
def test_returns_of_each_agent_span_collects_of_whole_episodes(env):
    collector = collector_of(env)
    assert isinstance(collector, CollectorLike)
    ended, pieces, steps = [], [], 0
    for n_step in (3, 9, 3, 30, 6):
        stats = collector.collect(n_step=n_step)
        assert stats.n_collected_steps == n_step == collector.buffer.size
        assert stats.agents == env.possible_agents
        for total, length, of_agents in zip(stats.returns, stats.lens, stats.agent_returns):
            assert of_agents == env.returns(length)
            assert total == sum(of_agents)
        ended += stats.lens.tolist()
        steps += n_step
        pieces += collector.buffer.episodes()
        collector.buffer.clear()
    assert len(set(ended)) > 1
    assert (collector.collect_step, collector.collect_episode) == (51, len(ended))
    whole = joined(pieces)
    assert sum(map(len, whole.values())) == steps
    done = [episode for episode in whole.values() if episode.is_done]
    assert sorted(map(len, done)) == sorted(ended)
    for episode in done:  # every reward is in a closed step, none twice
        by_agent = {agent: single.get_return() for agent, single in episode.agent_episodes.items()}
        early = {"b": 10.0} if env is TurnGame else {}  # came before its first observation
        assert by_agent == {
            agent: total - early.get(agent, 0.0) for agent, total in zip(env.possible_agents, env.returns(len(episode)))
        }
        for single in episode.agent_episodes.values():
            times = single.get_observations()[:, 0]
            assert np.diff(times).tolist() == [2.0 if env is TurnGame else 1.0] * (len(times) - 2) + [
                times[-1] - times[-2]
            ]


def test_an_agent_that_ends_early_terminates_and_others_bootstrap():
    collector = collector_of(num_envs=1)
    collector.env.envs[0].shortest = collector.env.envs[0].longest = 5
    collector.collect(n_step=3)
    (piece,) = collector.buffer.episodes()
    flags = {agent: (len(single), single.is_terminated) for agent, single in piece.agent_episodes.items()}
    assert flags == {"a": (3, False), "b": (2, True), "c": (2, False)}
    parts = parts_of_episodes([piece], collector.policy.learner_group.learner.module.keys())
    assert parts.env_steps == 3
    others = parts.trajectories["others"]
    assert others.rewards[:, 0].tolist() == [10.0, 10.0, 100.0, 100.0]
    assert others.terminateds[:, 0].tolist() == [False, True, False, False]
    assert others.bootstrap_index.tolist() == [3]
    assert others.bootstrap_obs.tolist() == [[3.0, 3.0]]  # c, at time 3


def test_an_action_pending_at_the_end_of_a_collect_is_in_the_next_piece():
    collector = collector_of(TurnGame, num_envs=1)
    collector.env.envs[0].shortest = collector.env.envs[0].longest = 4
    collector.collect(n_step=1)
    first = collector.buffer.episodes()[0]
    assert (len(first), first.agent_steps()) == (1, 0)  # a waits for b
    collector.buffer.clear()
    collector.collect(n_step=1)
    second = collector.buffer.episodes()[0]
    assert {agent: len(single) for agent, single in second.agent_episodes.items()} == {"a": 1, "b": 0}
    assert second.agent_episodes["a"].get_rewards().tolist() == [11.0]


@pytest.mark.parametrize("num_envs, n_episode", [(2, 7), (4, 3), (1, 2)])
def test_the_first_episodes_to_start_count_however_long_they_last(policy, num_envs, n_episode):
    collector = collector_of(num_envs=num_envs, store=False, policy=policy)
    begun = [0] * num_envs
    for _ in range(2):
        stats = collector.collect(n_episode=n_episode)
        lengths, free_at = [], [0] * num_envs
        for _ in range(n_episode):  # the environment that is free first begins the next episode that counts
            b = free_at.index(min(free_at))
            seed = RandomStreams(5).seed(f"episode/{b}/{begun[b]}")
            lengths.append(collector.env.envs[b].length_of(seed))
            begun[b], free_at[b] = begun[b] + 1, free_at[b] + lengths[-1]
        assert sorted(stats.lens) == sorted(lengths)
        assert stats.n_collected_steps == sum(lengths)
        assert stats.n_collected_episodes == n_episode


def test_each_module_is_asked_once_in_a_vector_step_for_all_of_its_agents(policy, monkeypatch):
    collector = collector_of(num_envs=3, policy=policy)
    for env in collector.env.envs:
        env.shortest = env.longest = 4
    asked, act = [], ActingPolicy.act.fget
    names = {id(one): module_id for module_id, one in policy.acting.items()}

    def noted(one):
        return lambda obs, noise: asked.append((names[id(one)], len(obs))) or act(one)(obs, noise)

    monkeypatch.setattr(ActingPolicy, "act", property(noted))
    collector.collect(n_step=12)
    assert asked == [("first", 3), ("others", 3), ("first", 3), ("others", 6), *[("first", 3), ("others", 3)] * 2]


def test_the_same_seed_gives_the_same_bits_and_explores_in_training_only(policy):
    def actions(seed, enabled=True, **options):
        collector = collector_of(seed=seed, policy=policy)
        with policy.within_training_step(enabled):
            collector.collect(n_step=30, **options)
        return [
            (piece.id_, agent, single.get_actions().tolist())
            for piece in collector.buffer.episodes()
            for agent, single in sorted(piece.agent_episodes.items())
        ]

    assert actions(1) == actions(1)
    assert actions(1) != actions(2)
    assert actions(1, random=True) == actions(1, random=True) != actions(1)
    likeliest = actions(1, enabled=False)
    assert likeliest == actions(1, enabled=False) != actions(1)


def test_an_error_in_an_environment_arrives_whole_and_leaves_nothing(policy):
    collector = collector_of(policy=policy)
    collector.collect(n_step=3)
    assert len(collector.buffer) == 3
    broken = collector.env.envs[1]
    broken.options["fails_at"] = 1
    with pytest.raises(
        EnvironmentStepError, match="environment 1 of the 'pettingzoo' vector raised RuntimeError"
    ) as told:
        collector.collect(n_step=30)
    assert told.value.env_index == 1
    assert set(told.value.action) == {"a", "b", "c"}
    assert str(told.value.__cause__) == "the board is on fire"
    assert len(collector.buffer) == 3  # what was there before
    broken.options.clear()
    collector.buffer.clear()
    collector.collect(n_step=3)
    assert all(piece.env_t_started == 0 for piece in collector.buffer.episodes())


def test_a_buffer_that_refuses_the_steps_leaves_nothing_under_way(policy):
    collector = collector_of(policy=policy)
    collector.collect(n_step=3)
    given, collector.buffer.add = collector.buffer.add, lambda pieces: {}["no module of this name"]
    with pytest.raises(KeyError, match="no module of this name"):
        collector.collect(n_step=3)
    assert collector.collect_step == 3
    collector.buffer.add = given
    collector.buffer.clear()
    collector.collect(n_step=3)
    assert all(piece.env_t_started == 0 for piece in collector.buffer.episodes())


class Blinding(CountingGame):
    """Gives the first agent no observation at step 2, and no reward for it."""

    def step(self, actions):
        obs, rewards, *rest = super().step(actions)
        if self.t == 2:
            obs["a"] = obs["a"] * np.nan
            rewards["a"] = float("nan")
        return obs, rewards, *rest


@pytest.mark.parametrize(("env", "column", "step"), [(CountingGame, "rewards", 1), (Blinding, "obs", 2)])
def test_the_first_infinite_value_is_reported_by_agent_column_and_step(policy, env, column, step):
    collector = collector_of(env, policy=policy)
    number = r"\d" if env is Blinding else 2
    collector.env.envs[2].options["nan_at"] = 2
    words = f"environment {number} gave agent 'a' .* column '{column}' at its step {step}"
    with pytest.raises(MalformedBufferError, match=words):
        collector.collect(n_step=9)
    assert len(collector.buffer) == 0
    collector.raise_on_nan_in_buffer = False
    collector.collect(n_step=9)


def test_n_step_is_rounded_up_and_a_collector_with_data_is_not_saved(policy):
    collector = collector_of(policy=policy)
    with pytest.warns(UserWarning, match="4 steps .* no multiple of the 3 environments: 6 are") as told:
        assert collector.collect(n_step=4).n_collected_steps == 6
    assert told[0].filename == __file__
    with pytest.raises(ValueError, match="can be saved between an update and the next collect only"):
        collector.get_state()


def test_agents_of_a_module_that_is_not_there_are_refused():
    elsewhere = game_config().build_policy()
    elsewhere.policy_mapping_fn = lambda agent, episode: "nobody"
    with pytest.raises(KeyError, match="agent 'a' is mapped to the module 'nobody'; there are"):
        MultiAgentCollector(elsewhere, CountingGame)


def test_an_environment_without_agents_is_told(policy):
    class Empty(CountingGame):
        def reset(self, seed=None, options=None):
            super().reset(seed)
            self.agents = []
            return {}, {}

    with pytest.raises(EnvironmentStepError, match="no agent is left to act"):
        collector_of(Empty, 1, policy=policy).collect(n_step=1)


def test_memory_learns_from_the_acting_state_and_resets_with_episodes():
    collector = collector_of(hiddens=(4,), recurrent="gru", recurrent_size=3)
    with collector.policy.within_training_step():
        collector.collect(n_step=9)
        begun = {piece.id_ for piece in collector.buffer.episodes()}
        collector.buffer.clear()
        collector.collect(n_step=30)
        pieces = collector.buffer.episodes()
        for piece in pieces:
            for single in piece.agent_episodes.values():
                if len(single):
                    state = single.get_extra_model_outputs("state_in")["h"]
                    assert (not state[0].any()) == (single.t_started == 0)
                    assert state[1:].any() or len(state) == 1
        assert begun & {piece.id_ for piece in pieces}
        stats = collector.policy.update(0, collector.buffer, None, 1)
    # with other states the first pass, before any gradient step, would give other probabilities than the evaluation
    assert abs(stats.metrics["others/mean_kl_loss"].mean) < 1e-6


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


def test_observations_take_the_form_of_their_space_from_the_first_on(policy):
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


def stay(game, obs):
    game.agents = list(obs)
    return obs


def leave(game, obs):
    game.agents = []
    return obs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda game, obs: {**obs, "a": 1.0}, r"agent 'a' at t=0: observation has shape \(\), its space says \(2,\)"),
        (lambda game, obs: {**obs, "a": "no"}, r"agent 'a' at t=0: observation has shape \(\)"),
        (lambda game, obs: {**obs, "a": [None, 1]}, "agent 'a' at t=0: observation has values of dtype object"),
        (lambda game, obs: {k: v for k, v in obs.items() if k != "a"}, r"agents \['a'\] are in env.agents at t=1, but"),
        (stay, r"agents \['b'\] are in env.agents at t=2, but are done"),
        (leave, r"agents \['a', 'b', 'c'\] left the environment"),
    ],
)
def test_wrong_observations_and_agents_against_the_rules_are_reported(policy, change, message):
    with pytest.raises(EnvironmentStepError, match=message):
        collector_of(changed(change), policy=policy).collect(n_step=9)


def league(agent, episode):
    """Who acts for whom changes with the episode, as in self-play against others."""
    return ("first", "others")[(int(episode.id_[:8], 36) + (agent == "a")) % 2]


def test_the_mapping_gets_an_episode_and_a_module_may_skip_episodes():
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


def test_the_module_of_an_agent_is_that_of_the_given_episode():
    policy = game_config(TurnGame).multi_agent(policy_mapping_fn=league).build_policy()
    for id_ in ("0", "1", "2"):
        episode = MultiAgentEpisode(id_)
        assert len(episode) == 0
        assert policy.module_for("a", MultiAgentEpisode(id_, agent_to_module_mapping_fn=league)) == league("a", episode)
