"""What collectors refuse: options, buffers, policies, environments and amounts, with the words that say why."""

from functools import partial

import pytest
from acting_tools import Acting
from agent_games import TWO, CountingGame, game_config

from lockstep import AsyncCollector, Collector, MultiAgentCollector, PPOConfig, RolloutStore
from lockstep.envs import LightSyncVectorEnv, WorkerVectorEnv, make_vector
from lockstep.envs.multi_agent import AgentEnvs
from lockstep.envs.toys.counting import CountingEnv
from lockstep.replay import MultiAgentReplayBuffer, ReplayBuffer, VectorReplayBuffer
from lockstep.state.streams import RandomStreams

EPISODES = ((5, "terminate"), (3, "truncate"))
AGENTS = {"first": ["a"], "others": ["b", "c"]}


def light():
    return LightSyncVectorEnv([partial(CountingEnv, EPISODES)] * 4)


@pytest.fixture(scope="module")
def workers():
    with WorkerVectorEnv([partial(CountingEnv, EPISODES)] * 2) as vector:
        yield vector


@pytest.fixture(scope="module")
def agents_policy():
    return game_config().build_policy()


class Remembering(Acting):
    is_stateful = True

    def get_initial_state(self, num_rows):
        return {}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policy": None}, "policy=None is not allowed; it must be a lockstep.Policy"),
        ({"buffer": 3}, "buffer=3 is not allowed; it must be a ReplayBuffer, a RolloutStore, or None"),
        ({"exploration_noise": "yes"}, "exploration_noise='yes' is not allowed; it must be True or False"),
        ({"raise_on_nan_in_buffer": None}, "raise_on_nan_in_buffer=None is not allowed; it must be True or False"),
        ({"on_step_hook": 3}, "on_step_hook=3 is not allowed; it must be a function, or None"),
        ({"on_episode_done_hook": "print"}, "on_episode_done_hook='print' is not allowed; it must be a function"),
        ({"epsilon": 1.5}, "epsilon=1.5 is not allowed; it must be between 0 and 1"),
        ({"epsilon": True}, "epsilon=True is not allowed"),
        ({"seed": 3, "streams": RandomStreams(3)}, "seed=3 and streams are not allowed together"),
        ({"seed": -1}, "seed=-1 is not allowed"),
        ({"buffer": ReplayBuffer(100)}, "1 sub-buffers, and there are 4 environments; use VectorReplayBuffer"),
        (
            {"buffer": RolloutStore(4, 3, CountingEnv().observation_space, CountingEnv().action_space)},
            r"buffer\.num_envs=3 does not fit the 4 environments",
        ),
        ({"policy": Remembering(), "buffer": VectorReplayBuffer(100, 4)}, "a policy with memory learns from sequences"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_collector_option_is_refused_with_name_and_value(options, words):
    with pytest.raises(ValueError, match=words):
        Collector(**{"policy": Acting(), "env": light(), **options})


def test_an_update_between_steps_and_their_reading_is_for_devices_only():
    collector = Collector(Acting(), light())
    with pytest.raises(ValueError, match=r"then=.* is for steps on a device"):
        collector.collect(n_step=4, then=lambda: None)
    assert not collector.is_begun


def test_a_policy_for_other_spaces_is_refused_with_both():
    policy = PPOConfig().environment("CartPole-v1").build_policy()
    with pytest.raises(ValueError, match=r"observation space is Box.*the environment's is Box"):
        Collector(policy, make_vector("Acrobot-v1"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"env": make_vector("CartPole-v1")}, "needs environments in processes of their own"),
        ({"policy": Remembering()}, "takes no recurrent policy; use Collector"),
        (
            {"policy": Acting().stacking(4, CountingEnv())},
            "follows no connectors with a memory, and the policy has FrameStack",
        ),
        ({"buffer": ReplayBuffer(10)}, "buffer_num=2"),
        (
            {"buffer": RolloutStore(4, 2, CountingEnv().observation_space, CountingEnv().action_space)},
            "fills a replay buffer only",
        ),
    ],
)
def test_async_collector_is_refused_where_it_does_not_belong(workers, options, words):
    with pytest.raises(ValueError, match=words):
        AsyncCollector(**{"policy": Acting(), "env": workers, **options})


