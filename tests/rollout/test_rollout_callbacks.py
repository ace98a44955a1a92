"""Callbacks in the environments' process: episodes whole in every autoreset mode, metrics the same however many run."""

from copy import deepcopy
from functools import partial

import numpy as np
import pytest
from acting_tools import Exploring
from agent_games import CountingGame, TellingCountingGame, TellingTurnGame, game_config
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from runner_tools import ManyRunners, config_of

from lockstep import MultiAgentCollector, RolloutStore
from lockstep.connectors import PreviousActions, PreviousRewards
from lockstep.data import MultiAgentEpisode, SingleAgentEpisode
from lockstep.data.rollout import EpisodeStore
from lockstep.envs import LightSyncVectorEnv, WorkerVectorEnv, make_vector
from lockstep.envs.toys.counting import CountingEnv
from lockstep.replay import VectorReplayBuffer
from lockstep.rollout import AsyncCollector, Collector, EnvironmentCallback, EnvRunnerGroup, GroupCollector
from lockstep.rollout.callbacks import EVENTS
from lockstep.rollout.stepper import StepMode
from lockstep.state.streams import RandomStreams
from lockstep.tracking.totals import Totals
from lockstep.trainer import Callback

EPISODES = ((1, "terminate"), (3, "truncate"), (2, "both"), (1, "truncate"), (4, "terminate"), (9, "truncate"))


class InformedEnv(CountingEnv):
    """Says in each info where it is."""

    def reset(self, **options):
        obs, _ = super().reset(**options)
        return obs, {"at": 0, "episode": self.episode_number}

    def step(self, action):
        *rest, _ = super().step(action)
        return *rest, {"at": self.step_number, "episode": self.episode_number}


def makers(number=4):
    return [partial(InformedEnv, EPISODES, offset=row) for row in range(number)]


BACKENDS = {
    "light": lambda: LightSyncVectorEnv(makers()),
    "workers": lambda: WorkerVectorEnv(makers()),
    **{
        f"sync {mode}": partial(SyncVectorEnv, makers(), autoreset_mode=mode)
        for mode in ("NextStep", "SameStep", "Disabled")
    },
    "async NextStep": lambda: AsyncVectorEnv(makers(), autoreset_mode="NextStep"),
    "async SameStep": lambda: AsyncVectorEnv(makers(), autoreset_mode="SameStep"),
    "pipes NextStep": lambda: AsyncVectorEnv(makers(), shared_memory=False, autoreset_mode="NextStep"),
}


class Noting(EnvironmentCallback):
    """Takes down what it is told, and checks each episode while it grows."""

    needs_infos = True

    def __init__(self):
        self.told, self.ended, self.samples = [], [], []

    def on_environment_created(self, env_runner, env, env_index):
        self.told.append(("created", env_index))

    def on_episode_start(self, episode, env_index):
        assert (len(episode), episode.is_done, episode.get_observations(-1)[0]) == (0, False, 0)
        self.told.append(("start", env_index))

    def on_episode_step(self, episode, env_index):
        assert episode.get_observations(-1)[0] == len(episode) > 0
        self.told.append(("step", env_index))

    def on_episode_end(self, episode, env_index):
        assert isinstance(episode, SingleAgentEpisode)
        assert episode.is_done
        self.told.append(("end", env_index))
        self.ended.append((env_index, episode))

    def on_sample_end(self, env_runner, samples):
        self.samples.append([(episode.t_started, len(episode)) for episode in samples])

    def count(self, event):
        return sum(name == event for name, _ in self.told)


@pytest.mark.parametrize("backend", BACKENDS)
def test_callbacks_read_whole_episodes_with_infos_in_every_autoreset_mode(backend):
    collector, noting = Collector(Exploring(), make_vector(BACKENDS[backend]())), Noting()
    collector.buffer = RolloutStore(5, 4, collector.observation_space, collector.env.action_space)
    collector.set_callbacks([noting])
    stats, steps = Totals(), []
    for n_step in (24, 4, 48, 20):
        stats.add_collect(found := collector.collect(n_step))
        steps.append(found.n_collected_steps)
        collector.buffer.clear()
    collector.close()
    assert [name for name, _ in noting.told[:4]] == ["created"] * 4
    for b, episode in noting.ended:
        number = int(episode.get_observations(0)[1])
        length, ending = EPISODES[(b + number) % len(EPISODES)]
        times = np.arange(length + 1)
        np.testing.assert_array_equal(episode.get_observations()[:, 0], times)
        np.testing.assert_array_equal(episode.get_observations()[:, 1], number)
        np.testing.assert_array_equal(episode.get_rewards(), 10 * times[1:] + episode.get_actions())
        assert (episode.is_terminated, episode.is_truncated) == (ending != "truncate", ending != "terminate")
        assert [(info["at"], info["episode"]) for info in episode.get_infos()] == [(t, number) for t in times]
    whole = stats.collect_stats()
    assert sorted(len(episode) for _, episode in noting.ended) == sorted(whole.lens)
    assert sorted(episode.get_return() for _, episode in noting.ended) == sorted(whole.returns)
    assert noting.count("step") == whole.n_collected_steps
    assert [sum(length for _, length in pieces) for pieces in noting.samples] == steps
    assert any(start > 0 for pieces in noting.samples for start, _ in pieces)  # pieces of episodes, not all of them


