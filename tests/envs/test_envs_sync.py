"""The light vectoriser equals single gymnasium environments; its shorter ways through wrappers are safe."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import ClipAction, OrderEnforcing, TimeLimit

from lockstep.envs import LightSyncVectorEnv, make_vector
from lockstep.envs.sync import QuickDiscrete, quicken_action_space, unwrap_step
from lockstep.envs.toys.counting import CountingEnv


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MountainCar-v0", "Pendulum-v1", "Acrobot-v1"])
def test_results_equal_single_environments_bit_for_bit(env_id):
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


MEMBERS = [
    *range(-3, 8),
    *(kind(value) for kind in (np.int64, np.int32, np.int8) for value in range(-3, 8)),
    *(kind(value) for kind in (np.uint64, np.uint8) for value in range(8)),
    True,
    False,
    np.bool_(True),
    1.0,
    np.float64(1.0),
    2**70,
    np.array(1),
    np.array([1]),
    np.array(1, dtype=np.int32),
    "1",
    None,
    (1,),
]


@pytest.mark.parametrize("size, start", [(2, 0), (5, 0), (3, -2), (1, 6)])
def test_quick_discrete_contains_what_discrete_contains(size, start):
    plain, env = Discrete(size, start=start), CountingEnv()
    env.action_space = Discrete(size, start=start)
    quicken_action_space(env)
    assert type(env.action_space) is QuickDiscrete
    for value in MEMBERS:
        assert env.action_space.contains(value) == plain.contains(value), repr(value)
    assert env.action_space == plain
    assert plain == env.action_space
    assert repr(env.action_space) == repr(plain)
    env.action_space.seed(3)
    plain.seed(3)
    assert [env.action_space.sample() for _ in range(20)] == [plain.sample() for _ in range(20)]


def test_other_spaces_are_left_alone():
    for space in (Discrete(3, dtype=np.int32), Discrete(10**6), Box(0, 1), QuickDiscrete(3)):
        env = CountingEnv()
        env.action_space = space
        before = type(space)
        quicken_action_space(env)
        assert type(env.action_space) is before


def test_a_finished_environment_of_the_caller_keeps_its_own_space_class():
    env = gym.make("CartPole-v1")
    make_vector(env)
    assert type(env.action_space) is Discrete


class CountingTwice(TimeLimit):
    """A subclass may do anything, so it is not bypassed."""


def test_unwrap_step_bypasses_exact_classes_from_outside_only():
    env = CountingEnv()
    assert unwrap_step(env) == (env.step, [])
    limited = TimeLimit(OrderEnforcing(TimeLimit(env, 7)), 9)
    assert unwrap_step(limited) == (env.step, [limited, limited.env.env])
    other = CountingTwice(env, 5)
    assert unwrap_step(OrderEnforcing(other)) == (other.step, [])
    within = ClipAction(TimeLimit(gym.make("Pendulum-v1").unwrapped, 5))
    outer = TimeLimit(within, 3)
    assert unwrap_step(outer) == (within.step, [outer])


@pytest.mark.parametrize("limits", [(4,), (4, 6), (6, 4), (1,)])
def test_limits_end_episodes_as_the_wrappers_do(limits):
    def make():
        env = CountingEnv(((5, "terminate"), (3, "truncate"), (4, "terminate"), (9, "terminate")))
        for limit in limits:
            env = OrderEnforcing(TimeLimit(env, limit))
        return env

    boundary, single = LightSyncVectorEnv([make]), make()
    boundary.reset([0])
    single.reset(seed=0)
    for number in range(60):
        if number == 31:  # a reset in mid-episode begins the count of the limit again
            np.testing.assert_array_equal(boundary.reset([0])[0], single.reset(seed=0)[0])
        result = boundary.step(np.array([number % 4]))
        obs, reward, terminated, truncated, _ = single.step(number % 4)
        assert (result.rewards[0], result.terminateds[0], result.truncateds[0]) == (reward, terminated, truncated)
        if terminated or truncated:
            np.testing.assert_array_equal(result.final_obs[1][0], obs)
            obs, _ = single.reset()
        np.testing.assert_array_equal(result.obs[0], obs)
