"""Wrong, contradictory and foreign parameters are refused at construction, with their name and what is allowed."""

import math
import re
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from algorithm_cases import OFF_POLICY, class_of, exploring_by
from gymnasium.vector import SyncVectorEnv
from scenario_tools import TRAINERS, trainer_of
from trainer_tools import by_hand, config_for

from lockstep import A2CConfig, Collector, OfflineTrainer, OffpolicyTrainer, OnpolicyTrainer, RolloutStore
from lockstep.envs import make_vector
from lockstep.envs.tensor import TensorBoundary, make_tensor_env
from lockstep.replay import ReplayBuffer, VectorReplayBuffer
from lockstep.rollout import MalformedBufferError, TensorCollector
from lockstep.runs.video import VideoCallback
from lockstep.trainer import Callback, CheckpointCallback, EarlyStop, build_trainer

EVERY = {
    "max_epoch": [-1, 1.5, None, True],
    "batch_size": [0, "64", np.float64(8)],
    "step_per_epoch": [0, None, 1e3],
    "total_steps": [0, 2.5],
    "episode_per_test": [0, 2.5],
    "custom_evaluation_function": ["evaluate"],
    "test_interval": [0],
    "checkpoint_interval": [-1, "often"],
    "train_fn": [3],
    "test_fn": ["now"],
    "stop_fn": [475.0],
    "compute_score_fn": ["mean"],
    "save_best_fn": ["best"],
    "save_checkpoint_fn": ["checkpoints"],
    "logger": ["jsonl"],
    "callbacks": [Callback()],
    "nan_policy": ["skip"],
    "seed": [-1, 1.5],
    "resume_from_log": [1],
    "verbose": [None],
    "show_progress": ["bar"],
    "test_collector": [3],
}
ON = {"repeat_per_collect": [0, None, 2.0], "step_per_collect": [0, 64.0], "train_collector": [None, 3]}
OFF = {"update_per_step": [0, -0.5, True, math.inf], "learning_starts": [-1], "train_collector": [None, 3]}
FOREIGN = {
    "on": {"buffer": [], "update_per_step": 0.5, "learning_starts": 9},
    "off": {"repeat_per_collect": 2},
    "offline": {
        "train_collector": 3,
        "step_per_collect": 3,
        "update_per_step": 0.5,
        "repeat_per_collect": 2,
        "test_in_train": True,
        "reward_metric": len,
    },
}
OTHERS = [
    ("on", {"test_in_train": "yes"}, "test_in_train='yes' is not allowed"),
    ("on", {"step_per_collect": None, "episode_per_collect": 0}, "episode_per_collect=0 is not allowed"),
    (
        "on",
        {"step_per_collect": None},
        "give exactly one of step_per_collect and episode_per_collect, not step",
    ),
    ("on", {"episode_per_test": None}, "episode_per_test=None and step_per_test=None are not allowed"),
    ("on", {"step_per_test": 100}, "step_per_test=100 are not allowed"),
    ("on", {"step_per_test": 0, "episode_per_test": None}, "step_per_test=0 is not allowed"),
    ("on", {"evaluation_parallel_to_training": 1}, "evaluation_parallel_to_training=1 is not allowed"),
    ("on", {"evaluation_parallel_to_training": True}, "a test_collector with a policy of its own"),
    ("off", {"reward_metric": len}, "reward_metric needs several agents, and train_collector has one"),
    ("on", {"resume_from_log": True}, "resume_from_log=True needs a logger that keeps records"),
    ("on", {"callbacks": [lambda event: None]}, "callbacks=[<function"),
]


def refused():
    """`(trainer, options, words of the message)` of each table."""
    for kind, table in (*((kind, EVERY) for kind in TRAINERS), ("on", ON), ("off", OFF)):
        for name, values in table.items():
            yield from ((kind, {name: value}, f"{name}={value!r} is not allowed") for value in values)
    for kind, table in FOREIGN.items():
        yield from ((kind, {name: value}, f"{name} does not apply to ") for name, value in table.items())
    yield from OTHERS


