"""For every back end and autoreset mode: each stored transition is the one a single environment gives."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from lockstep.envs import make_vector
from lockstep.envs.counting import CountingEnv, CountingVectorEnv
from lockstep.envs.trees import gather

EPISODES = ((1, "terminate"), (3, "truncate"), (2, "both"), (1, "truncate"), (4, "terminate"))
NUM_ENVS, STEPS = 4, 60
MODES = ("NextStep", "SameStep", "Disabled")


def makers(nested=False):
    return [partial(CountingEnv, EPISODES, offset=row, nested=nested) for row in range(NUM_ENVS)]


BACKENDS = {
    "light": lambda mode: make_light(),
    "sync": lambda mode: SyncVectorEnv(makers(), autoreset_mode=mode),
    "sync_no_copy": lambda mode: SyncVectorEnv(makers(), copy=False, autoreset_mode=mode),
    "sync_wrapped": lambda mode: gym.wrappers.vector.RecordEpisodeStatistics(
        SyncVectorEnv(makers(), autoreset_mode=mode)
    ),
    "async": lambda mode: AsyncVectorEnv(makers(), autoreset_mode=mode),
    "async_no_copy": lambda mode: AsyncVectorEnv(makers(), copy=False, autoreset_mode=mode),
    "async_pipes": lambda mode: AsyncVectorEnv(makers(), shared_memory=False, autoreset_mode=mode),
    "native": lambda mode: CountingVectorEnv(NUM_ENVS, EPISODES, mode),
    "native_plain_final": lambda mode: CountingVectorEnv(NUM_ENVS, EPISODES, mode, plain_final_obs=True),
}

ONE_MODE = (
    "light",
    "native_plain_final",
)  # the light vectoriser has no other; only SAME_STEP tells final_obs
CASES = [(name, mode) for name in BACKENDS for mode in MODES if mode == "SameStep" or name not in ONE_MODE]


def make_light(nested=False):
    from lockstep.envs import LightSyncVectorEnv

    return LightSyncVectorEnv(makers(nested))


def copy(tree):
    return gather(tree, slice(None))


def run(boundary, steps, seeds, rng):
    """The transitions of each row, as whoever stores them must read the boundary."""
    obs = copy_deep(boundary.reset(seeds))
    rows = [[] for _ in range(boundary.num_envs)]
    for _ in range(steps):
        actions = rng.integers(0, 4, boundary.num_envs)
        result = boundary.step(actions)
        next_obs = copy_deep(result.obs)
        done = result.terminateds | result.truncateds
        assert result.any_done == done.any()
        if result.final_obs is None:
            assert not done.any()
            final = {}
        else:
            indices, finals = result.final_obs
            np.testing.assert_array_equal(indices, np.flatnonzero(done))
            final = {row: gather(finals, k) for k, row in enumerate(indices)}
        for row in range(boundary.num_envs):
            if result.valid is not None and not result.valid[row]:
                assert not done[row]
                continue
            true_next = final[row] if done[row] else gather(next_obs, row)
            rows[row].append(
                (
                    gather(obs, row),
                    int(actions[row]),
                    float(result.rewards[row]),
                    true_next,
                    bool(result.terminateds[row]),
                    bool(result.truncateds[row]),
                )
            )
        obs = next_obs
    return rows


def copy_deep(tree):
    if isinstance(tree, dict):
        return {key: copy_deep(part) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(copy_deep(part) for part in tree)
    return np.array(tree)


def reference(env, actions, first_seed):
    """The same actions in one single environment."""
    rows = []
    obs, _ = env.reset(seed=first_seed)
    for action in actions:
        next_obs, reward, terminated, truncated, _ = env.step(action)
        rows.append((obs, action, reward, next_obs, terminated, truncated))
        obs = env.reset()[0] if terminated or truncated else next_obs
    return rows


def assert_same(got, expected):
    assert len(got) == len(expected)
    for one, other in zip(got, expected):
        for left, right in zip(one, other):
            if isinstance(left, dict):
                np.testing.assert_array_equal(left["step"], right["step"])
                np.testing.assert_array_equal(left["rest"][0], right["rest"][0])
                np.testing.assert_array_equal(left["rest"][1], right["rest"][1])
            else:
                np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("backend, mode", CASES)
def test_every_transition_equals_the_single_environment(backend, mode):
    boundary = make_vector(BACKENDS[backend](mode))
    with boundary:
        rows = run(boundary, STEPS, [0] * NUM_ENVS, np.random.default_rng(5))
        for row, got in enumerate(rows):
            assert sum(one[4] or one[5] for one in got) > STEPS // 6
            assert_same(got, reference(CountingEnv(EPISODES, offset=row), [one[1] for one in got], 0))
        if not boundary.has_invalid_rows:
            assert all(len(got) == STEPS for got in rows)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("vector", [SyncVectorEnv, AsyncVectorEnv, None])
def test_nested_observations(vector, mode):
    boundary = make_vector(vector(makers(nested=True), autoreset_mode=mode)) if vector else make_light(True)
    with boundary:
        rows = run(boundary, STEPS, [0] * NUM_ENVS, np.random.default_rng(6))
        for row, got in enumerate(rows):
            env = CountingEnv(EPISODES, offset=row, nested=True)
            assert_same(got, reference(env, [one[1] for one in got], 0))


@pytest.mark.parametrize("backend, mode", CASES)
def test_an_explicit_reset_in_mid_run_keeps_every_transition_true(backend, mode):
    """gymnasium's pipes-only workers reset twice after it: no transition may come out of the second reset."""
    boundary = make_vector(BACKENDS[backend](mode))
    rng = np.random.default_rng(7)
    with boundary:
        for steps in (7, 1, 5, 2, 12):
            rows = run(boundary, steps, None, rng)
            for row, got in enumerate(rows):
                for obs, action, reward, next_obs, terminated, truncated in got:
                    assert next_obs[0] == obs[0] + 1
                    assert next_obs[1] == obs[1]
                    assert reward == 10 * next_obs[0] + action
                    length, ending = EPISODES[int(row + obs[1]) % len(EPISODES)]
                    assert terminated == (next_obs[0] == length and ending != "truncate")
                    assert truncated == (next_obs[0] == length and ending != "terminate")


def test_which_back_ends_give_invalid_rows():
    """Where single rows can be reset safely nothing is wasted; elsewhere the reset row is told as invalid."""
    expected = {
        "sync": False,
        "async": False,
        "async_pipes": True,
        "sync_wrapped": True,
        "native": True,
        "light": False,
    }
    for backend, invalid in expected.items():
        with make_vector(BACKENDS[backend]("NextStep")) as boundary:
            assert boundary.has_invalid_rows == invalid, backend


@pytest.mark.parametrize("backend", ["light", "sync", "async", "native"])
@pytest.mark.parametrize("mode", MODES)
def test_infos_of_the_last_step_are_told(backend, mode):
    with make_vector(BACKENDS[backend](mode)) as boundary:
        boundary.reset([0] * NUM_ENVS)
        told = 0
        for _ in range(20):
            result = boundary.step(np.zeros(NUM_ENVS, dtype=np.int64))
            if result.any_done:
                rows = result.final_obs[0]
                assert sorted(result.infos) == rows.tolist()
                for k, row in enumerate(rows):
                    assert result.infos[row] == {"length": result.final_obs[1][k, 0]}
                    told += 1
            else:
                assert result.infos is None
        assert told >= NUM_ENVS * 4
