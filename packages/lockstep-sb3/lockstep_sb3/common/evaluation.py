"""`evaluate_policy`: returns of a policy in a number of episodes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from lockstep_sb3.common.env_util import vector_of


def evaluate_policy(
    model: Any,
    env: Any,
    n_eval_episodes: int = 10,
    deterministic: bool = True,
    render: bool = False,
    callback: Callable[[dict[str, Any], dict[str, Any]], None] | None = None,
    reward_threshold: float | None = None,
    return_episode_rewards: bool = False,
    warn: bool = True,
) -> Any:
    """Return mean and standard deviation of the returns, or with `return_episode_rewards` all returns and lengths.

    Each environment plays its share of the episodes, so that short episodes do not count more often. Returns are those
    in `infos[i]["episode"]`: from a `Monitor`, or else the sums of the environments' own rewards, before wrappers of
    the vector environment change them. With a `Monitor`, an ending without `"episode"` is no end of an episode, but for
    example a lost life.

    Args:
        model: Model or policy: any object with a method `predict`.
        env: Environment or vector environment.
        n_eval_episodes: Number of episodes.
        deterministic: Whether the policy takes its most likely actions.
        render: Whether to show the environments.
        callback: Function of the local and global variables, called after each step for each environment that still
            plays.
        reward_threshold: Mean return that must be exceeded; else `AssertionError` is raised.
        return_episode_rewards: Return the returns and lengths of all episodes.
        warn: Warn if the returns are sums of rewards that wrappers may have changed.
    """
    venv = vector_of(env)
    n_envs = venv.num_envs
    episodes_left = np.array([(n_eval_episodes + i) // n_envs for i in range(n_envs)])
    episode_rewards: list[float] = []
    episode_lengths: list[int] = []
    has_monitor = bool(getattr(venv, "is_monitored", False))
    current_rewards = np.zeros(n_envs)
    current_lengths = np.zeros(n_envs, int)
    observations = venv.reset()
    states = None
    episode_starts = np.ones(n_envs, bool)
    while episodes_left.any():
        actions, states = model.predict(
            observations, state=states, episode_start=episode_starts, deterministic=deterministic
        )
        new_observations, rewards, dones, infos = venv.step(actions)
        current_rewards += rewards
        current_lengths += 1
        for i in np.flatnonzero(episodes_left):
            # Callbacks read these local variables by the names that Stable-Baselines3 gives them.
            reward = rewards[i]
            done = dones[i]
            info = infos[i]
            if callback is not None:
                callback(locals(), globals())
            if not done:
                continue
            has_monitor = has_monitor or "episode" in info
            if "episode" in info:
                episode_rewards.append(float(info["episode"]["r"]))
                episode_lengths.append(int(info["episode"]["l"]))
                episodes_left[i] -= 1
            elif not has_monitor:
                if warn and not episode_rewards:
                    warnings.warn(
                        "no Monitor counts the episodes, so returns are sums of rewards that wrappers may change; "
                        "wrap the environments in a Monitor, or the vector environment in a VecMonitor",
                        stacklevel=2,
                    )
                episode_rewards.append(float(current_rewards[i]))
                episode_lengths.append(int(current_lengths[i]))
                episodes_left[i] -= 1
        current_rewards[dones] = 0.0
        current_lengths[dones] = 0
        episode_starts = dones
        observations = new_observations
        if render:
            venv.render()

    mean_reward = float(np.mean(episode_rewards))
    if reward_threshold is not None and not mean_reward > reward_threshold:
        raise AssertionError(f"the mean return is {mean_reward:.2f}, not above {reward_threshold:.2f}")
    if return_episode_rewards:
        return episode_rewards, episode_lengths
    return mean_reward, float(np.std(episode_rewards))
