"""The lock of a run's folder: who may take it, who has lost it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lockstep.tracking import RunLock, RunLockError

HOLD = """
import sys
from pathlib import Path
from lockstep.tracking import RunLock
lock = RunLock(Path(sys.argv[1]))
lock.take()
print("held", flush=True)
sys.stdin.readline()
try:
    lock.check()
    print("still held", flush=True)
except Exception as error:
    print(error, flush=True)
"""


@contextmanager
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the lock, and checks it when it is sent a line."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def rewrite(folder: Path, **changes: Any) -> None:
    path = folder / "lock.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_living_process_is_named_and_a_dead_one_is_replaced(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        before = (tmp_path / "lock.json").read_bytes()
        with pytest.raises(RunLockError, match=rf"trained by process {process.pid} on .*alive.*--take-over"):
            RunLock(tmp_path).take()
        assert [child.name for child in tmp_path.iterdir()] == ["lock.json"]
        assert (tmp_path / "lock.json").read_bytes() == before
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and nobody has asked for its end yet
        with RunLock(tmp_path) as lock:
            lock.check()
        assert not list(tmp_path.iterdir())


def test_a_process_that_was_suspended_finds_that_it_has_lost_the_lock(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(RunLockError, match="alive"):
            RunLock(tmp_path).take()
        lock = RunLock(tmp_path)
        lock.take(take_over=True)
        os.kill(process.pid, signal.SIGCONT)
        said = process.communicate("check\n")[0]
        assert f"was taken over by process {os.getpid()}" in said
        lock.check()
        assert (tmp_path / "lock.json").exists(), "a process that ends does not remove another one's lock"


ELSEWHERE = {
    "another machine, silent": ({"host": "other", "machine": "x"}, -61, None),
    "another machine, alive": (
        {"host": "other", "machine": "x"},
        -59,
        r"process \d+ on other, whose last sign of life",
    ),
    "another machine whose clock is ahead": ({"host": "other", "machine": "x"}, 3600, "last sign of life is 0 s old"),
    "this one before it was started again": ({"started": "1"}, 0, None),
    "an earlier start of the same job": ({"host": "other", "machine": "x", "job": "j1", "restarts": 0}, 0, None),
    "another job": ({"host": "other", "machine": "x", "job": "j2", "restarts": 0}, 0, "process"),
    "a damaged one": ({"process": "12"}, 0, "lock.json is damaged, and was written just now"),
    "an old damaged one": ({"process": "12"}, -61, None),
}


@pytest.mark.parametrize("changes, seconds, refused", ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_lock_is_taken_over_where_its_holder_is_gone(
    tmp_path: Path, changes: dict[str, Any], seconds: int, refused: str | None
) -> None:
    """Heartbeats are compared by the clock of the file system; here they are set by hand."""
    first = RunLock(tmp_path)
    first.take()
    rewrite(tmp_path, **changes)
    now = (tmp_path / "lock.json").stat().st_mtime
    os.utime(tmp_path / "lock.json", (now + seconds, now + seconds))
    lock = RunLock(tmp_path)
    if refused is not None:
        with pytest.raises(RunLockError, match=refused):
            lock.take(job="j1", restarts=1)
        lock.take(take_over=True)
    else:
        lock.take(job="j1", restarts=1)
    lock.check()
    with pytest.raises(RunLockError, match="nothing more is written"):
        first.check()


def test_the_newest_trainer_of_a_process_owns_the_folder_for_good(tmp_path: Path) -> None:
    first, second = RunLock(tmp_path), RunLock(tmp_path)
    with first:
        second.take()
        with pytest.raises(RunLockError, match="was taken over by process"):
            first.check()
        second.release()
        with pytest.raises(RunLockError, match="nothing more is written"):
            first.take()
    second.take()
    second.check()
    second.release()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("how", ["moved", "deleted"])
def test_a_moved_or_deleted_folder_loses_its_lock(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    lock = RunLock(folder)
    lock.take()
    if how == "moved":
        folder.rename(tmp_path / "elsewhere")
    else:
        shutil.rmtree(folder)
    with pytest.raises(RunLockError, match="moved or deleted"):
        lock.check()
    assert not folder.exists()
    with pytest.raises(RunLockError, match="is gone"):
        RunLock(folder).take()


def test_a_lock_is_released_with_its_owner_and_not_by_a_forked_child(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    lock.take()
    child = os.fork()
    if child == 0:
        lock.release()
        os._exit(0)
    os.waitpid(child, 0)
    lock.check()
    del lock
    assert not list(tmp_path.iterdir())