@pytest.mark.parametrize("kind, options, words", refused(), ids=lambda part: str(part).partition(" at 0x")[0])
def test_a_wrong_value_is_refused_with_name_and_value(kind, options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        trainer_of(kind, **options)


@pytest.mark.parametrize("kind", TRAINERS)
def test_parameters_of_other_trainers_may_be_none(kind):
    assert trainer_of(kind, **dict.fromkeys(FOREIGN[kind])).stop_reason is None


@pytest.mark.parametrize("name", ["stop_fn", "test_fn", "save_best_fn", "compute_score_fn"])
@pytest.mark.parametrize("kind", ["on", "offline"])
def test_what_only_evaluation_calls_is_refused_without_it(kind, name):
    with pytest.raises(ValueError, match=f"{name} is never called without evaluation"):
        trainer_of(kind, evaluate=False, **{name: lambda *arguments: None})


def test_an_unknown_parameter_is_refused_by_name_with_the_nearest_one():
    for name, near in (("max_epochs", "max_epoch"), ("learn_starts", "learning_starts"), ("stop_fun", "stop_fn")):
        with pytest.raises(TypeError, match=f"OffpolicyTrainer has no parameter '{name}'; did you mean '{near}'"):
            trainer_of("off", **{name: 3})
    with pytest.raises(TypeError, match=r"OnpolicyTrainer has no parameter 'xyz'; there are batch_size, callbacks, "):
        trainer_of("on", xyz=3)


def test_one_callback_without_a_list_is_refused_before_anything_is_built():
    with pytest.raises(ValueError, match=r"must be a list of .*Callback; put it into one, callbacks=\[...\]"):
        build_trainer(config_for(), callbacks=EarlyStop(patience=1))


@pytest.mark.parametrize(
    "make, name, value",
    [
        (EarlyStop, "threshold", "475"),
        (EarlyStop, "threshold", math.nan),
        (EarlyStop, "patience", 0),
        (EarlyStop, "patience", 1.5),
        (EarlyStop, "time_limit_s", 0),
        (EarlyStop, "time_limit_s", math.inf),
        (partial(CheckpointCallback, "there"), "interval", 1.5),
        (partial(CheckpointCallback, "there"), "num_to_keep", 0),
        (partial(VideoCallback, "there"), "interval", 0),
        (partial(VideoCallback, "there"), "num_episodes", True),
    ],
)
def test_a_wrong_option_of_a_callback_is_refused_with_name_and_value(make, name, value):
    with pytest.raises(ValueError, match=re.escape(f"{name}={value!r} is not allowed; it must be a")):
        make(**{name: value})


COMMON = {"max_epoch": 1, "batch_size": 4, "step_per_epoch": 8}
COLLECT = {**COMMON, "step_per_collect": 8}


def test_a_policy_of_another_kind_is_refused_with_the_trainer_that_fits():
    on, off = trainer_of("on", evaluate=False), trainer_of("off", evaluate=False)
    with pytest.raises(ValueError, match=r"policy of 'a2c' learns from whole rollouts, .*; use OnpolicyTrainer"):
        OffpolicyTrainer(on.policy, train_collector=on.train_collector, **COLLECT)
    with pytest.raises(ValueError, match=r"policy of 'dqn' learns from samples of a buffer, .*; use OffpolicyTrainer"):
        OnpolicyTrainer(off.policy, train_collector=off.train_collector, repeat_per_collect=1, **COLLECT)
    with pytest.raises(ValueError, match=r"policy of 'a2c' learns from whole rollouts, .*; use OnpolicyTrainer"):
        OfflineTrainer(on.policy, buffer=off.buffer, **COMMON)


def test_a_part_that_is_none_or_of_another_policy_is_refused():
    first, other = trainer_of("on"), trainer_of("on")
    with pytest.raises(ValueError, match=r"policy='ppo' is not allowed; it must be a lockstep.Policy"):
        OnpolicyTrainer("ppo", train_collector=first.train_collector, repeat_per_collect=1, **COLLECT)
    with pytest.raises(ValueError, match="test_collector acts with another policy than the one to train"):
        trainer_of("on", test_collector=other.test_collector)


def test_each_trainer_refuses_the_others_buffers():
    policy = A2CConfig().environment("CartPole-v1").build_policy()
    collector = Collector(policy, make_vector("CartPole-v1", num_envs=2), VectorReplayBuffer(20, 2))
    with pytest.raises(ValueError, match="OnpolicyTrainer learns from rollouts, train_collector has a replay buffer"):
        OnpolicyTrainer(policy, train_collector=collector, repeat_per_collect=1, **COLLECT)
    off = trainer_of("off", evaluate=False)
    collector = off.train_collector
    collector.buffer = RolloutStore(5, 2, collector.observation_space, collector.env.action_space)
    with pytest.raises(ValueError, match="OffpolicyTrainer learns from a replay buffer"):
        OffpolicyTrainer(off.policy, train_collector=collector, **COLLECT)


def test_an_empty_or_malformed_buffer_to_begin_with_is_refused():
    def transitions(reward):
        source = trainer_of("off", evaluate=False, max_epoch=1)
        source.run()
        batch = source.buffer.to_batch()
        batch["rewards"][0] = reward
        return ReplayBuffer.from_batch(batch)

    cases = {
        "buffer is an empty replay buffer": VectorReplayBuffer(10, 2),
        "buffer is a list": [1],
        "transitions with NaN": transitions(np.nan),
        "transitions of buffer have -inf in column 'rewards'": transitions(-np.inf),
    }
    for words, buffer in cases.items():
        with pytest.raises(MalformedBufferError, match=words):
            trainer_of("off", buffer=buffer)


def test_evaluation_in_the_environments_of_training_is_refused():
    policy = config_for().build_policy()
    vector = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2)
    first, second = (Collector(policy, vector) for _ in range(2))
    assert first.env is not second.env
    for test_collector in (first, second):
        with pytest.raises(ValueError, match="test_collector has the environments of train_collector"):
            by_hand(config_for(), policy=policy, train_collector=first, test_collector=test_collector)


