"""Bad input at every joint is refused by name, before anything is trained."""

from __future__ import annotations

import numpy as np
import pytest
from agent_games import CountingGame, game_config
from algorithm_cases import where
from cue_env import CueEnv
from gymnasium import spaces

from lockstep import Collector, MultiAgentCollector, PPOConfig, RolloutStore, get_config
from lockstep.connectors import Connector
from lockstep.trainer import Callback, SelfPlay


class Growing(Connector):
    """Gives one number more with each call."""

    calls = 0

    def output_space(self, input_space):
        return spaces.Box(-1.0, 1.0, (3,), np.float32)

    def __call__(self, data):
        self.calls += 1
        return np.repeat(data[..., :1], 2 + self.calls, -1)


class Dropping(Connector):
    """Gives back one row less from its third call on."""

    calls = 0

    def __call__(self, data):
        self.calls += 1
        return data[1:] if self.calls > 2 else data


class Unjoined(Connector):
    """Has statistics, and does not say how those of several learners are joined."""

    def __call__(self, data):
        return data

    def update(self, data):
        self.number = len(data)


class Talking(Callback):
    """Logs a text."""

    def on_episode_start(self, episode, env_index):
        self.metrics.log_value("mood", "good")


def seen_through(connector, **learners):
    config = PPOConfig().environment(CueEnv).learners(**learners)
    return config.env_runners(env_to_module_connector=lambda *_: connector, num_envs_per_env_runner=2)


def collecting(config):
    policy = config.build_policy()
    store = RolloutStore(4, 2, policy.stored_observation_space, policy.action_space)
    Collector(policy, config.make_envs(2), store).collect(n_step=8)


def logging_a_text():
    config = PPOConfig().environment(CueEnv).callbacks(Talking).training(train_batch_size=8)
    config.build_trainer().run()


def agents(mapping):
    config = game_config().environment(CountingGame).multi_agent(policies=["a"], policy_mapping_fn=mapping)
    return MultiAgentCollector(config.build_policy(), CountingGame)


def acting_in_a_dict(algorithm):
    env = CueEnv(actions="Dict")
    return get_config(algorithm).build_learner(spaces=(env.observation_space, env.action_space))


ROWS = {
    "a connector that changes shapes between calls": (
        lambda: collecting(seen_through(Growing())),
        ValueError,
        ("Growing", "(2, 4)", "the same shapes in every call"),
    ),
    "a connector that loses rows": (
        lambda: collecting(seen_through(Dropping())),
        ValueError,
        ("Dropping", "as many rows as it gets"),
    ),
    "statistics without update_joined on several learners": (
        lambda: seen_through(Unjoined(), num_learners=2).build_trainer(),
        ValueError,
        ("learners.num_learners=2", "Unjoined", "update_joined"),
    ),
    "a metric logged as text": (logging_a_text, TypeError, ("'mood'", "'good'", "must be a number")),
    "an agent that appears without a policy": (
        lambda: agents(lambda agent, episode: "a" if agent != "c" else "nobody"),
        KeyError,
        ("'c'", "'nobody'", "['a']"),
    ),
    "a pool that is empty": (lambda: SelfPlay(begin_with_copy=False), ValueError, ("begin_with_copy=False", "pool")),
    **{
        f"a Dict action space with {name}": (
            lambda name=name: acting_in_a_dict(name),
            ValueError,
            (name, "Dict('push': Box"),
        )
        for name in where(lambda case: "Dict" not in case.actions)
    },
}


@pytest.mark.parametrize("case", ROWS)
def test_bad_input_at_a_joint_is_refused_by_name(case):
    call, error, words = ROWS[case]
    with pytest.raises(error) as refused:
        call()
    assert [word for word in words if word not in str(refused.value)] == []