def test_in_a_collect_by_episodes_only_those_that_count_are_told_of():
    collector, noting = Collector(Exploring(), LightSyncVectorEnv(makers())), Noting()
    collector.set_callbacks([noting])
    for _ in range(2):
        noting.told, noting.ended = [], []
        stats = collector.collect(n_episode=6)
        assert noting.count("start") == noting.count("end") == 6
        assert [len(episode) for _, episode in noting.ended] == stats.lens.tolist()
        assert noting.count("step") == stats.n_collected_steps == stats.lens.sum()


def test_what_is_not_overridden_is_not_called_and_makes_no_episode(monkeypatch):
    made, called = [], []
    begin = SingleAgentEpisode.__init__
    monkeypatch.setattr(
        SingleAgentEpisode, "__init__", lambda self, *args, **options: made.append(1) or begin(self, *args, **options)
    )
    for event in EVENTS:
        monkeypatch.setattr(EnvironmentCallback, event, lambda *args, event=event: called.append(event))

    class Nothing(EnvironmentCallback):
        pass

    class Created(EnvironmentCallback):
        def on_environment_created(self, env_runner, env, env_index):
            called.append("own")

    for callbacks, expected in (([], []), ([Nothing()], []), ([Created()], ["own"] * 4)):
        collector = Collector(Exploring(), LightSyncVectorEnv(makers()))
        collector.set_callbacks(callbacks)
        assert (collector.events is None) == (not expected)
        assert collector.stepper.recorder is None
        stats = collector.collect(40)
        assert (called, made, dict(stats.metrics), stats.logged) == (expected, [], {}, None)
        collector.stepper.begin_collect(StepMode(False, False, 0.0, True, None))
        assert collector.stepper._act_and_step()[1] == collector.env.step  # nothing stands around it
        called.clear()


class Failing(EnvironmentCallback):
    """Raises in its third step."""

    def on_episode_step(self, episode, env_index):
        if len(episode) == 3:
            raise ArithmeticError("no third step", len(episode))


def test_a_callback_error_arrives_whole_and_the_next_collect_starts_over():
    collector = Collector(Exploring(), LightSyncVectorEnv(makers()))
    collector.buffer = RolloutStore(5, 4, collector.observation_space, collector.env.action_space)
    collector.set_callbacks([Failing()])
    with pytest.raises(ArithmeticError) as raised:
        collector.collect(40)
    assert raised.value.args == ("no third step", 3)
    assert raised.value.__notes__ == ["in Failing.on_episode_step of environment 1"]
    assert collector.buffer.size == 0
    collector.set_callbacks([])
    assert collector.collect(8).n_collected_steps == 8


READS = [
    ("set_rewards", lambda episode: episode.set_rewards(new_data=1.0)),
    ("add_env_step", lambda episode: episode.add_env_step(0, 0, 0.0)),
    ("is_terminated", lambda episode: setattr(episode, "is_terminated", True)),
    ("_columns", lambda episode: episode._columns),
]


@pytest.mark.parametrize(("name", "change"), READS)
def test_an_episode_is_for_reading(name, change):
    collector, noting = Collector(Exploring(), LightSyncVectorEnv(makers())), Noting()
    collector.set_callbacks([noting])
    collector.collect(n_episode=1)
    with pytest.raises(AttributeError, match=name):
        change(noting.ended[0][1])


class Measuring(Callback):
    """Logs in every way."""

    def on_episode_start(self, episode, env_index):
        self.metrics.log_value("begun", 1, reduce="lifetime_sum")

    def on_episode_step(self, episode, env_index):
        place = episode.get_observations(-1)[0]
        for reduce in ("mean", "min", "max", "sum", "ema", "item", "percentiles"):
            self.metrics.log_value(("place", reduce), place, reduce=reduce)
        self.metrics.log_value(("place", "window"), place, window=7)

    def on_episode_end(self, episode, env_index):
        self.metrics.log_value("return", episode.get_return())


