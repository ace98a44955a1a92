"""Folders in memory (a checkpoint syncs every file: on a busy disk that takes longer than the training), processes."""

import multiprocessing
import multiprocessing.forkserver
import tempfile
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
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


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    """New processes from one that has only imported the library (which takes longer than all of the training)."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trainer_warm"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        multiprocessing.forkserver.ensure_running()
    return context
