"""`check_env`: checks of an environment before training, with those of `lockstep.envs.check_environment`."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym

from lockstep.envs import check_environment

NUM_STEPS = 500
"""Number of random steps of a check."""
MAX_SECONDS = 2.0
"""Time limit of a check, for slow environments."""


def check_env(env: gym.Env[Any, Any], warn: bool = True, skip_render_check: bool = True) -> None:
    """Step an environment with random actions, and check its spaces, observations, rewards, flags and infos.

    Args:
        env: The environment, which stays open.
        warn: Warn of what may hurt training, such as actions without bounds or rewards of an unusual scale.
        skip_render_check: Do not render. With False the environment is rendered once, if it has a `render_mode`.

    Raises:
        AssertionError: The environment has faults; the message lists them.
    """
    if not isinstance(env, gym.Env):
        raise AssertionError(
            f"check_env got a {type(env).__name__}; it takes one gymnasium.Env, before it is put into a vector"
        )
    findings = check_environment(env, num_steps=NUM_STEPS, max_seconds=MAX_SECONDS)
    faults = [finding.message for finding in findings if finding.level == "error"]
    if faults:
        raise AssertionError(f"{type(env.unwrapped).__name__} cannot be trained on:\n- " + "\n- ".join(faults))

    for finding in findings:
        if warn and finding.level == "warning":
            warnings.warn(finding.message, stacklevel=2)
    if not skip_render_check and env.render_mode is not None:
        env.reset()
        env.render()
