"""Steps in worker processes equal the same steps in this process, through shared memory or pickled."""

import multiprocessing
import os
import signal
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from lockstep.data.trees import leaves, map_tree
from lockstep.envs import CountingEnv, make_vector
from lockstep.envs.channel import Channel

EPISODES = ((3, "terminate"), (2, "truncate"), (4, "both"))


class Hearing(gym.Env):
    """Ends after three steps, with the types of its actions in the info, and all actions that it was given so far.

    It writes into arrays that it gets, as some environments do.
    """

    observation_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, action_space):
        self.action_space = action_space
        self.kept = []

    def reset(self, *, seed=None, options=None):
        self.kept = []
        return np.zeros(1, np.float32), {}

    def step(self, action):
        kinds = [(type(leaf).__name__, str(leaf.dtype), leaf.shape) for leaf in leaves(action)]
        self.kept.append(action)
        heard = [map_tree(lambda leaf: np.asarray(leaf).tolist(), each) for each in self.kept]
        for leaf in leaves(action):
            if isinstance(leaf, np.ndarray):
                leaf[...] += 1
        return np.zeros(1, np.float32), 1.0, len(self.kept) == 3, False, {"kinds": kinds, "heard": heard}


BOX = spaces.Box(-5, 5, (2,), np.float32)
ACTIONS = {
    "choices": (spaces.Discrete(4), np.arange(6) % 4),
    "choices as int32": (spaces.Discrete(4), np.arange(6, dtype=np.int32) % 4),
    "numbers": (BOX, np.arange(12, dtype=np.float32).reshape(6, 2)),
    "numbers as float64": (BOX, np.linspace(0, 1, 12).reshape(6, 2)),
    "several choices": (spaces.MultiDiscrete([3, 4]), np.arange(12).reshape(6, 2) % 3),
    "flags": (spaces.MultiBinary(2), np.eye(2, dtype=np.int8)[np.arange(6) % 2]),
    "a dict": (spaces.Dict(a=BOX, b=spaces.Discrete(4)), {"a": np.ones((6, 2), np.float32), "b": np.arange(6) % 4}),
}


def hear(mode, space, actions):
    """Return what two environments say of their actions at the end of an episode."""
    with make_vector(lambda: Hearing(space), num_envs=2, mode=mode) as vector:
        vector.reset([0, 1])
        for step in range(3):
            rows = slice(2 * step, 2 * step + 2)
            given = {key: part[rows] for key, part in actions.items()} if isinstance(actions, dict) else actions[rows]
            result = vector.step(given)
        return result.infos


@pytest.mark.parametrize("case", ACTIONS)
def test_environments_get_actions_of_the_same_types_as_in_this_process(case):
    space, actions = ACTIONS[case]
    in_workers = hear("async", space, actions)
    assert len(in_workers) == 2
    assert in_workers == hear("sync", space, actions)


def outcome(result):
    """Return copies of all fields of a step's result."""
    final = result.final_obs and (result.final_obs[0].tolist(), map_tree(np.ndarray.tolist, result.final_obs[1]))
    arrays = (result.obs, result.rewards, result.terminateds, result.truncateds)
    return [map_tree(np.ndarray.tolist, array) for array in arrays], final, result.infos, result.any_done


@pytest.mark.parametrize(
    ("make", "space"),
    [
        ("CartPole-v1", spaces.Discrete(2)),
        ("Pendulum-v1", spaces.Box(-2, 2, (1,), np.float32)),
        (partial(CountingEnv, EPISODES, nested=True), spaces.Discrete(4)),
    ],
    ids=["CartPole", "Pendulum", "nested"],
)
def test_steps_and_single_rows_in_workers_equal_those_in_this_process(make, space):
    space.seed(3)
    actions = np.stack([space.sample() for _ in range(180)]).reshape(60, 3, *space.shape)
    with make_vector(make, num_envs=3, mode="async") as workers, make_vector(make, num_envs=3, mode="sync") as here:
        seeds = [5, 6, 7]
        first = [map_tree(np.ndarray.tolist, vector.reset(seeds)) for vector in (workers, here)]
        assert first[0] == first[1]
        for each in actions[:40]:
            assert outcome(workers.step(each)) == outcome(here.step(each))
        for each in actions[40:]:
            workers.send([0, 1, 2], each)
            arrived = []
            while workers.in_flight:
                arrived += workers.receive(3)
            expected = here.step(each)
            for answer in arrived:
                row = answer.row
                assert answer.reward == expected.rewards[row]
                assert (answer.terminated, answer.truncated) == (expected.terminateds[row], expected.truncateds[row])
                assert (answer.info or {}) == (expected.infos or {}).get(row, {})
            following = (map_tree(np.ndarray.tolist, vector.obs) for vector in (workers._result, expected))
            assert next(following) == next(following)


def step_together(vector, actions):
    """Step all rows; return the reward of each row, whether its episode ended, and whether it was lost."""
    result = vector.step(actions)
    lost = [] if result.lost is None else result.lost.tolist()
    flags = zip(result.rewards.tolist(), result.terminateds.tolist(), result.truncateds.tolist())
    return [(*each, row in lost) for row, each in enumerate(flags)]


def step_apart(vector, actions):
    """Send to each row and receive whichever is ready; return what `step_together` does."""
    vector.send(range(vector.num_envs), actions)
    arrived = {}
    while vector.in_flight:
        arrived |= {answer.row: answer for answer in vector.receive(vector.num_envs)}
    answers = [arrived[row] for row in range(vector.num_envs)]
    return [(answer.reward, answer.terminated, answer.truncated, answer.lost) for answer in answers]


@pytest.mark.parametrize("step", [step_together, step_apart])
def test_a_restarted_worker_leaves_nothing_of_its_last_step_in_a_row(step):
    with make_vector(partial(CountingEnv, ((1, "both"),)), num_envs=2, mode="async") as vector:
        vector.reset([0, 1])
        zeros = np.zeros(2, np.int64)
        ended = (10.0, True, True, False)
        assert step(vector, zeros) == [ended, ended]
        os.kill(vector._processes[1].pid, signal.SIGKILL)
        with pytest.warns(RuntimeWarning, match="environment 1 ended without an answer"):
            answers = step(vector, zeros)
        assert answers == [ended, (0.0, False, False, True)]
        assert step(vector, zeros) == [ended, ended]  # the new worker has the same memory


@pytest.fixture
def start_method(request):
    """Have processes started as the parameter says."""
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method(request.param, force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


@pytest.mark.long
@pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"], indirect=True)
@pytest.mark.usefixtures("start_method")
def test_workers_share_memory_however_they_are_started():
    with make_vector(partial(CountingEnv, EPISODES), num_envs=2, mode="async") as vector:
        assert vector.reset([0, 1]).tolist() == [[0, 0], [0, 0]]
        result = vector.step(np.array([1, 3]))
        assert (result.obs.tolist(), result.rewards.tolist()) == ([[1, 0], [1, 0]], [11.0, 13.0])


def test_empty_and_full_messages_arrive_apart_and_in_order():
    ours, theirs = Channel.pair()
    sent = [b"", b"a", b"", b"", b"x" * 100_000, b""]
    for message in sent[:4]:
        ours.send(message)
    with pytest.raises(TimeoutError):
        ours.receive(deadline=0.0)
    received = [theirs.receive() for _ in range(4)]
    for message in sent[4:]:
        ours.send(message, deadline=None)
        received.append(theirs.receive())
    assert received == sent
    ours.close()
    with pytest.raises(EOFError):
        theirs.receive()
    theirs.close()
