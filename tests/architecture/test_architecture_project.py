"""What a new user meets first: the package's metadata and the Makefile."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
PINS = dict(
    line.split("==") for line in (ROOT / "requirements/constraints.txt").read_text().splitlines() if "==" in line
)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_core_is_small():
    names = {Requirement(text).name for text in PROJECT["dependencies"]}
    needed_by_torch = {"filelock"}
    assert names == {"torch", "numpy", "gymnasium", "numba", "safetensors", "tyro", "rich"} | needed_by_torch


def test_everything_else_is_an_extra():
    extras = PROJECT["optional-dependencies"]
    promised = "ray tensorboard wandb mlflow atari mujoco box2d envpool multiagent offline plot export hub dev all"
    assert set(promised.split()) <= set(extras)
    everything = Requirement(extras["all"][0]).extras
    assert everything == set(extras) - {"all", "dev", "docs", "test"}


def test_the_command_is_installed():
    assert PROJECT["scripts"] == {"lockstep": "lockstep.cli:main"}


@pytest.mark.parametrize("text", PROJECT["dependencies"])
def test_the_tested_version_lies_in_the_range_that_is_promised(text):
    wanted = Requirement(text)
    pins = {canonical(name): version for name, version in PINS.items()}
    if wanted.name == "torch":
        pins["torch"] = re.search(r"torch==([\d.]+)", MAKEFILE)[1]
    assert wanted.specifier.contains(pins[canonical(wanted.name)])


@pytest.mark.parametrize(
    "target",
    [
        "setup",
        "train",
        "test",
        "test-learning",
        "test-long",
        "test-product",
        "test-site",
        "test-dist",
        "dist",
        "lint",
        "bench",
        "pages",
        "docs",
    ],
)
def test_make_knows_the_target(target):
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("target", ["setup", "setup-dev"])
def test_make_says_that_it_installs_before_pip_is_silent(target, tmp_path):
    words = ["make", "--dry-run", f"VENV={tmp_path}/new", target]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    steps = done.stdout.splitlines()
    for index, step in enumerate(steps):
        if "pip install" in step:
            assert any(earlier.startswith('echo "Installing') for earlier in steps[:index]), step


def test_the_package_holds_code_and_templates_alone():
    tracked = subprocess.run(["git", "ls-files", "lockstep"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [Path(name) for name in tracked.stdout.split()]
    templates = {"act.py.txt", "report_page.html", "py.typed"}
    assert [path for path in files if path.suffix != ".py" and path.name not in templates] == []


def test_make_train_trains_to_475():
    assert re.search(
        r"^train:.*\n\t\$\(BIN\)/lockstep train ppo CartPole-v1 --stop-return 475$", MAKEFILE, re.MULTILINE
    )


def test_ci_makes_a_new_environment_and_runs_lint_and_tests():
    script = (ROOT / ".ci/run").read_text()
    assert (ROOT / ".ci/run").stat().st_mode & 0o111
    assert "make VENV=.venv-ci lint" in script
    assert "make VENV=.venv-ci test" in script
    for target in ("test-site", "test-long", "test-dist", "test-kills"):
        assert f"make VENV=.venv-ci {target}" in script
