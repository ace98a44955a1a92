"""What tests of several floors share."""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import resource
import secrets
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

# What gymnasium starts would be a fork of this process with all its threads, which may hang before it answers.
multiprocessing.set_start_method("forkserver")
multiprocessing.set_forkserver_preload(["lockstep.envs.toys.counting"])
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background of a shell inherits "ignore"
# Ray starts its workers with a niceness of 15: beside the suite's other processes they get next to no time, and
# learners do not start within their 60 s.
os.environ.setdefault("RAY_worker_niceness", "0")
# Tests have small networks and run side by side: a second thread would only wait, and keep a core busy with it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Runs are signed with a key in the user's configuration folder. Tests have a folder of their own for it, which the
# processes that they start inherit.
if "XDG_CONFIG_HOME" not in os.environ:
    _configuration = tempfile.TemporaryDirectory(prefix="lockstep-tests-")
    os.environ["XDG_CONFIG_HOME"] = _configuration.name
# A checkpoint syncs every file, which on a disk takes longer than a small training: `tmp_path` lies in memory.
if os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > 8 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

TOGETHER = (
    "tests/cluster/",
    "tests/learner/test_learner_distributed.py",
    "tests/recipes/test_recipes_bench.py",
    "tests/tuning/test_tuning_study.py",
)
"""tests that share what takes seconds to start"""


def pytest_xdist_auto_num_workers() -> int:
    """Start one more than there are cores: many tests wait for processes."""
    return 1 + (os.cpu_count() or 1)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file of tests in which a mark that `-m` asks for is not named, nor in its folder's conftest.py."""
    wanted = re.sub(r"\bnot \w+|\band\b|\bor\b", "", config.option.markexpr).split()
    if collection_path.suffix != ".py" or not wanted:
        return None
    files = (file for file in (collection_path, collection_path.with_name("conftest.py")) if file.exists())
    text = "".join(file.read_text() for file in files)
    return None if any(f"mark.{mark}" in text for mark in wanted) else True


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give tests that share processes or a study to one worker, which starts them once, and others one by one."""
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((place for place in TOGETHER if nodeid.startswith(place)), nodeid)

    return Scheduler(config, log)


@pytest.fixture(autouse=True)
def seeds_of_collectors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Collectors without a seed play other episodes than one another, but a test plays the same in each run."""
    monkeypatch.setattr(secrets, "randbits", random.Random(request.node.name).getrandbits)


@pytest.fixture
def file_size_limit() -> Callable[[int], AbstractContextManager[None]]:
    """`with file_size_limit(4096):` no file of this process may grow beyond that, as on a full disk.

    A context and not the whole test: pytest's own output may be a longer file.
    """

    @contextmanager
    def limit(size: int) -> Iterator[None]:
        old = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
            signal.signal(signal.SIGXFSZ, before)

    return limit