class AttributeGame(CountingGame):
    observation_space = TWO


class FewerAgents(CountingGame):
    def __init__(self):
        super().__init__()
        self.possible_agents = ("a", "b", "c")[: 2 + type(self).made % 2]


class Wider(CountingGame):
    def observation_space(self, agent):
        return CountingGame.action_space(self, agent)


ONE = CountingGame()


def buffer_for(agents, num_envs=1):
    return MultiAgentReplayBuffer(agents, num_envs, lambda _, number: ReplayBuffer(8 * number, buffer_num=number))


@pytest.mark.parametrize(
    ("env", "options", "words"),
    [
        ("CartPole-v1", {}, "env='CartPole-v1' is of one agent; several agents need"),
        (object, {}, "is no environment of several agents; give a PettingZoo ParallelEnv or AECEnv"),
        (AttributeGame, {}, "is no environment of several agents; give .* RLlib's MultiAgentEnv"),
        (Wider, {}, r"observation space is Box.* the environment's is Discrete"),
        (CountingGame, {"num_envs": 2.5}, "num_envs=2.5 is not allowed"),
        (CountingGame, {"num_envs": True}, "num_envs=True is not allowed"),
        (ONE, {"num_envs": 3}, "is a finished environment, one: num_envs=3"),
        (lambda: ONE, {"num_envs": 2}, "gave the same environment twice; it must make a new one each time"),
        (FewerAgents, {"num_envs": 2}, "environment 1 has other agents or spaces than the first one"),
        (AgentEnvs(CountingGame, 2), {"num_envs": 3}, "num_envs=3, but env has 2 environments"),
        (CountingGame, {"exploration_noise": "yes"}, "exploration_noise='yes' is not allowed"),
        (CountingGame, {"raise_on_nan_in_buffer": 1}, "raise_on_nan_in_buffer=1 is not allowed"),
        (CountingGame, {"buffer": ReplayBuffer(8)}, "must be an EpisodeStore or a MultiAgentReplayBuffer, or None"),
        (CountingGame, {"buffer": buffer_for({"strangers": ["a"]})}, "buffer is for .*strangers"),
        (CountingGame, {"buffer": buffer_for(AGENTS), "num_envs": 2}, r"in 1 environments; make it for .* in 2"),
        (CountingGame, {"buffer": buffer_for({**AGENTS, "others": ["b"]})}, r"buffer is for .*\['b'\]} in 1 env"),
        (CountingGame, {"buffer": buffer_for({"first": ["a"]})}, r"buffer is for {'first': \['a'\]} in 1 env"),
        (CountingGame, {"policy": Acting()}, "it must be the policy of a configuration with multi_agent"),
    ],
)
def test_what_a_collector_of_several_agents_cannot_be_made_with_is_refused(agents_policy, env, options, words):
    with pytest.raises(ValueError, match=words):
        MultiAgentCollector(**{"policy": agents_policy, "env": env, **options})


@pytest.mark.parametrize(
    "amounts",
    [{}, {"n_step": 4, "n_episode": 1}]
    + [{name: value} for name in ("n_step", "n_episode") for value in (0, -4, 2.5, True, "8")],
    ids=str,
)
def test_amounts_are_exactly_one_whole_number_of_at_least_one(workers, agents_policy, amounts):
    words = "exactly one of n_step and n_episode" if len(amounts) != 1 else f"{next(iter(amounts))}=.* is not allowed"
    collectors = Collector(Acting(), light()), AsyncCollector(Acting(), workers)
    for collector in (*collectors, MultiAgentCollector(agents_policy, CountingGame)):
        with pytest.raises(ValueError, match=words):
            collector.collect(**amounts)
