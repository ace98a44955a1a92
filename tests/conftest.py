"""What tests of several floors share."""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.forkserver
import os
import random
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
from hypothesis import settings
from rotation import ALL, NUM_PARTS, chooses_none, chosen_part, commit_of, part_of, sentence

# What gymnasium starts would be a fork of this process with all its threads, which may hang before it answers.
# `START_METHOD=spawn make test` starts processes as macOS and Windows do.
multiprocessing.set_start_method(os.environ.get("START_METHOD", "forkserver"))
multiprocessing.set_forkserver_preload(["warm_library"])
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
# Processes that tests start find the packages beside the library as pytest does (`pythonpath` in pyproject.toml), and
# the one that others are forked from finds `warm_library`.
_packages = str(Path(__file__).parents[1] / "packages/lockstep-sb3")
_paths = [_packages, os.environ.get("PYTHONPATH"), str(Path(__file__).parent)]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _paths))
# A checkpoint syncs every file, which on a disk takes longer than a small training: `tmp_path` lies in memory.
if os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > 8 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

# Walking over two million objects that stay, again and again, took a tenth of the suite's processor time.
gc.set_threshold(10_000, 20, 20)

# Properties are tried on a quarter of their examples; `make test-long` gives `--hypothesis-profile full`.
settings.register_profile("fast", max_examples=25, deadline=None)
settings.register_profile("full", max_examples=100, deadline=None)
settings.load_profile("fast")

TOGETHER = (
    "tests/cli/",
    "tests/cluster/",
    "tests/learner/test_learner_distributed.py",
    "tests/export/",
    "tests/recipes/test_recipes_bench.py",
    "tests/tuning/test_tuning_study.py",
    "tests/architecture/",
    "tests/trainer/test_trainer_flipped_bytes.py",
    "tests/trainer/test_trainer_hostile_files.py",
    "tests/trainer/test_trainer_script_objects.py",
    "tests/state/test_state_sizes.py",
)
"""Tests that share what takes seconds to start, to train or to parse: one worker runs all of a place."""


def pytest_sessionstart(session: pytest.Session) -> None:
    """Start the process that others are forked from, in each process that runs tests.

    It keeps the environment variables that it is started with. Left to the first test that needs it, these may be those
    that this test has changed, such as the folder of the user's key.
    """
    if hasattr(session.config, "workerinput") or not session.config.getoption("numprocesses", None):
        multiprocessing.forkserver.ensure_running()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--part`, which `make test-long` gives."""
    parser.addoption("--part", default=ALL, help=f"'all', 'commit', or one of the {NUM_PARTS} parts of the long tests")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the part of the long tests once, before xdist hands the options on to its workers."""
    try:
        part = chosen_part(str(config.option.part), commit_of(config.rootpath))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    config.option.part = part or ALL


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say which part ran, next to the failures: one that another commit does not show is otherwise hard to believe."""
    if config.option.part != ALL:
        terminalreporter.write_line(sentence(config.option.part))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the chosen part of the long tests, and what runs with every part."""
    if config.option.part == ALL:
        return
    others = [
        item
        for item in items
        if item.get_closest_marker("long")
        and not item.get_closest_marker("faults")
        and part_of(item.nodeid) not in (None, config.option.part)
    ]
    config.hook.pytest_deselected(items=others)
    left_out = set(others)
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Hide what was imported and collected from the garbage collector: all of it stays to the end."""
    gc.collect()
    gc.freeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file of tests whose marks, or those of its folder's conftest.py, let `-m` choose none of its tests.

    Importing and rewriting all files takes as long as hundreds of tests do.
    """
    if collection_path.suffix != ".py" or not config.option.markexpr:
        return None
    files = (file for file in (collection_path, collection_path.with_name("conftest.py")) if file.exists())
    return True if chooses_none(config.option.markexpr, "".join(file.read_text() for file in files)) else None


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give tests that share processes or a study to one worker, which starts them once, and others one by one.

    Those that share begin: they take longest, and beside them the other worker has work of every size left.
    """
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((place for place in TOGETHER if nodeid.startswith(place)), nodeid)

        def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
            super().mark_test_complete(node, item_index, duration)
            # The class counts over all that a worker ever had, for each test: what is complete need not be counted.
            work = self.assigned_work[node]
            scope = self._split_scope(self.registered_collections[node][item_index])
            if all(work[scope].values()):
                del work[scope]

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
