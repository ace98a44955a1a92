"""Folders in memory: a checkpoint syncs every file, and on a busy disk that takes longer than the training."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


def _in_memory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="lockstep-", dir=MEMORY if MEMORY.is_dir() else None)


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder."""
    with _in_memory() as name:
        yield Path(name)


@pytest.fixture(scope="module")
def shared_folder() -> Iterator[Path]:
    """An empty folder for all tests of a file."""
    with _in_memory() as name:
        yield Path(name)
