"""`lockstep_sb3.common.env_checker.check_env` finds the faults of an environment."""

from __future__ import annotations

import random
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from small_tasks import Aim, Copy, Picture

from lockstep_sb3.common.env_checker import check_env
from lockstep_sb3.common.env_util import make_vec_env
from lockstep_sb3.common.envs import BitFlippingEnv


class OutsideBox(Copy):
    def _draw(self):
        return super()._draw() + 1.5


class OldStep(Copy):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or truncated, info


class OldReset(Copy):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class TextReward(Copy):
    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, "much", *rest


class NoSpace(Copy):
    def __init__(self):
        super().__init__()
        del self.action_space


@pytest.mark.parametrize("make", [Copy, lambda: gym.make("CartPole-v1")])
def test_a_good_environment_passes_without_a_warning(make):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make())


@pytest.mark.parametrize(
    ("env_class", "named"),
    [
        (OutsideBox, "outside"),
        (OldStep, "expected 5"),
        (OldReset, "reset"),
        (TextReward, "reward at step 1 is 'much'"),
        (NoSpace, "action_space"),
    ],
)
def test_faults_are_assertion_errors_that_name_them(env_class, named):
    with pytest.raises(AssertionError, match=named) as raised:
        check_env(env_class())
    assert env_class.__name__ in str(raised.value)


def test_risks_are_warnings_that_can_be_switched_off():
    env = Aim()
    env.action_space = spaces.Box(-np.inf, np.inf, (1,))
    with pytest.warns(UserWarning, match="infinite bounds"):
        check_env(env)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env, warn=False)


def test_a_vector_is_no_environment_to_check():
    with pytest.raises(AssertionError, match=r"BoundaryVecEnv|DummyVecEnv"):
        check_env(make_vec_env(Copy))


def test_rendering_is_checked_on_request():
    class Dark(Copy):
        render_mode = "rgb_array"

        def render(self):
            raise RuntimeError("no light")

    check_env(Dark())
    with pytest.raises(RuntimeError, match="no light"):
        check_env(Dark(), skip_render_check=False)


class Unseeded(Copy):
    """Environment that draws its numbers from Python's generator, as many do."""

    def _draw(self):
        self.wanted = random.randrange(2)
        return np.array([self.wanted], np.float32)


def test_what_is_no_fault_for_stable_baselines3_is_a_warning():
    with pytest.warns(UserWarning, match=r"super\(\)\.reset"):
        check_env(Unseeded())
    with pytest.warns(UserWarning, match="36 x 36"):
        check_env(Picture())
    with pytest.warns(UserWarning, match="between -1 and 1"):
        check_env(Aim())


def test_rewards_of_goals_are_those_of_compute_reward():
    class Wrong(BitFlippingEnv):
        def compute_reward(self, achieved_goal, desired_goal, _info):
            return super().compute_reward(achieved_goal, desired_goal, _info)[:1]

    check_env(BitFlippingEnv(n_bits=4), warn=False)
    with pytest.raises(AssertionError, match="two equal goals"):
        check_env(Wrong(n_bits=4), warn=False)
