"""Values that are not finite are found in every leaf of nested observations, and in actions."""

from contextlib import closing
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from acting_tools import Acting
from gymnasium import spaces

from lockstep import AsyncCollector, Collector, RolloutStore
from lockstep.envs import LightSyncVectorEnv, make_vector
from lockstep.replay import VectorReplayBuffer
from lockstep.rollout import MalformedBufferError

LEAVES = ("arm/angle", "arm/speed", "eye")
AT, LENGTH = 5, 8


class Nested(gym.Env):
    """Gives `value` in one leaf of what its step `at` leads to."""

    box = spaces.Box(-9.0, 9.0, (2,), np.float32)
    observation_space = spaces.Dict({"arm": spaces.Dict({"angle": box, "speed": box}), "eye": box})
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, leaf="", value=0.0, at=AT):
        self.leaf, self.value, self.at = leaf, value, at

    def look(self):
        seen = {name: np.zeros(2, np.float32) for name in LEAVES}
        if self.steps == self.at and self.leaf:
            seen[self.leaf][1] = self.value
        return {"arm": {"angle": seen["arm/angle"], "speed": seen["arm/speed"]}, "eye": seen["eye"]}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.look(), {}

    def step(self, action):
        self.steps += 1
        return self.look(), 1.0, False, self.steps == LENGTH, {}


class Pushing(Acting):
    """Zeros, but for one value in one row of one step."""

    def __init__(self, value=0.0):
        self.value, self.steps = value, 0

    def act(self, obs, noise):
        actions = np.zeros((len(obs["eye"]), 2), np.float32)
        self.steps += 1
        if self.steps == AT:
            actions[len(actions) // 2, 0] = self.value
        return actions


def collector_of(policy, in_replay, *wrong, kind=Nested):
    env = make_vector(LightSyncVectorEnv([Nested, partial(kind, *wrong), Nested]))
    store = RolloutStore(20, 3, env.observation_space, env.action_space)
    return Collector(policy, env, VectorReplayBuffer(90, 3) if in_replay else store)


@pytest.mark.parametrize("in_replay", [False, True])
@pytest.mark.parametrize(("at", "column", "step"), [(AT, "obs", AT), (LENGTH, "final_obs", LENGTH - 1)])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("leaf", LEAVES)
def test_every_leaf_of_nested_observations_is_looked_at_and_named(leaf, value, at, column, step, in_replay):
    collector = collector_of(Pushing(), in_replay, leaf, value, at)
    with pytest.raises(MalformedBufferError, match=rf"environment 1 .* column '{column}/{leaf}' at step {step} "):
        collector.collect(n_step=60)
    assert len(collector.buffer) == 0


@pytest.mark.parametrize("kind", ["rollout", "replay", "async"])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_actions_that_are_not_finite_are_refused(value, kind):
    if kind == "async":
        env = make_vector(Nested, num_envs=1, mode="async")
        collector = AsyncCollector(Pushing(value), env, VectorReplayBuffer(90, 1))
    else:
        collector = collector_of(Pushing(value), kind == "replay")
    named = rf"environment {0 if kind == 'async' else 1} .* column 'actions' at step {AT - 1} "
    with closing(collector), pytest.raises(MalformedBufferError, match=named):
        collector.collect(n_step=60)
    assert len(collector.buffer) == (AT - 1 if kind == "async" else 0)


class Spreading(Nested):
    """Its rewards are of no use from the step `at` on, and in the step `reward_at`."""

    def __init__(self, leaf="", value=0.0, at=AT, reward_at=None):
        super().__init__(leaf, value, at)
        self.reward_at = reward_at

    def step(self, action):
        obs, reward, *ends = super().step(action)
        spoilt = (self.leaf and self.steps >= self.at) or self.steps == self.reward_at
        return obs, np.nan if spoilt else reward, *ends


class Following(Acting):
    """Acts by what it sees: without an observation that is finite it has no action that is."""

    def act(self, obs, noise):
        return np.array(obs["eye"])


@pytest.mark.parametrize("in_replay", [False, True])
@pytest.mark.parametrize(
    ("at", "reward_at", "named"),
    [
        (AT, None, f"'obs/eye' at step {AT} "),
        (LENGTH, None, f"'final_obs/eye' at step {LENGTH - 1} "),
        (AT, 2, "'rewards' at step 1 "),
    ],
)
def test_what_came_first_is_named_and_not_what_it_spoils(at, reward_at, named, in_replay):
    collector = collector_of(Following(), in_replay, "eye", np.nan, at, reward_at, kind=Spreading)
    with pytest.raises(MalformedBufferError, match=rf"environment 1 .* column {named}"):
        collector.collect(n_step=60)
