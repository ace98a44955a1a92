"""The version that files of the repository name is that of the package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