def measured(num_runners, collects=(48, 16, 64), state=None, skip=0):
    """What runners report that share 4 environments, and their state after the second collect."""
    config = config_of("CartPole-v1", num_envs=4 // num_runners).callbacks(Measuring)
    policy = config.build_policy()
    build = partial(config.build_env_runner, (policy.observation_space, policy.action_space))
    collector = GroupCollector(policy, EnvRunnerGroup(ManyRunners(build, num_runners)))
    if state is not None:
        collector.set_state(state)
    found, totals = [], Totals()
    for number, n_step in enumerate(collects):
        if number >= skip:
            stats = collector.collect(n_step)
            totals.add_collect(stats)
            found.append(dict(stats.metrics))
        if number == 1 and state is None:
            state = collector.get_state()
    return found, totals.collect_stats().metrics, state


def test_m_runners_give_the_metrics_of_one_exactly():
    one, whole, _ = measured(1)
    assert len(one[0]) == 16
    for number in (2, 4):
        several, of_all, _ = measured(number)
        assert several == one
        assert of_all == whole


@pytest.mark.parametrize("num_runners", [1, 2])
def test_runners_that_go_on_from_a_state_give_the_same_metrics(num_runners):
    straight, _, state = measured(num_runners)
    resumed, _, _ = measured(num_runners, state=state, skip=2)
    assert resumed == straight[2:]
    assert resumed[0]["begun"] > straight[1]["begun"] > 4


def test_a_restored_collector_has_complete_episodes_and_metrics():
    def collector():
        made = Collector(Exploring(), LightSyncVectorEnv(makers()), streams=RandomStreams(1))
        made.set_callbacks([Measuring(), noting := Noting()])
        return made, noting

    straight, noting = collector()
    first = straight.collect(12)
    state = straight.get_state()
    second, ended = straight.collect(24), noting.ended[len(first.lens) :]
    resumed, noted = collector()
    resumed.set_state(state)
    again = resumed.collect(24)
    assert again.metrics == second.metrics
    assert [(b, e.get_observations().tolist()) for b, e in noted.ended] == [
        (b, e.get_observations().tolist()) for b, e in ended
    ]


def test_callbacks_have_their_state_in_that_of_the_runner():
    class Counting(EnvironmentCallback):
        number = 0

        def on_episode_end(self, episode, env_index):
            self.number += 1

        def get_state(self):
            return {"number": self.number}

        def set_state(self, state):
            self.number = state["number"]

    config = config_of("CartPole-v1")
    policy = config.build_policy()
    runners = [config.build_env_runner((policy.observation_space, policy.action_space)) for _ in range(2)]
    for runner in runners:
        runner.callbacks = [Counting()]
        runner.collector.set_callbacks(runner.callbacks, runner)
    runners[0].sample(100)
    runners[1].set_state(runners[0].get_state())
    assert runners[1].callbacks[0].number == runners[0].callbacks[0].number > 0


def see_what_was_done(observation_space, action_space):
    return [PreviousActions(action_space), PreviousRewards()]


STACKED = {"environment": {"frame_stack": 3}}
PREVIOUS = {"env_runners": {"env_to_module_connector": see_what_was_done}}


class Gaming(EnvironmentCallback):
    """Takes down the episodes of several agents."""

    def __init__(self):
        self.ended, self.steps, self.sampled = [], 0, 0

    def on_episode_start(self, episode, env_index):
        assert len(episode) == 0

    def on_episode_step(self, episode, env_index):
        self.steps += 1

    def on_episode_end(self, episode, env_index):
        assert isinstance(episode, MultiAgentEpisode)
        self.ended.append(episode)
        self.metrics.log_value("length", len(episode))

    def on_sample_end(self, env_runner, samples):
        self.sampled += sum(map(len, samples))


def test_episodes_of_several_agents_are_whole_though_collects_cut_them():
    collector, gaming = MultiAgentCollector(game_config().build_policy(), CountingGame, num_envs=3, seed=5), Gaming()
    collector.set_callbacks([gaming])
    totals = Totals()
    for n_step in (3, 9, 3, 30):
        totals.add_collect(collector.collect(n_step))
    stats = totals.collect_stats()
    assert [len(episode) for episode in gaming.ended] == stats.lens.tolist()
    assert [episode.get_return() for episode in gaming.ended] == stats.returns.tolist()
    assert gaming.steps == gaming.sampled == stats.n_collected_steps == 45
    assert stats.metrics["length"] == stats.lens.mean()
    with pytest.raises(AttributeError, match="add_env_step"):
        gaming.ended[0].add_env_step({}, {}, {})


@pytest.mark.parametrize("game", [TellingCountingGame, TellingTurnGame])
@pytest.mark.parametrize("connectors", [{}, STACKED, PREVIOUS])
def test_a_multi_agent_collector_resumes_mid_episode_with_callbacks(game, connectors):
    def made(with_callback=True):
        policy, gaming = game_config(game, **connectors).build_policy(), Gaming()
        collector = MultiAgentCollector(policy, game, num_envs=2, seed=5)
        collector.set_callbacks([gaming] if with_callback else [])
        collector.buffer = EpisodeStore()
        return collector, gaming

    def rest(collector, gaming):
        number = len(gaming.ended)
        stats = collector.collect(n_step=30)
        pieces = [
            (agent, repr(single.get_observations()), repr(single.get_actions()))
            for piece in collector.buffer.episodes()
            for agent, single in piece.agent_episodes.items()
        ]
        told = [episode.get_observations() for episode in gaming.ended[number:]]
        return pieces, stats.returns.tolist(), stats.metrics.get("length"), repr(told)

    straight, gaming = made()
    straight.collect(n_step=14)
    straight.reset_buffer()
    state = deepcopy(straight.get_state())
    assert straight.stepper.episodes.lengths.any()
    expected = rest(straight, gaming)
    resumed = made()
    resumed[0].set_state(state)
    assert resumed[0].episodes_cut == 0
    assert rest(*resumed) == expected
    unwatched, _ = made(with_callback=False)  # its own record is not there: callbacks read from the next episode on
    unwatched.set_state({name: part for name, part in state.items() if name != "events"})
    assert rest(unwatched, Gaming())[:2] == expected[:2]
    late = made()
    late[0].set_state({**state, "env": [{**play, "whole": None} for play in state["env"]]})
    assert rest(*late)[:2] == expected[:2]


def test_environments_that_answer_when_they_are_ready_are_told_of_too():
    env, noting = make_vector(partial(InformedEnv, EPISODES), num_envs=3, mode="async"), Noting()
    collector = AsyncCollector(Exploring(), env, buffer=VectorReplayBuffer(400, 3), seed=1)
    collector.set_callbacks([noting])
    stats = collector.collect(60)
    collector.close()
    assert sorted(len(episode) for _, episode in noting.ended) == sorted(stats.lens)
    assert sorted(episode.get_return() for _, episode in noting.ended) == sorted(stats.returns)
    assert [info["at"] for info in noting.ended[-1][1].get_infos()] == [*range(len(noting.ended[-1][1]) + 1)]


ODD = {7: 1, (1, 2): 2, None: 3, "nested": {8: 4, "text": 5}, "_own": 6}


class OddlyInformed(CountingEnv):
    def step(self, action):
        return *super().step(action)[:4], dict(ODD)


class OddGame(CountingGame):
    def step(self, actions):
        *outcome, infos = super().step(actions)
        return *outcome, {agent: dict(ODD) for agent in infos}


@pytest.mark.parametrize("backend", ["sync", "workers", "NextStep", "SameStep", "Disabled"])
def test_keys_of_infos_may_be_other_things_than_text(backend):
    makers = [partial(OddlyInformed, EPISODES)] * 2
    if backend == "workers":
        env = WorkerVectorEnv(makers)
    else:
        env = LightSyncVectorEnv(makers) if backend == "sync" else SyncVectorEnv(makers, autoreset_mode=backend)
    collector, noting = Collector(Exploring(), make_vector(env), streams=RandomStreams(1)), Noting()
    collector.set_callbacks([noting])
    collector.collect(n_step=20)
    collector.close()
    assert noting.ended
    assert all(info == ODD for _, episode in noting.ended for info in episode.get_infos()[1:])


def test_keys_of_infos_of_several_agents_may_be_other_things_than_text():
    collector, gaming = MultiAgentCollector(game_config().build_policy(), OddGame, num_envs=2, seed=5), Gaming()
    collector.set_callbacks([gaming])
    collector.collect(n_step=20)
    singles = [single for episode in gaming.ended for single in episode.agent_episodes.values()]
    assert all(info == ODD for single in singles if single.agent_id != "c" for info in single.get_infos()[1:])


def test_a_key_that_hides_gymnasiums_last_observation_is_named():
    class Hiding(CountingEnv):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)[0], {"final_obs": "mine"}

    env = make_vector(SyncVectorEnv([partial(Hiding, EPISODES)], autoreset_mode="SameStep"))
    with pytest.raises(ValueError, match=r"infos\['final_obs'\] has \['mine'\].* must not use it in its own info"):
        Collector(Exploring(), env, seed=1).collect(n_step=4)
