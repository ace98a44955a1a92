"""Epsilon in the statistics of a collect: the value that each kind of collector has used."""

from functools import partial

import pytest
from agent_games import game_config
from algorithm_cases import class_of, exploring_by
from runner_tools import ManyRunners

from lockstep import AsyncCollector, Collector, DQNConfig, PPOConfig, TD3Config
from lockstep.learner.learner import STEPS_SAMPLED
from lockstep.options.restarts import RestartLimits
from lockstep.policy.policy import policy_within_training_step
from lockstep.rollout import EnvRunnerGroup, GroupCollector, MultiAgentCollector
from lockstep.tracking.records import aggregate
from lockstep.tracking.statistics import CollectStats
from lockstep.tracking.totals import Totals

MODULE = "default_policy"
SCHEDULE = [[0, 1.0], [100, 0.5]]
STEP, NOW = 20, 0.9
"""an environment step, and the value of the schedule there"""


def dqn_config(env="CartPole-v1", **runners):
    config = DQNConfig().environment(env).training(epsilon=SCHEDULE).rl_module(model_config={"hiddens": (4,)})
    return config.env_runners(num_envs_per_env_runner=2, **runners).debugging(seed=1)


def training(policy, collector, **how):
    """Collect in a training step that begins at step `STEP`."""
    policy.timesteps[STEPS_SAMPLED] = STEP
    with policy_within_training_step(policy):
        return collector.collect(n_step=8, **how)


def in_this_process():
    config = dqn_config()
    policy = config.build_policy()
    return policy, config.build_collector(policy)


def asynchronous():
    config = dqn_config()
    policy = config.build_policy()
    return policy, AsyncCollector(policy, "CartPole-v1", num_envs=2)


def on_a_device():
    config = dqn_config("tensor/CartPole-v1", rollout_fragment_length=4)
    policy = config.build_policy()
    return policy, config.build_collector(policy)


def env_runners():
    config = dqn_config()
    policy = config.build_policy()
    runners = ManyRunners(partial(config.build_env_runner, config.find_spaces()), 2)
    group = EnvRunnerGroup(runners, config.sections["env_runners"], RestartLimits(1, 1, 60.0))
    return policy, GroupCollector(policy, group)


COLLECTORS = [in_this_process, asynchronous, on_a_device, env_runners]


@pytest.mark.parametrize("make", COLLECTORS)
def test_a_collect_reports_the_epsilon_that_it_used(make):
    policy, collector = make()
    stats = training(policy, collector)
    assert stats.epsilon == {MODULE: pytest.approx(NOW)}
    assert stats.to_dict()["epsilon"] == pytest.approx(NOW)
    if make is not on_a_device:  # its random actions are for a replay buffer
        assert training(policy, collector, random=True).epsilon == {MODULE: 1.0}
    collector.close()


def test_actions_that_are_not_by_chance_have_no_epsilon():
    config = dqn_config()
    stats = Collector(config.build_policy(), config.make_envs(2)).collect(n_step=8)
    assert stats.epsilon == {}
    assert "epsilon" not in stats.to_dict()


def test_an_evaluation_reports_its_own_epsilon():
    config = dqn_config().evaluation(epsilon=0.25, evaluation_num_envs=1)
    policy = config.build_policy()
    assert config.build_test_collector(policy).collect(n_episode=1).epsilon == {MODULE: 0.25}


@pytest.mark.parametrize(
    ("make", "env"),
    [(class_of(exploring_by("noisy")[0]), "CartPole-v1"), (TD3Config, "Pendulum-v1"), (PPOConfig, "CartPole-v1")],
)
def test_exploration_of_another_kind_has_no_epsilon(make, env):
    config = make().environment(env).rl_module(model_config={"hiddens": (4,)})
    policy = config.build_policy()
    collector = config.build_collector(policy)
    for random in (False, True):
        assert training(policy, collector, random=random).epsilon == {}


def test_several_agents_have_an_epsilon_for_each_module():
    config = game_config(algorithm=DQNConfig, training={"epsilon": SCHEDULE})
    policy = config.build_policy()
    collector = config.build_collector(policy)
    assert isinstance(collector, MultiAgentCollector)
    stats = training(policy, collector)
    assert stats.to_dict()["epsilon"] == stats.epsilon == {"first": pytest.approx(NOW), "others": pytest.approx(NOW)}
    assert training(policy, collector, random=True).epsilon == {"first": 1.0, "others": 1.0}


def test_several_collects_keep_the_last_epsilon():
    parts = [CollectStats(0, 8, epsilon={"a": 0.9, "b": 0.5}), CollectStats(0, 8, epsilon={"a": 0.8})]
    totals = Totals()
    for part in parts:
        totals.add_collect(part)
    whole = totals.collect_stats()
    assert whole.epsilon == {"a": 0.8, "b": 0.5}
    assert CollectStats.from_state(whole.get_state()) == whole
    assert aggregate([{"epsilon": 0.9}, {"epsilon": 0.8}]) == {"epsilon": 0.8}
    assert aggregate([{"epsilon/a": 0.9}, {"epsilon/a": 0.8}]) == {"epsilon/a": 0.8}
