"""`evaluate_policy`: returns of a policy in a number of episodes."""

from __future__ import annotations

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
    the vector environment change them. Raises `AssertionError` if the mean is not above `reward_threshold`. `warn` has
    no effect.
    """
    venv = vector_of(env)
    episodes_left = np.array([(n_eval_episodes + i) // venv.num_envs for i in range(venv.num_envs)])
    episodes: list[dict[str, Any]] = []
    observations = venv.reset()
    states = None
    starts = np.ones(venv.num_envs, bool)
    while episodes_left.any():
        actions, states = model.predict(observations, state=states, episode_start=starts, deterministic=deterministic)
        observations, rewards, starts, infos = venv.step(actions)
        for i in np.flatnonzero(episodes_left):
            # Callbacks read these local variables by the names that Stable-Baselines3 gives them.
            reward = rewards[i]
            done = starts[i]
            info = infos[i]
            if callback is not None:
                callback(locals(), globals())
            if done:
                episodes.append(info["episode"])
                episodes_left[i] -= 1
        if render:
            venv.render()
    returns = [float(episode["r"]) for episode in episodes]
    lengths = [int(episode["l"]) for episode in episodes]
    if reward_threshold is not None and not np.mean(returns) > reward_threshold:
        raise AssertionError(f"the mean return is {np.mean(returns):.2f}, not above {reward_threshold:.2f}")
    return (returns, lengths) if return_episode_rewards else (float(np.mean(returns)), float(np.std(returns)))
