"""The light vectoriser equals single gymnasium environments, step for step."""

import gymnasium as gym
import numpy as np
import pytest

from lockstep.envs import make_vector


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MountainCar-v0", "Pendulum-v1", "Acrobot-v1"])
def test_equals_single_environments_bit_by_bit(env_id):
    num_envs, steps = 3, 700
    boundary = make_vector(env_id, num_envs=num_envs)
    singles = [gym.make(env_id) for _ in range(num_envs)]
    obs = boundary.reset([7, 8, 9])
    for row, env in enumerate(singles):
        np.testing.assert_array_equal(obs[row], env.reset(seed=7 + row)[0])
    space = boundary.action_space
    space.seed(1)
    endings = 0
    for _ in range(steps):
        actions = np.stack([space.sample() for _ in range(num_envs)])
        result = boundary.step(actions)
        assert result.valid is None
        finals = {} if result.final_obs is None else dict(zip(result.final_obs[0], result.final_obs[1]))
        for row, env in enumerate(singles):
            obs, reward, terminated, truncated, _ = env.step(actions[row])
            assert result.rewards[row] == reward
            assert result.terminateds[row] == terminated
            assert result.truncateds[row] == truncated
            assert (row in finals) == (terminated or truncated)
            if terminated or truncated:
                endings += 1
                np.testing.assert_array_equal(finals[row], obs)
                obs, _ = env.reset()
            np.testing.assert_array_equal(result.obs[row], obs)
        assert result.any_done == bool(finals)
    assert endings >= num_envs
