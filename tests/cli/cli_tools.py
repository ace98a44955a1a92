"""A small run, the command as a real process, and what a command printed: for all tests of the command line."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from warm import run_python

SMALL = (
    "--total-steps=1024",
    "--set=training.train_batch_size=256",
    "--set=training.minibatch_size=64",
    "--set=training.num_epochs=2",
    "--set=reporting.steps_per_epoch=512",
    "--set=evaluation.evaluation_duration=4",
)
HERE = Path(__file__).parent


def process_env(**more: str) -> dict[str, str]:
    """The environment variables of a real process: one thread, our environments importable."""
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "SDL_VIDEODRIVER": "dummy", **more}


def command(*arguments: str) -> list[str]:
    """Returns the command line of a real process."""
    return [sys.executable, "-m", "lockstep.cli", *arguments]


def run_process(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs the command as a process to its end."""
    return run_python(["-m", "lockstep.cli", *arguments], cwd=cwd, env=process_env())


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    """Starts the command as a process and returns it."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command(*arguments), cwd=cwd, env=process_env(), stdout=pipe, stderr=pipe, text=True)


class Said(NamedTuple):
    """What a command in this process printed, and its exit code."""

    code: int
    out: str
    err: str


class Trained(NamedTuple):
    """The runs of `lockstep train ppo CartPole-v1 --seeds 2`."""

    out: str
    err: str
    code: int
    runs: list[Path]
