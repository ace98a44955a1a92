"""`lockstep_sb3.common.env_checker.check_env` finds the faults of an environment."""

from __future__ import annotations

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from small_tasks import Aim, Copy

from lockstep_sb3.common.env_checker import check_env
from lockstep_sb3.common.env_util import make_vec_env


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


@pytest.mark.parametrize("make", [Copy, Aim, lambda: gym.make("CartPole-v1")])
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
