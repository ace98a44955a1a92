"""For every back end and autoreset mode: each transition is one that the counting environment can give."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from parts import one_in

from lockstep.data.trees import map_tree, rows_of
from lockstep.envs import LightSyncVectorEnv, WorkerVectorEnv, make_vector
from lockstep.envs.toys.counting import CountingEnv, CountingVectorEnv

EPISODES = ((1, "terminate"), (3, "truncate"), (2, "both"), (1, "truncate"), (4, "terminate"))
NUM_ENVS = 4
MODES = ("NextStep", "SameStep", "Disabled")


def makers(nested=False):
    return [partial(CountingEnv, EPISODES, offset=row, nested=nested) for row in range(NUM_ENVS)]


BACKENDS = {
    "light": lambda mode: LightSyncVectorEnv(makers()),
    "light_nested": lambda mode: LightSyncVectorEnv(makers(nested=True)),
    "workers": lambda mode: WorkerVectorEnv(makers()),
    "workers_nested": lambda mode: WorkerVectorEnv(makers(nested=True)),
    "sync": lambda mode: SyncVectorEnv(makers(), autoreset_mode=mode),
    "sync_nested": lambda mode: SyncVectorEnv(makers(nested=True), autoreset_mode=mode),
    "sync_no_copy": lambda mode: SyncVectorEnv(makers(), copy=False, autoreset_mode=mode),
    "sync_wrapped": lambda mode: gym.wrappers.vector.RecordEpisodeStatistics(
        SyncVectorEnv(makers(), autoreset_mode=mode)
    ),
    "async": lambda mode: AsyncVectorEnv(makers(), autoreset_mode=mode),
    "async_nested": lambda mode: AsyncVectorEnv(makers(nested=True), autoreset_mode=mode),
    "async_no_copy": lambda mode: AsyncVectorEnv(makers(), copy=False, autoreset_mode=mode),
    "async_pipes": lambda mode: AsyncVectorEnv(makers(), shared_memory=False, autoreset_mode=mode),
    "native": lambda mode: CountingVectorEnv(NUM_ENVS, EPISODES, mode),
    "native_plain_final": lambda mode: CountingVectorEnv(NUM_ENVS, EPISODES, mode, plain_final_obs=True),
}
INVALID = {"async_pipes", "sync_wrapped", "native"}
"""Back ends that cannot reset single rows safely: in NEXT_STEP mode they mark the reset row as invalid."""
SAME_STEP_ONLY = ("light", "light_nested", "workers", "workers_nested", "native_plain_final")
CASES = [(name, mode) for name in BACKENDS for mode in MODES if mode == "SameStep" or name not in SAME_STEP_ONLY]


def transitions(boundary, steps, seeds, rng):
    """Yield the transitions (row, obs, action, reward, next obs, flags) that a collector must read from a boundary."""
    obs = map_tree(np.array, boundary.reset(seeds))
    for _ in range(steps):
        actions = rng.integers(0, 4, NUM_ENVS)
        result = boundary.step(actions)
        next_obs = map_tree(np.array, result.obs)
        done = result.terminateds | result.truncateds
        assert result.any_done == done.any()
        indices, finals = result.final_obs or ([], None)
        np.testing.assert_array_equal(indices, np.flatnonzero(done))
        final = {row: rows_of(finals, k) for k, row in enumerate(indices)}
        for row in range(NUM_ENVS):
            if result.valid is not None and not result.valid[row]:
                assert not done[row]
                continue
            true_next = final[row] if done[row] else rows_of(next_obs, row)
            flags = bool(result.terminateds[row]), bool(result.truncateds[row])
            yield row, counters(rows_of(obs, row)), actions[row], result.rewards[row], counters(true_next), flags
        obs = next_obs


def counters(obs):
    """Step and episode of an observation; its parts agree."""
    if not isinstance(obs, dict):
        return tuple(obs.tolist())
    (step,), (episode, parities) = obs["step"], obs["rest"]
    assert parities.tolist() == [step % 2, episode % 2]
    return step, episode


@pytest.mark.parametrize("backend, mode", one_in(2, CASES))
def test_every_transition_is_real_also_after_explicit_resets(backend, mode):
    """gymnasium's pipes-only workers reset twice after one: no transition may come out of the second reset."""
    rng = np.random.default_rng(5)
    with make_vector(BACKENDS[backend](mode)) as boundary:
        assert boundary.has_invalid_rows == ((mode == "NextStep" and backend in INVALID) or "workers" in backend)
        for steps, seeds in ((60, [0] * NUM_ENVS), (7, None), (1, None), (5, None), (2, None), (12, None)):
            before, seen, endings = {}, np.zeros(NUM_ENVS, int), 0
            for row, obs, action, reward, next_obs, flags in transitions(boundary, steps, seeds, rng):
                (step, episode), (length, ending) = next_obs, EPISODES[int(row + next_obs[1]) % len(EPISODES)]
                assert obs == (step - 1, episode)
                last = before.get(row, (0, episode - 1 if seeds is None else -1.0, True))  # a reset began an episode
                assert obs == ((0, last[1] + 1) if last[2] else last[:2])
                assert reward == 10 * step + action
                assert flags == (step == length and ending != "truncate", step == length and ending != "terminate")
                before[row] = step, episode, any(flags)
                seen[row] += 1
                endings += any(flags)
            if not (mode == "NextStep" and backend in INVALID):
                assert (seen == steps).all()
            assert endings >= steps // 6 * NUM_ENVS


@pytest.mark.parametrize("backend", ["light", "sync", "async", "native"])
@pytest.mark.parametrize("mode", MODES)
def test_infos_of_the_last_step_are_reported(backend, mode):
    with make_vector(BACKENDS[backend](mode)) as boundary:
        boundary.reset([0] * NUM_ENVS)
        told = 0
        for _ in range(20):
            result = boundary.step(np.zeros(NUM_ENVS, dtype=np.int64))
            rows, finals = result.final_obs or ([], None)
            lengths = {row: {"length": finals[k, 0]} for k, row in enumerate(rows)}
            assert result.infos == (lengths or None)
            told += len(lengths)
        assert told >= NUM_ENVS * 4
