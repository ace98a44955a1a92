"""Folders, and processes that are forked from one that has loaded the library."""

import multiprocessing
import multiprocessing.forkserver
import os
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder."""
    return tmp_path


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder for all tests of a file."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    """New processes from one that has only imported the library (which takes longer than all of the training)."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trainer_warm"])
    with pytest.MonkeyPatch.context() as patch:
        folders = Path(__file__).parent, Path(__file__).parents[1], *filter(None, [os.environ.get("PYTHONPATH")])
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, folders)))
        multiprocessing.forkserver.ensure_running()
    return context
