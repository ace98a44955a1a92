"""`check_env`: checks of an environment before training, with those of `lockstep.envs.check_environment`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lockstep.envs import check_environment
from lockstep.modules import is_image
from lockstep_sb3.common.torch_layers import channels_last

NUM_STEPS = 500
"""Number of random steps of a check."""
MAX_SECONDS = 2.0
"""Time limit of a check, for slow environments."""
ONLY_WARNED = ("reward_not_finite", "observation_not_finite", "seed_ignored", "limit_ignored")
"""Faults for which Stable-Baselines3 raises no error."""
SMALLEST_IMAGE = 36
"""Height and width that the default network of a `CnnPolicy` needs."""


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
    faults = []
    doubts = []
    for finding in findings:
        if finding.level == "error" and finding.code not in ONLY_WARNED:
            faults.append(finding.message)
        elif finding.level != "info":
            doubts.append(finding.message)
    if faults:
        raise AssertionError(f"{type(env.unwrapped).__name__} cannot be trained on:\n- " + "\n- ".join(faults))

    for message in [*doubts, *_doubts(env)] if warn else []:
        warnings.warn(message, UserWarning, stacklevel=2)
    _check_goals(env)
    if not skip_render_check:
        _check_render(env, warn)


def _doubts(env: gym.Env) -> Iterator[str]:
    """Iterate over reasons why an environment may be hard to learn in."""
    observations = env.observation_space
    parts: dict[str, Any] = dict(observations.spaces) if isinstance(observations, spaces.Dict) else {"": observations}
    for key, space in parts.items():
        name = f"the observation {key}".rstrip()
        if isinstance(space, spaces.Dict | spaces.Tuple):
            yield f"{name} has a nested space {space}; make it a Dict with one level"
        elif isinstance(space, spaces.Box) and len(space.shape) == 3:
            yield from _doubts_of_image(name, space)
        elif isinstance(space, spaces.Box) and len(space.shape) != 1:
            yield f"{name} has the shape {space.shape}, which is no image and no vector; flatten it"

    actions = env.action_space
    if isinstance(actions, spaces.Dict | spaces.Tuple):
        yield f"the action space {actions} has several parts; make it one Box or MultiDiscrete"
    if isinstance(actions, spaces.Box):
        if actions.dtype != np.float32:
            yield f"the action space has the dtype {actions.dtype}; np.float32 saves casts"
        is_finite = np.isfinite(actions.low).all() and np.isfinite(actions.high).all()
        if is_finite and (np.any(actions.low != -actions.high) or np.any(actions.high != 1.0)):
            yield "the action space is not between -1 and 1, where random actions of a new policy are; rescale it"


def _doubts_of_image(name: str, space: spaces.Box) -> Iterator[str]:
    """Iterate over reasons why images may be hard to learn from."""
    if space.dtype != np.uint8:
        yield f"{name} seems to be an image, and has the dtype {space.dtype} instead of np.uint8"
    if np.any(space.low != 0) or np.any(space.high != 255):
        yield f"{name} seems to be an image, and its bounds are not 0 and 255, by which a CnnPolicy divides"
    size = space.shape[:2] if channels_last(space.shape) else space.shape[1:]
    if is_image(space) and min(size) < SMALLEST_IMAGE:
        yield (
            f"{name} is an image of {size[0]} x {size[1]} pixels; the default network of a CnnPolicy needs "
            f"{SMALLEST_IMAGE} x {SMALLEST_IMAGE}"
        )


def _check_goals(env: gym.Env) -> None:
    """Check the observations and rewards of an environment with goals, which has a method `compute_reward`."""
    game: Any = env.unwrapped
    if not hasattr(game, "compute_reward"):
        return
    space = env.observation_space
    if not isinstance(space, spaces.Dict) or not {"observation", "achieved_goal", "desired_goal"} <= set(space.spaces):
        raise AssertionError(
            f"an environment with compute_reward has observations with observation, achieved_goal and desired_goal, "
            f"not {space}"
        )
    env.reset()
    obs, reward, _, _, info = env.step(env.action_space.sample())
    goals = [np.array(obs[key]) for key in ("achieved_goal", "desired_goal")]
    single = game.compute_reward(*goals, info)
    if reward != single:
        raise AssertionError(f"step() gave the reward {reward}, compute_reward() gives {single}; they must be equal")
    batches = [np.array([goal, goal]).reshape(2, *(goal.shape or (1,))) for goal in goals]
    rewards = np.asarray(game.compute_reward(*batches, np.array([info, info])))
    if rewards.shape != (2,) or rewards[0] != reward:
        raise AssertionError(f"compute_reward() gives {rewards} for two equal goals; it must give [{reward}, {reward}]")


def _check_render(env: gym.Env, warn: bool) -> None:
    """Render a frame in the environment's render mode."""
    modes = env.metadata.get("render_modes")
    if warn and not modes:
        warnings.warn("metadata has no 'render_modes'; name those that render() knows", UserWarning, stacklevel=3)
    if env.render_mode is not None:
        if modes and env.render_mode not in modes:
            raise AssertionError(f"render_mode={env.render_mode!r} is none of metadata['render_modes'], {modes}")
        env.render()
