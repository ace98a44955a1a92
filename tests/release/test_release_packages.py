"""The packages of `make dist`, installed without the source into an empty environment, as a user would (use, 6)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from language_server import language_server
from release_tools import ROOT, SB3, TORCH, run_outside

import lockstep
from lockstep import ALGORITHMS, DQNConfig, OfflineTrainer, OffpolicyTrainer, OnpolicyTrainer

BIN = Path(sys.executable).parent
pytestmark = [pytest.mark.release, pytest.mark.timeout(600)]


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    return next(dist.glob("lockstep_rl-*.whl"))


@pytest.fixture(scope="session")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has nothing but the wheel and what it needs."""
    folder = tmp_path_factory.mktemp("empty")
    made = run_outside(sys.executable, "-m", "venv", folder, cwd=folder)
    assert made.returncode == 0, made.stderr
    python = folder / "bin" / "python"
    installed = run_outside(python, "-m", "pip", "install", "--quiet", TORCH, wheel, cwd=folder)
    assert installed.returncode == 0, installed.stderr
    return python


def test_the_packages_hold_the_library_and_nothing_else(dist: Path, wheel: Path) -> None:
    version = lockstep.__version__
    assert {path.name for path in dist.iterdir()} == {
        f"lockstep_rl-{version}.tar.gz",
        f"lockstep_rl-{version}-py3-none-any.whl",
        f"lockstep_sb3-{version}.tar.gz",
        f"lockstep_sb3-{version}-py3-none-any.whl",
    }
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()
    in_wheel = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(["git", "ls-files", "lockstep"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {name for name in in_wheel if ".dist-info/" not in name} == set(tracked.stdout.split())
    with tarfile.open(next(dist.glob("lockstep_rl-*.tar.gz"))) as sdist:
        tops = {name.split("/")[1] for name in sdist.getnames()}
    assert {"lockstep", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "pyproject.toml"} <= tops
    assert not {"tests", "benchmarks", "packages", ".venv"} & tops


def test_the_sb3_package_holds_its_code_and_needs_exactly_this_version(dist: Path) -> None:
    (wheel,) = dist.glob("lockstep_sb3-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
    tracked = subprocess.run(["git", "ls-files", "lockstep_sb3"], cwd=SB3, capture_output=True, text=True, check=True)
    assert names == set(tracked.stdout.split())
    assert "lockstep_sb3/py.typed" in names
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist:") and "extra" not in line]
    assert required == [f"Requires-Dist: lockstep-rl=={lockstep.__version__}"]


@pytest.fixture(scope="session")
def run(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was trained there."""
    folder = tmp_path_factory.mktemp("user")
    command = (python.with_name("lockstep"), "train", "ppo", "CartPole-v1", "--total-steps", 4096)
    trained = run_outside(*command, cwd=folder)
    assert trained.returncode == 0, trained.stderr
    return next((folder / "runs").iterdir())


def test_train_and_evaluate_in_an_empty_environment(python: Path, run: Path) -> None:
    code = "import lockstep; print(lockstep.__version__, lockstep.__file__)"
    version, file = run_outside(python, "-c", code, cwd=run).stdout.split()
    assert version == lockstep.__version__
    assert Path(file).is_relative_to(python.parents[1])
    assert json.loads((run / "summary.json").read_text())["train_step"] == 5000  # whole collects
    evaluated = run_outside(python.with_name("lockstep"), "eval", run, "--episodes", 2, cwd=run)
    assert evaluated.returncode == 0, evaluated.stderr


@pytest.mark.parametrize(("algorithm", "env"), [("ppo", "CartPole-v1"), ("dqn", "CartPole-v1"), ("sac", "Pendulum-v1")])
def test_an_ejected_file_trains_in_an_empty_environment(python: Path, tmp_path: Path, algorithm: str, env: str) -> None:
    """`lockstep eject` finds its files in the wheel, and what it writes runs."""
    command = (python.with_name("lockstep"), "eject", algorithm, env, "-o", "agent.py", "--total-steps", 1200)
    ejected = run_outside(*command, "--set", "evaluation.evaluation_duration=1", cwd=tmp_path)
    assert ejected.returncode == 0, ejected.stderr
    trained = run_outside(python, "agent.py", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert trained.stdout.splitlines()[-1].startswith("evaluation: return ")


@pytest.mark.parametrize(
    ("command", "package"),
    [
        ("export {run}", "onnx"),
        ("tune ppo CartPole-v1 --trials 1 --total-steps 2048", "optuna>=4.4"),
        ("train ppo CartPole-v1 --num-learners 2", "ray>=2.40"),
        ("train ppo ALE/Pong-v5", "ale-py"),
    ],
)
def test_a_hint_names_what_can_be_installed(python: Path, run: Path, command: str, package: str) -> None:
    refused = run_outside(python.with_name("lockstep"), *command.format(run=run).split(), cwd=run)
    assert refused.returncode != 0
    hint = re.search(r"pip install (.*)", refused.stderr + refused.stdout)
    assert hint is not None, refused.stderr
    assert package in hint[0]
    assert "lockstep" not in hint[0]  # which is on no index


PROGRAM = """
from lockstep_sb3 import PPO
from lockstep.compat.sb3.common.env_util import make_vec_env

envs = make_vec_env("CartPole-v1", n_envs=2, seed=1)
PPO("MlpPolicy", envs, n_steps=32, batch_size=32, n_epochs=1).learn(64).save("model")
print(PPO.load("model", env=envs).num_timesteps)
"""


def test_old_names_say_what_to_install_and_work_with_the_package(python: Path, dist: Path, tmp_path: Path) -> None:
    refused = run_outside(python, "-c", PROGRAM.replace("lockstep_sb3", "lockstep.compat.sb3"), cwd=tmp_path)
    assert refused.returncode != 0
    assert "pip install lockstep-sb3" in refused.stderr

    installed = run_outside(
        python, "-m", "pip", "install", "--quiet", next(dist.glob("lockstep_sb3-*.whl")), cwd=tmp_path
    )
    assert installed.returncode == 0, installed.stderr
    trained = run_outside(python, "-W", "always::DeprecationWarning", "-c", PROGRAM, cwd=tmp_path)
    removed = run_outside(python, "-m", "pip", "uninstall", "--yes", "--quiet", "lockstep-sb3", cwd=tmp_path)
    assert removed.returncode == 0, removed.stderr
    assert trained.stdout == "64\n", trained.stderr
    assert "lockstep.compat.sb3 has moved: import from lockstep_sb3" in trained.stderr


USER = """
from lockstep import DQNConfig, PPOConfig, load_policy, train

reveal_type(PPOConfig().environment("CartPole-v1").training(lr=1e-3))
reveal_type(train("ppo", "CartPole-v1").policy)
PPOConfig().training(lrr=1e-3)
DQNConfig().env_runners(num_envs_per_env_runner="many")
"""


def test_pyright_and_mypy_see_the_types(python: Path, tmp_path: Path) -> None:
    file = tmp_path / "user.py"
    file.write_text(USER)
    checkers = {
        "pyright": run_outside(BIN / "pyright", "--pythonpath", python, file, cwd=tmp_path),
        "mypy": run_outside(BIN / "mypy", "--python-executable", python, file, cwd=tmp_path),
    }
    for name, result in checkers.items():
        found = result.stdout
        assert re.search(r"user.py:4\b.*PPOConfig\"", found), (name, found, result.stderr)
        assert re.search(r"user.py:5\b.*Policy\"", found), (name, found)
        assert re.search(r"user.py:6\b.*error.*lrr", found), (name, found)
        assert re.search(r"user.py:7\b.*error.*str|user.py:7\b.*error.*many", found), (name, found)
        assert len(re.findall(r"\berror:", found)) == 2, (name, found)


def test_an_editor_completes_all_options(python: Path, tmp_path: Path) -> None:
    """Each option of each section, each training option of each algorithm, and each option of each trainer."""
    calls: dict[str, set[str]] = {}
    for kind in ALGORITHMS:
        name = kind.__name__
        for section, options in kind().sections.items():
            # Sections other than `training` are the same classes for all; DQN has a replay section too.
            if section == "training" or kind is DQNConfig:
                text = f"from lockstep import {name}\n\n{name}().{section}("
                calls[text] = {f"{option}=" for option in options.options()}
    for trainer in (OnpolicyTrainer, OffpolicyTrainer, OfflineTrainer):
        text = f"from lockstep import {trainer.__name__}\n\n{trainer.__name__}("
        calls[text] = {"policy=", *(f"{option}=" for option in trainer.options_class.declared())}
    assert len(calls) > 33
    with language_server(BIN / "pyright-langserver", python, tmp_path) as server:
        for number, (text, expected) in enumerate(calls.items()):
            offered = server.completions(tmp_path / f"user_{number}.py", text)
            assert expected <= offered, (text, sorted(expected - offered))
