"""The packages, which several files of tests install."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from release_tools import ROOT, SB3, run_outside


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdists of all packages and the wheels that are built from them."""
    folder = tmp_path_factory.mktemp("dist")
    for project in (ROOT, SB3):
        built = run_outside(sys.executable, "-m", "build", "--outdir", folder, project, cwd=folder)
        assert built.returncode == 0, built.stdout + built.stderr
    return folder
