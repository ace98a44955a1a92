"""Folders, and processes that are forked from one that has loaded the library."""

import multiprocessing
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
    return multiprocessing.get_context("forkserver")
