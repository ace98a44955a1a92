"""Lockstep imports and trains without what only POSIX systems or only Linux have.

The functions and modules are removed from a process on this system. It is not Windows or macOS: paths, file locks and
process start are still those of Linux (docs/platforms.md says what was never tried).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HIDE = """
import importlib.abc
import os
import signal
import sys

# Before `multiprocessing` is imported, which looks once which of them there are.
for name in ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGXFSZ", "pthread_sigmask", "setitimer"):
    delattr(signal, name)

# What Lockstep stands on has code of its own for each system, and this is the one for Linux.
import gymnasium, filelock, numba, optuna, rich.live, safetensors.torch, tempfile, tyro
import multiprocessing.popen_fork, multiprocessing.spawn, torch, torch._dynamo, torch.distributed

multiprocessing.popen_fork.Popen.kill = multiprocessing.popen_fork.Popen.terminate  # Windows has one for both

os_names = (
    "fork forkpty sched_getaffinity sched_yield getuid geteuid getgid killpg setsid memfd_create posix_fallocate pread "
    "preadv pwrite sysconf uname mkfifo nice getloadavg O_NOFOLLOW O_NONBLOCK"
)
for name in os_names.split():
    delattr(os, name)

HIDDEN = {"fcntl", "grp", "pwd", "resource", "syslog", "termios", "tty"}


class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in HIDDEN:
            raise ImportError(f"no module named {name!r} on this system")


sys.meta_path.insert(0, Hide())
for name in HIDDEN & set(sys.modules):
    del sys.modules[name]
"""

IMPORT_ALL = (
    HIDE
    + """
import pathlib
import lockstep

folder = pathlib.Path(lockstep.__file__).parent
names = []
for path in sorted(folder.rglob("*.py")):
    name = ".".join(("lockstep", *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__")
    if "/eject/files/" not in str(path) and not name.endswith("__main__"):
        names.append(name)
        importlib.import_module(name)
print(len(names) > 200)
"""
)

TRAIN = (
    HIDE
    + """
import multiprocessing
from pathlib import Path
import lockstep
from lockstep.cli import main

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    small = {"training.train_batch_size": 500, "training.minibatch_size": 250, "evaluation.evaluation_duration": 1}
    result = lockstep.train("ppo", "CartPole-v1", total_steps=1000, num_envs=2, recipe=False, settings=small)
    assert lockstep.resume(result.path, total_steps=2000).info.train_step == 2000
    policy = lockstep.load_policy(result.path)
    assert policy.compute_single_action([0.0, 0.1, 0.0, -0.1]) in (0, 1)

    short = {"replay.learning_starts": 50}
    lockstep.train("dqn", "CartPole-v1", total_steps=200, num_envs=1, recipe=False, settings=short)
    assert main(["list"]) in (0, None)
    words = ["train", "ppo", "CartPole-v1", "--total-steps", "1000", "--seeds", "2", "--jobs", "2"]
    assert main(words) in (0, None)
    asynchronous = {**small, "env_runners.vectorize_mode": "async"}
    lockstep.train("ppo", "CartPole-v1", total_steps=500, num_envs=2, recipe=False, settings=asynchronous)
    print("runs:", len(list(Path("runs").iterdir())))
"""
)


def run_hidden(code: str, folder: Path) -> str:
    file = folder / "program.py"
    file.write_text(code)
    done = subprocess.run([sys.executable, file], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_module_is_imported_without_posix_modules(tmp_path: Path) -> None:
    assert run_hidden(IMPORT_ALL, tmp_path).endswith("True\n")


@pytest.mark.long
def test_runs_train_and_resume_without_posix_functions(tmp_path: Path) -> None:
    assert "runs: 5" in run_hidden(TRAIN, tmp_path)
