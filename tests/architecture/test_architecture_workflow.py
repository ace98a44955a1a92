"""The workflow of the public CI: a valid file that runs `.ci/run`, with pinned actions and the promised Pythons."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def steps_of(job: str) -> list[dict[str, Any]]:
    return WORKFLOW["jobs"][job]["steps"]


def test_the_public_ci_runs_the_same_script_as_every_other_ci():
    assert [step["run"] for step in steps_of("all") if step.get("shell") == "bash"] == [".ci/run"]
    triggers = WORKFLOW[True]  # YAML reads the key `on` as a boolean
    assert triggers["push"] == {"branches": ["main"]}
    assert "pull_request" in triggers
    assert WORKFLOW["permissions"] == {"contents": "read"}


def test_the_public_ci_covers_every_python_of_the_classifiers():
    prefix = "Programming Language :: Python :: 3."
    promised = {text.removeprefix(prefix) for text in PROJECT["classifiers"] if text.startswith(prefix)}
    image = WORKFLOW["jobs"]["all"]["container"]["image"]
    (of_image,) = re.findall(r"^python:3\.(\d+)-", image)
    of_release = WORKFLOW["jobs"]["release"]["strategy"]["matrix"]["python"]
    assert {of_image, *(version.removeprefix("3.") for version in of_release)} == promised
    assert PROJECT["requires-python"] == f">=3.{min(promised, key=int)}"


def test_actions_and_machines_of_the_public_ci_are_pinned():
    used = [step["uses"] for job in WORKFLOW["jobs"] for step in steps_of(job) if "uses" in step]
    assert used
    assert [name for name in used if not re.fullmatch(r"actions/[\w-]+@v\d+\.\d+\.\d+", name)] == []
    machines = [job["runs-on"] for job in WORKFLOW["jobs"].values()]
    assert [name for name in machines if "latest" in name] == []
    assert all(job["timeout-minutes"] <= 120 for job in WORKFLOW["jobs"].values())


def test_files_that_the_public_ci_names_exist():
    commands = [step["run"] for job in WORKFLOW["jobs"] for step in steps_of(job) if "run" in step]
    named = re.findall(r"(?:^|\s)((?:\.ci|tests)/\S+)", "\n".join(commands))
    assert ".ci/run" in named
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_the_release_job_installs_what_tests_need():
    """The files of settings of all tests import these packages; Lockstep itself comes from the wheel that is tested."""
    (command,) = [step["run"] for step in steps_of("release") if "pip install" in step.get("run", "")]
    needed = {Requirement(text).name for text in PROJECT["optional-dependencies"]["test"]}
    assert set(command.partition("pip install ")[2].split()) == needed | {"build"}
