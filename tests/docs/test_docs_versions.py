"""The version that files of the repository name is that of the package."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import lockstep_sb3
from lockstep import __version__

ROOT = Path(__file__).parents[2]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
HEADINGS = re.findall(r"^## (\d+\.\d+\.\d+) \((.+)\)$", CHANGELOG, re.MULTILINE)
DATE = r"20\d\d-\d\d-\d\d"


def test_citation_names_the_version_of_the_package():
    (version,) = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert version == __version__


def test_changelog_begins_with_the_version_of_the_package():
    assert len(HEADINGS) == CHANGELOG.count("\n## ")
    versions = [tuple(map(int, version.split("."))) for version, _ in HEADINGS]
    assert HEADINGS[0][0] == __version__
    assert versions == sorted(set(versions), reverse=True)


@pytest.mark.parametrize("version, state", HEADINGS)
def test_changelog_says_when_a_version_was_released(version, state):
    allowed = f"unreleased|{DATE}" if version == __version__ else f"never released|{DATE}"
    assert re.fullmatch(allowed, state), f"{version} ({state})"


def test_a_citation_has_a_date_once_the_version_is_released():
    is_released = re.fullmatch(DATE, HEADINGS[0][1]) is not None
    dates = re.findall(r"^date-released: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert dates == ([HEADINGS[0][1]] if is_released else [])


def test_both_packages_promise_the_same_pythons_and_have_one_version():
    library, door = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
        for folder in (".", "packages/lockstep-sb3")
    )
    assert door["requires-python"] == library["requires-python"]
    assert door["classifiers"] == library["classifiers"]
    assert "version" in library["dynamic"]
    assert "version" in door["dynamic"]
    assert lockstep_sb3.__version__ == __version__


def test_pages_and_examples_name_no_other_version():
    """The image of the examples for Kubernetes, and any `lockstep-rl==VERSION`."""
    pattern = re.compile(r"\blockstep(?::|(?:-rl|-sb3|_rl|_sb3)(?:==|-))(\d+\.\d+\.\d+)")
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for folder in ("docs", "examples", "packages"):
        files += [path for path in (ROOT / folder).rglob("*") if path.suffix in (".md", ".yaml", ".yml", ".toml")]
    named = {(path.name, version) for path in files for version in pattern.findall(path.read_text())}
    assert named
    assert {entry for entry in named if entry[1] != __version__} == set()
