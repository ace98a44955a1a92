"""A user's first minutes on each promised version of Python: install the wheels, train, resume, predict, export.

`PYTHONS="3.12 3.13" make test-dist` chooses the versions; without it, it is the version that runs the tests. torch has
no small package for the other ones on the Python package index, so each of them is a download of 3 GB.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from release_tools import TORCH, run_outside

pytestmark = [pytest.mark.release, pytest.mark.timeout(1800)]

THIS = f"{sys.version_info.major}.{sys.version_info.minor}"
CHOSEN = os.environ.get("PYTHONS", THIS).split()
PROMISED = ("3.11", "3.12", "3.13")


def interpreter(version: str) -> Path | None:
    """Return a Python of this version that the machine has; None without one."""
    if version == THIS:
        return Path(sys.executable)
    found = shutil.which(f"python{version}")
    of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for path in filter(None, [found, *of_pyenv]):
        # A shim of pyenv is on the path even if the version that it starts is not chosen.
        shown = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
        if shown.startswith(f"Python {version}."):
            return Path(path)
    return None


@pytest.fixture(scope="module", params=PROMISED)
def user(request: pytest.FixtureRequest, dist: Path) -> Iterator[Path]:
    """A folder with an environment `venv` of this Python, which has both packages and the extra `export`."""
    version = request.param
    if version not in CHOSEN:
        pytest.skip(f"Python {version} is not chosen: PYTHONS='{' '.join(PROMISED)}' make test-dist tests all")
    python = interpreter(version)
    if python is None:
        pytest.skip(f"this machine has no Python {version}")
    # Not below `tmp_path`, which may be in memory: torch with CUDA takes 5 GB.
    with tempfile.TemporaryDirectory(prefix=f"lockstep-{version}-") as name:
        folder = Path(name)
        made = run_outside(python, "-m", "venv", folder / "venv", cwd=folder)
        assert made.returncode == 0, made.stderr
        library = next(dist.glob("lockstep_rl-*.whl"))
        door = next(dist.glob("lockstep_sb3-*.whl"))
        wanted = (TORCH, f"{library}[export]", door)
        installed = run_outside(folder / "venv/bin/python", "-m", "pip", "install", "--quiet", *wanted, cwd=folder)
        assert installed.returncode == 0, installed.stderr
        yield folder


def succeed(user: Path, command: str, *words: object) -> str:
    """Run a command of the environment in the user's folder, and return its output."""
    done = run_outside(user / "venv/bin" / command, *words, cwd=user)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


USE = """
import sys
import lockstep

policy = lockstep.load_policy(sys.argv[1])
print(lockstep.__version__, policy.compute_single_action([0.0, 0.1, 0.0, -0.1]))
"""
DOOR = """
from lockstep_sb3 import DQN
from lockstep_sb3.common.evaluation import evaluate_policy

model = DQN("MlpPolicy", "CartPole-v1", learning_starts=32, seed=1).learn(200)
model.save("model")
model = DQN.load("model", env=model.get_env())
print(evaluate_policy(model, model.get_env(), n_eval_episodes=2)[0] >= 1.0)
"""


def test_a_user_trains_resumes_predicts_and_exports(user: Path) -> None:
    assert "munchausen_dqn" in succeed(user, "lockstep", "list")
    succeed(user, "lockstep", "train", "ppo", "CartPole-v1", "--total-steps", 2048, "--seed", 1)
    (run,) = (user / "runs").iterdir()
    succeed(user, "lockstep", "resume", run, "--total-steps", 4096)
    version, action = succeed(user, "python", "-c", USE, run).split()
    assert action in ("0", "1")
    succeed(user, "lockstep", "export", run, "--output", "policy")
    acting = "from policy.act import Actor; print(Actor().act([0.0, 0.1, 0.0, -0.1]))"
    assert succeed(user, "python", "-c", acting).strip() == action
    assert version in succeed(user, "lockstep", "--version")


def test_a_program_for_stable_baselines3_runs(user: Path) -> None:
    assert succeed(user, "python", "-c", DOOR) == "True\n"


def test_environments_in_processes_train_under_each_start_method(user: Path) -> None:
    """Python 3.14 starts processes with `forkserver` by default, macOS and Windows with `spawn`."""
    for method in ("fork", "forkserver", "spawn"):
        program = user / f"with_{method}.py"
        program.write_text(PROCESSES.format(method=method))
        assert succeed(user, "python", program.name) == "2048\n"


PROCESSES = """
import multiprocessing
import lockstep

if __name__ == "__main__":
    multiprocessing.set_start_method("{method}")
    settings = {{"env_runners.vectorize_mode": "async"}}
    result = lockstep.train("ppo", "CartPole-v1", total_steps=2048, num_envs=2, settings=settings, recipe=False)
    print(result.info.train_step)
"""
