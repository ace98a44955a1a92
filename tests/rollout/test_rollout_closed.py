"""A collector that is closed says so: no back end goes on by itself."""

import copy
import multiprocessing
import pickle
from functools import partial

import numpy as np
import pytest
from acting_tools import Acting, Exploring
from agent_games import CountingGame, game_config
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from runner_tools import ManyRunners, config_of

from lockstep import AsyncCollector, Collector, MultiAgentCollector
from lockstep.data.rollout import EpisodeStore, RolloutStore
from lockstep.envs import LightSyncVectorEnv, WorkerVectorEnv, make_vector
from lockstep.envs.toys.counting import CountingEnv, CountingVectorEnv
from lockstep.replay import VectorReplayBuffer
from lockstep.rollout import EnvRunnerGroup, GroupCollector
from lockstep.rollout.group_collector import AsyncGroupCollector
from lockstep.rollout.runner_group import LocalRunner
from lockstep.state.streams import RandomStreams

EPISODES = ((5, "terminate"),)


class Closing(CountingEnv):
    """Counts how often one is closed."""

    closed = 0

    def close(self):
        Closing.closed += 1


MAKERS = [partial(Closing, EPISODES)] * 2
VECTORS = {
    "light": lambda: LightSyncVectorEnv(MAKERS),
    "workers": lambda: WorkerVectorEnv(MAKERS),
    "sync": lambda: SyncVectorEnv(MAKERS),
    "async": lambda: AsyncVectorEnv(MAKERS),
    "native": lambda: CountingVectorEnv(2, EPISODES),
    "envpool": lambda: make_vector("CartPole-v1", num_envs=2, mode="envpool"),
}


REFUSED = {
    "buffer": {"buffer": RolloutStore},
    "flag": {"raise_on_nan_in_buffer": 3},
    "seed": {"seed": 1, "streams": RandomStreams(1)},
}


@pytest.mark.parametrize("options", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("kind", [Collector, AsyncCollector, MultiAgentCollector])
def test_a_refused_collector_closes_only_the_environments_that_it_made(kind, options, monkeypatch):
    closed, refusals = [], []
    if kind is MultiAgentCollector:
        policy, make = game_config().build_policy(), CountingGame
        finished = make()
        monkeypatch.setattr(CountingGame, "close", lambda self: closed.append(self))
    else:
        policy, make = Acting(), partial(Closing, EPISODES)
        mode = "async" if kind is AsyncCollector else "auto"
        finished = make_vector(make, num_envs=2, mode=mode)
        monkeypatch.setattr(Closing, "close", lambda self: closed.append(self))
    processes = set(multiprocessing.active_children())
    for env in (make, finished):
        with pytest.raises((TypeError, ValueError)) as refusal:
            kind(policy, env, **options)
        refusals.append(refusal)  # whose traceback keeps the environments from being collected as garbage
    assert set(multiprocessing.active_children()) == processes
    assert len(closed) == 1  # one in a process of its own had a model in this one, to learn its spaces
    finished.close()


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("name", VECTORS)
def test_after_close_collect_and_reset_are_refused_on_every_back_end(name, begun):
    if name == "envpool":
        pytest.importorskip("envpool")
    collector = Collector(Exploring(), VECTORS[name](), VectorReplayBuffer(20, 2))
    if begun:
        collector.collect(n_step=4)
    Closing.closed = 0
    collector.close()
    collector.close()
    assert Closing.closed == (2 if name in ("light", "sync") else 0)  # the others are in processes of their own
    calls = [partial(collector.collect, **given) for given in ({"n_step": 2}, {"n_episode": 1})]
    calls += [collector.reset, collector.reset_env, partial(collector.env.step, np.zeros(2, np.int64))]
    for call in calls:
        with pytest.raises(RuntimeError, match="is closed; make a new one, and a new collector with it"):
            call()
    assert len(collector.buffer) == 4 * begun  # nothing is emptied before


@pytest.mark.parametrize("of_agents", [False, True])
def test_after_close_other_collectors_say_that_they_are_closed(of_agents):
    if of_agents:
        collector = MultiAgentCollector(game_config().build_policy(), CountingGame, EpisodeStore())
    else:
        collector = AsyncCollector(Exploring(), WorkerVectorEnv(MAKERS), VectorReplayBuffer(20, 2))
    collector.collect(n_step=3)  # steps are under way
    number = len(collector.buffer)
    for _ in range(2):
        collector.close()
    for call in (partial(collector.collect, n_step=1), partial(collector.collect, n_episode=1), collector.reset):
        with pytest.raises(RuntimeError, match="is closed; make a new one"):
            call()
    assert len(collector.buffer) == number > 0
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"Collector holds .* other\.set_state"):
            duplicate(collector)


@pytest.mark.parametrize("local", [True, False])
def test_after_close_collectors_of_env_runners_say_that_they_are_shut_down(local):
    config = config_of()
    build = partial(config.build_env_runner, config.find_spaces(), False)
    policy = config.build_policy()
    group = EnvRunnerGroup(LocalRunner(build) if local else ManyRunners(build, 2))
    buffer = VectorReplayBuffer(40, group.num_envs)
    collectors = [GroupCollector(policy, group, buffer)]
    options = {"fragment_length": 2, "fragments_per_batch": 1, "max_lag": 1}
    collectors += [AsyncGroupCollector(policy, group, None, **options)]
    _ = [collector.collect(n_step=4) for collector in collectors]
    number = len(buffer)
    assert number > 0
    for _ in range(2):
        collectors[0].close()
    for collector in collectors:
        for call in (partial(collector.collect, n_step=4), collector.reset, collector.reset_env):
            with pytest.raises(RuntimeError, match="env runners are shut down; build a new group"):
                call()
    assert len(buffer) == number
