"""The probes' stated answers are true: they follow from the transitions alone."""

import gymnasium as gym
import numpy as np
import pytest

from lockstep.envs import make_vector
from lockstep.envs.toys.probes import PROBES

GAMMA = 0.7


@pytest.mark.parametrize("probe", PROBES)
def test_the_exact_values_solve_the_bellman_equation_of_the_transitions(probe):
    """One-step targets under the best policy equal the exact value, at every observation."""
    env = probe()
    boundary = make_vector(probe, num_envs=4, seed=0)
    obs = boundary.reset([0, 1, 2, 3]).copy()
    targets = {}
    for _ in range(50):
        best = [env.best_action(row) for row in obs]
        actions = np.stack([boundary.action_space.sample() if action is None else action for action in best])
        result = boundary.step(actions)
        next_obs = result.obs.copy()
        if result.final_obs is not None:
            next_obs[result.final_obs[0]] = result.final_obs[1]
        for row in range(4):
            value = 0.0 if result.terminateds[row] else env.exact_value(next_obs[row], GAMMA)
            targets.setdefault(tuple(obs[row].tolist()), []).append(result.rewards[row] + GAMMA * value)
        obs = result.obs.copy()
    assert set(targets) == set(probe.observations)
    for observation, seen in targets.items():
        np.testing.assert_allclose(seen, env.exact_value(observation, GAMMA), rtol=1e-6)


@pytest.mark.parametrize("probe", [probe for probe in PROBES if probe().best_action([1.0]) is not None])
def test_no_action_is_better_than_the_best(probe):
    env = probe()
    for observation in probe.observations:
        env.reset(seed=0)
        env.current = observation[0]
        best = env.step(env.best_action(observation))[1]
        assert best == pytest.approx(env.exact_value(observation, GAMMA))
        candidates = np.linspace(-1, 1, 41)[:, None] if probe.continuous else [0, 1]
        rewards = []
        for action in candidates:
            env.current = observation[0]
            rewards.append(env.step(action)[1])
        assert max(rewards) <= best
        assert min(rewards) < best - 0.2


@pytest.mark.parametrize("probe", PROBES)
def test_ids_are_known_once_asked_for(probe):
    boundary = make_vector(f"lockstep/{probe.__name__}-v0", num_envs=2, seed=1)
    assert type(boundary.envs[0].unwrapped) is probe
    assert f"lockstep/{probe.__name__}-v0" in gym.registry
    assert isinstance(boundary.action_space, gym.spaces.Box) == probe.continuous


def test_mean_return_is_the_stated_one():
    for probe in PROBES:
        env = probe()
        obs, _ = env.reset(seed=0)
        returns, total = [], 0.0
        for _ in range(2000):
            action = env.best_action(obs)
            obs, reward, terminated, truncated, _ = env.step(env.action_space.sample() if action is None else action)
            total += reward
            if terminated or truncated:
                returns.append(total)
                total = 0.0
                obs, _ = env.reset()
        assert np.mean(returns) == pytest.approx(probe.best_return, abs=0.1), probe