def test_one_environment_cannot_be_trained_on_and_evaluated_at_once():
    vector = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2)
    with pytest.raises(ValueError, match=r"a function or class that makes them .* evaluation\(evaluation_interval=0\)"):
        config_for(env=vector, num_envs=2).build_trainer()
    trainer = config_for(env=vector, num_envs=2, evaluation={"evaluation_interval": 0}).build_trainer()
    assert next(trainer).train_collect_stat.n_collected_steps == 128


# -- a buffer of the user's own beside the replay section ---

ASKED = [
    ({"n_step": 3}, {}, "the replay buffer has n_step=1, the configuration replay(n_step=3)"),
    ({"prioritized": True}, {}, "has prioritized=False"),
    ({"prioritized": True, "alpha": 0.3}, {"priorities": {"alpha": 0.6}}, "has alpha=0.6"),
    ({"prioritized": True, "beta": 1.0}, {"priorities": {"beta": 0.4}}, "has beta=0.4"),
    ({"ignore_obs_next": True}, {}, "has ignore_obs_next=False"),
    ({"storage": "memmap"}, {}, "has storage='memory'"),
    ({"her": True}, {}, "has her=False"),
]


EACH_STEP = {"step_per_epoch": 8, "step_per_collect": 1, "batch_size": 8}


def with_own_buffer(replay, buffer_options, kind="dqn"):
    """Trainers of all kinds that learn from a buffer of the user's own."""
    plain = {"n_step": 1, "prioritized": False} if kind == "dqn" else {}
    config = config_for(kind, replay={**plain, **replay})
    policy = config.build_policy()

    def collecting():
        buffer = ReplayBuffer(64, **buffer_options)
        collector = Collector(policy, "CartPole-v1", buffer=buffer)
        return OffpolicyTrainer(policy, train_collector=collector, max_epoch=1, **EACH_STEP)

    def from_data():
        data = Collector(policy, "CartPole-v1", buffer=ReplayBuffer(64, **buffer_options))
        data.collect(n_step=32, random=True)
        return OfflineTrainer(policy, buffer=data.buffer, max_epoch=1, step_per_epoch=1, batch_size=8)

    return collecting, from_data


@pytest.mark.parametrize(("replay", "buffer_options", "words"), ASKED, ids=[row[2] for row in ASKED])
def test_a_buffer_that_does_not_do_what_replay_asks_for_is_refused(replay, buffer_options, words):
    for build in with_own_buffer(replay, buffer_options):
        with pytest.raises(ValueError, match=re.escape(words)):
            build()


def test_a_buffer_that_does_it_or_more_is_taken():
    for replay, options in (
        ({"n_step": 3, "prioritized": True}, {"n_step": 3, "priorities": {"beta": [[0, 0.4], [100_000, 1.0]]}}),
        ({}, {"n_step": 2, "priorities": {"alpha": 0.3}}),
    ):
        for build in with_own_buffer(replay, options):
            assert build().buffer.options.n_step == options["n_step"]


OF_ONE_STEP = [name for name in OFF_POLICY if not class_of(name).can_sum_rewards]


@pytest.mark.parametrize("algorithm", OF_ONE_STEP)
def test_summed_rewards_are_refused_by_an_algorithm_that_needs_each(algorithm):
    """Its configuration refuses the option; here a buffer of the user's own has summed them."""
    for build in with_own_buffer({"prioritized": False}, {"n_step": 3}, kind=algorithm):
        with pytest.raises(ValueError, match="sums n_step=3 rewards, and the algorithm needs the reward of each step"):
            build()
    policy = config_for(algorithm, "tensor/CartPole-v1", num_envs=2).build_policy()
    env = TensorBoundary(make_tensor_env("tensor/CartPole-v1", 2))
    collector = TensorCollector(policy, env, 4, replay={"capacity": 64, "n_step": 3})
    with pytest.raises(ValueError, match="sums n_step=3 rewards"):
        OffpolicyTrainer(policy, train_collector=collector, max_epoch=1, **EACH_STEP)


def test_an_own_buffer_must_do_what_is_default_for_the_algorithm():
    for build in with_own_buffer({}, {}, kind=exploring_by("noisy")[0]):
        with pytest.raises(ValueError, match="which only a buffer made from it has"):
            build()
