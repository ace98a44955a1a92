"""`evaluate_policy`: the returns of some episodes."""

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
    """Return mean and deviation of the returns, or the lists of all returns and lengths.

    Each environment of a vector plays its share of the episodes. Returns are those of `infos[i]["episode"]`: of a
    `Monitor`, else as the environments give them, whatever wraps the vector. `warn` changes nothing.
    """
    venv = vector_of(env)
    left = np.array([(n_eval_episodes + i) // venv.num_envs for i in range(venv.num_envs)])
    episodes: list[dict[str, Any]] = []
    observations, states, starts = venv.reset(), None, np.ones(venv.num_envs, bool)
    while left.any():
        actions, states = model.predict(observations, state=states, episode_start=starts, deterministic=deterministic)
        observations, rewards, starts, infos = venv.step(actions)
        for i in np.flatnonzero(left):
            reward, done, info = rewards[i], starts[i], infos[i]
            if callback is not None:
                callback(locals(), globals())
            if done:
                episodes.append(info["episode"])
                left[i] -= 1
        if render:
            venv.render()
    returns, lengths = [float(episode["r"]) for episode in episodes], [int(episode["l"]) for episode in episodes]
    if reward_threshold is not None and not np.mean(returns) > reward_threshold:
        raise AssertionError(f"the mean return is {np.mean(returns):.2f}, not above {reward_threshold:.2f}")
    return (returns, lengths) if return_episode_rewards else (float(np.mean(returns)), float(np.std(returns)))
