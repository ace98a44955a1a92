"""Hints to install something name packages that can be installed today, in the versions of pyproject.toml."""

import tomllib
from pathlib import Path

import pytest

from lockstep.config.learner_builder import without_ray
from lockstep.options.checks import install_hint

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
PLAIN = sorted(name for name, packages in EXTRAS.items() if not any("lockstep-rl" in text for text in packages))


@pytest.mark.parametrize("extra", PLAIN)
def test_a_hint_names_the_packages_of_the_extra(extra):
    hint = install_hint(extra)
    assert hint.startswith("pip install ")
    assert sorted(hint.removeprefix("pip install ").split()) == sorted(map(repr, EXTRAS[extra]))


def test_without_ray_the_message_says_what_to_install():
    error = without_ray(ModuleNotFoundError("No module named 'ray'", name="ray"), "learners.num_learners=2")
    assert str(error) == "learners.num_learners=2 needs Ray: pip install 'ray>=2.40', or set it to 0"


def test_nothing_says_to_install_the_package_before_it_is_published():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*")]
    for path in [*pages, *(ROOT / "lockstep").rglob("*.py")]:
        if path.is_file() and path.suffix in (".md", ".py", ".yaml", ""):
            assert "lockstep-rl[" not in path.read_text(), path
