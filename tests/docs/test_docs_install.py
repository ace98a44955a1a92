"""Every page that installs Lockstep has the line for a torch without CUDA, which is a tenth of the download."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
for folder in ("docs", "packages", "examples"):
    PAGES += sorted((ROOT / folder).rglob("*.md"))

INSTALLS = re.compile(
    r"^.*(?:(?<!\.venv/bin/)pip install .*(?:\.\[|\./packages|lockstep)|\bmake (?:train|setup)).*$", re.MULTILINE
)
"""A line that installs Lockstep, and with it torch. `.venv/bin/pip` adds an extra to what `make train` installed."""
CPU_LINE = re.compile(r"pip install torch(?:==[\d.]+)? --index-url https://download\.pytorch\.org/whl/cpu")
TORCH = re.search(r"torch==([\d.]+)", (ROOT / "Makefile").read_text())[1]


def installs_of(page: str) -> list[str]:
    return INSTALLS.findall(page)


def test_pages_that_install_lockstep_are_found():
    names = {page.name for page in PAGES if installs_of(page.read_text())}
    assert {"README.md", "getting-started.md", "sb3.md", "CONTRIBUTING.md"} <= names
    assert installs_of("in a clone: `pip install '.[export]'`")
    assert not installs_of("`.venv/bin/pip install '.[export]'` and `pip install 'optuna>=4.4'`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_that_installs_lockstep_has_the_line_for_a_cpu(page):
    text = page.read_text()
    installs = installs_of(text)
    assert not installs or CPU_LINE.search(text), f"{installs[0]!r}: add the line of README.md for a torch without CUDA"


def copies_of(page: str) -> list[str]:
    """Return the commands that install the clone as a copy, which replaces the editable install of `make train`."""
    found = []
    for command, arguments in re.findall(r"(pip install ([^`\n]*))", page):
        words = arguments.split()
        for option, word in zip(["", *words], words, strict=False):
            if word.strip("'\"").startswith(".") and option != "-e":
                found.append(command)
    return found


@pytest.mark.parametrize("command", ["'.[export]'", ". ./packages/lockstep-sb3", "-e . ./packages/lockstep-sb3", "."])
def test_an_install_of_a_copy_is_found(command):
    assert copies_of(f"in a clone: `pip install {command}`")


@pytest.mark.parametrize(
    "page",
    [*PAGES, *sorted((ROOT / "examples").rglob("*.ipynb")), ROOT / "lockstep/compat/__init__.py"],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_a_page_keeps_the_editable_install_of_make_train(page):
    assert copies_of(page.read_text()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_line_before_make_names_the_torch_that_make_installs(page):
    """With another version, `make train` would replace it by the one with CUDA."""
    for version in re.findall(r"\.venv/bin/pip install torch(?:==([\d.]+))? --index-url", page.read_text()):
        assert version == TORCH
