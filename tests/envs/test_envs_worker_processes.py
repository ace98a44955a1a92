"""Processes of environments: they do not hang where torch has threads, and end with their parent or their vector."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing import connection
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

from lockstep import PPOConfig
from lockstep.envs import CountingEnv, RestartLimits, make_vector
from lockstep.envs.errors import EnvironmentTimeoutError
from lockstep_sb3.common.vec_env import SubprocVecEnv

BIG = 4_000_000
"""More bytes than a socket or a pipe takes at once."""


def is_running(process):
    """Return whether a process has not ended; a zombie has."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_until_gone(processes):
    while any(map(is_running, processes)):
        time.sleep(0.01)


class Threaded(CountingEnv):
    """Uses torch in a way that needs all threads that it has."""

    def reset(self, **options):
        torch.relu(torch.ones(1_000_000)).sum()
        return super().reset(**options)


@pytest.fixture
def forks():
    """Have processes forked from this one, as Linux does by default, where torch has two threads."""
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(2)
    torch.relu(torch.ones(1_000_000)).sum()  # starts the second thread, which a forked process does not have
    yield
    torch.set_num_threads(1)
    multiprocessing.set_start_method(before, force=True)


VECTORS = {
    "workers": lambda make: make_vector(make, num_envs=2, mode="async"),
    "door": lambda make: SubprocVecEnv([make] * 2),
}


@pytest.mark.parametrize("kind", VECTORS)
def test_environments_that_use_torch_start_where_this_process_has_threads(kind, forks):
    vector = VECTORS[kind](Threaded)
    try:
        assert vector.reset().shape == (2, 2)
    finally:
        vector.close()
    assert torch.get_num_threads() == 2


class Slow(CountingEnv):
    """Environment whose step never returns."""

    def step(self, action):
        os.write(1, b"stepping\n")
        while True:
            time.sleep(1)


PARENTS = {
    "workers": "vector = make_vector(Slow, num_envs=2, mode='async')\nvector.reset([0, 1])",
    "workers in a step": """
vector = make_vector(Slow, num_envs=2, mode='async')
vector.reset([0, 1])
vector.send([0, 1], np.zeros(2, np.int64))""",
    "door": "vector = SubprocVecEnv([Slow] * 2)\nvector.reset()\nvector.vector.step_async(np.zeros(2, np.int64))",
}


@pytest.mark.faults
@pytest.mark.parametrize("how", PARENTS)
def test_no_worker_outlives_a_parent_that_was_killed(how):
    code = f"""
import multiprocessing, os, time
import numpy as np
from lockstep_sb3.common.vec_env import SubprocVecEnv
from lockstep.envs import make_vector
from test_envs_worker_processes import Slow
{PARENTS[how]}
processes = " ".join(str(process.pid) for process in multiprocessing.active_children())
os.write(1, f"workers {{processes}}\\n".encode())
time.sleep(1000)
"""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment, text=True) as parent:
        lines = [parent.stdout.readline()]
        expected = 1 if how == "workers" else 3
        while len(lines) < expected:  # both are in the middle of a step, and their numbers are known
            lines.append(parent.stdout.readline())
        parent.kill()
        (found,) = (line.split()[1:] for line in lines if line.startswith("workers"))
        assert len(found) == 2
        wait_until_gone(found)


def worker_processes(vector):
    return [process.pid for process in vector._processes]


def test_a_vector_dropped_without_close_leaves_no_processes_or_files(forks):
    num_open = []
    for _ in range(2):  # the first one opens what `multiprocessing` keeps
        vector = make_vector(CountingEnv, num_envs=2, mode="async")
        vector.reset([0, 1])
        processes = worker_processes(vector)
        assert all(map(is_running, processes))
        del vector
        gc.collect()
        assert not any(map(is_running, processes))
        num_open.append(len(os.listdir("/proc/self/fd")))
    assert num_open[0] == num_open[1]


def test_a_trainer_that_is_dropped_without_close_leaves_no_processes(forks):
    config = PPOConfig().environment(CountingEnv).env_runners(vectorize_mode="async", num_envs_per_env_runner=2)
    config.evaluation(evaluation_interval=1, evaluation_num_envs=2).rl_module(model_config={"hiddens": (4,)})
    trainer = config.build_trainer()
    trainer.train_collector.collect(n_step=4)
    trainer.test_collector.collect(n_episode=2)
    processes = [
        process
        for collector in (trainer.train_collector, trainer.test_collector)
        for process in worker_processes(collector.env)
    ]
    assert len(processes) == 4
    del trainer
    gc.collect()
    assert not any(map(is_running, processes))


class Wide(gym.Env):
    """Takes actions and gives infos that are larger than a pipe."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (BIG // 4,), np.float32)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, True, False, {"picture": bytes(BIG)}


@pytest.mark.parametrize("stopped_in", ["action", "answer"])
def test_step_timeout_holds_within_a_message_larger_than_a_pipe(stopped_in):
    vector = make_vector(Wide, num_envs=1, mode="async", restarts=RestartLimits(in_run=0))
    with vector:
        vector.reset([0])
        (worker,) = worker_processes(vector)
        actions = np.zeros((1, BIG // 4), np.float32)
        if stopped_in == "answer":
            vector.send([0], actions)
            connection.wait([vector._channels[0]])  # its beginning is here, all of it cannot be
            vector._sent.clear()
        os.kill(worker, signal.SIGSTOP)
        vector.step_timeout = 0.05
        with pytest.raises(EnvironmentTimeoutError, match=r"did not answer within step_timeout=0.05 s"):
            if stopped_in == "answer":
                vector._read_answer(0, vector._deadline(), None, "step")
            else:
                vector.step(actions)
        assert not is_running(worker)
