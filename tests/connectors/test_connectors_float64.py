"""Observations with more digits than float32 has are normalised in float64; own networks get floats of their dtype."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from parts import fast_if
from torch import nn

from lockstep import Collector, DQNConfig, PPOConfig
from lockstep.connectors import NormalizeObs
from lockstep.envs import make_vector
from lockstep.export import load_export
from lockstep.modules import RLModule, RLModuleSpec
from lockstep.ops.statistics import RunningMoments
from lockstep.replay import VectorReplayBuffer

UNIX = 1_700_000_050
"""seconds; float32 knows these in steps of 128"""
SECONDS = np.arange(20)[:, None]
RIGHT = (SECONDS - 9.5) / SECONDS.std()


class Clock(gym.Env):
    """Shows the time, one of twenty seconds; an episode has one step, and the reward is 1 for "is it late?"."""

    def __init__(self, dtype=np.float64):
        high = np.inf if np.dtype(dtype).kind == "f" else np.iinfo(dtype).max - 1  # gymnasium draws up to high + 1
        self.observation_space, self.action_space = spaces.Box(0, high, (1,), dtype), spaces.Discrete(2)

    def show(self):
        return np.array([UNIX + self.t], self.observation_space.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = int(self.np_random.integers(20))
        return self.show(), {}

    def step(self, action):
        return self.show(), float(action == (self.t >= 10)), True, False, {}


def fitted(dtype=np.float64):
    connector = NormalizeObs()
    connector.bind(Clock(dtype).observation_space)
    connector.update((SECONDS + UNIX).astype(dtype))
    return connector


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor])
@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int32, np.uint32])
def test_a_clock_keeps_its_seconds_where_it_is_normalised(dtype, convert):
    got = fitted(dtype)(convert((SECONDS + UNIX).astype(dtype)))
    assert got.dtype in (np.float32, torch.float32)
    assert np.allclose(np.asarray(got), RIGHT, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int16, np.float16])
def test_numbers_that_float32_holds_are_normalised_in_float32(dtype):
    connector = NormalizeObs()
    connector.bind(spaces.Box(0, 100, (1,), dtype))
    rows = np.arange(50).astype(dtype)[:, None]
    connector.update(rows)
    moments = connector.moments[0]
    mean, factor = moments.mean.astype(np.float32), (1 / np.sqrt(moments.var + 1e-8)).astype(np.float32)
    assert np.array_equal(connector(rows), np.clip((rows.astype(np.float32) - mean) * factor, -10, 10))


def test_timed_statistics_continue_after_resume_and_join_over_learners():
    whole, first, second = fitted(), NormalizeObs(), NormalizeObs()
    for half in (first, second):
        half.bind(Clock().observation_space)
    seen = [RunningMoments((1,)), RunningMoments((1,))]
    for moments, rows in zip(seen, np.split(SECONDS + UNIX, [7])):
        moments.update(rows)

    def join(_):
        joined = RunningMoments((1,))
        for moments in seen:
            joined.merge(moments)
        return joined

    first.update_joined((SECONDS + UNIX)[:7].astype(float), join)
    second.set_state(first.get_state())
    assert np.allclose(second((SECONDS + UNIX).astype(float)), whole((SECONDS + UNIX).astype(float)), atol=1e-5)


def test_a_replay_buffer_keeps_the_clock_and_the_learner_sees_its_seconds():
    policy = DQNConfig().environment(Clock, normalize_observations=True).build_policy()
    buffer = VectorReplayBuffer(100, 2)
    Collector(policy, make_vector(Clock, num_envs=2), buffer).collect(n_step=60, random=True)
    rows = buffer.all()
    assert rows["obs"].dtype == np.float64
    policy.connectors.update(rows["obs"], None, joined=False)
    learned = policy.learning_columns(rows)["obs"]
    assert len(np.unique(np.asarray(learned))) == len(np.unique(rows["obs"])) > 10


@pytest.mark.parametrize("form", fast_if("onnx".__eq__, ["onnx", "torch"]))
@pytest.mark.parametrize("dtype", [np.float64, pytest.param(np.int64, marks=pytest.mark.long)])
def test_an_export_sees_the_seconds_of_a_clock(tmp_path, form, dtype):
    if form == "onnx":
        pytest.importorskip("onnxruntime")
    config = PPOConfig().environment(Clock, env_config={"dtype": dtype}, normalize_observations=True)
    policy = config.debugging(seed=3).build_policy()
    rows = (SECONDS + UNIX).astype(dtype)
    policy.connectors.update(rows, None, joined=False)
    with torch.no_grad():  # late is action 1
        for layer in [each for each in policy.module.modules() if isinstance(each, nn.Linear)]:
            layer.weight.abs_()
        head = [each for each in policy.module.modules() if isinstance(each, nn.Linear) and each.out_features == 2][-1]
        head.weight[0] = -head.weight[1]
    acted = policy.compute_actions(rows)
    assert len(np.unique(acted)) == 2
    exported = load_export(policy.export(tmp_path / "exported", format=form))
    assert np.array_equal(exported.compute_actions(rows), acted)


@pytest.mark.long
def test_ppo_learns_from_a_clock():
    config = PPOConfig().environment(Clock, normalize_observations=True).debugging(seed=1)
    config = config.env_runners(num_envs_per_env_runner=2).training(train_batch_size=400, lr=5e-3)
    trainer = config.evaluation(evaluation_interval=0).reporting(total_steps=4000).build_trainer()
    trainer.run()
    acted = [int(trainer.policy.compute_single_action(np.array([UNIX + float(t)]))) for t in range(20)]
    assert sum(action == (t >= 10) for t, action in enumerate(acted)) >= 18


# -- networks of one's own ---


class Plain(RLModule):
    """Has weights in float32, and hands the observation to them as it is."""

    def setup(self):
        self.layer = nn.Linear(1, 2)

    def _forward(self, batch):
        return {"action_dist_inputs": self.layer(batch["obs"]), "vf_preds": self.layer(batch["obs"])[..., 0]}

    def compute_values(self, batch):
        return self.layer(batch["obs"])[..., 0]


@pytest.mark.parametrize("framework", ["float32", pytest.param("float64", marks=pytest.mark.long)])
def test_an_own_network_gets_float64_observations_in_its_dtype(tmp_path, framework):
    spec = RLModuleSpec(module_class=Plain)
    config = PPOConfig().environment(Clock).rl_module(rl_module_spec=spec).framework(dtype=framework)
    policy = config.build_policy()
    rows = (SECONDS + UNIX).astype(np.float64)
    for explore in (False, True):
        assert policy.compute_actions(rows, explore=explore).shape == (20,)
    exported = load_export(policy.export(tmp_path / "exported", format="torch"))
    assert np.array_equal(exported.compute_actions(rows), policy.compute_actions(rows))
