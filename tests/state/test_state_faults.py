"""Checkpoints under kills, full disks and places that cannot be written."""

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.state import CheckpointError, newest_checkpoint, read_checkpoint, write_checkpoint

# Forks savers from one process that has imported everything: a line "root start name delay" on its input lets one
# save without end, kills it with signal 9 `delay` seconds after its first save, and answers its last reported step.
KILLER = """
import os, signal, sys, time
import numpy as np
from lockstep.state import write_checkpoint

def save_forever(root, step, name, pipe):
    while True:
        step += 1
        tree = {"arrays": {f"a{i}": np.full(20_000, step) for i in range(4)}, "state": {"step": step}}
        write_checkpoint(f"{root}/{name}".replace("STEP", f"{step:06d}"), {"": tree, "inner": tree})
        os.write(pipe, f"{step} ".encode())

for line in sys.stdin:
    root, start, name, delay = line.split("|")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        save_forever(root, int(start), name, writer)
    os.close(writer)
    text = os.read(reader, 1 << 16)
    time.sleep(float(delay))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(reader, 1 << 16):
        text += more
    os.close(reader)
    print(text.split()[-1].decode(), flush=True)
"""


@pytest.fixture(scope="module")
def run_and_kill() -> Iterator[Callable[..., int]]:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )

    def run(root: Path, start: int, name: str, delay: float) -> int:
        process.stdin.write(f"{root}|{start}|{name}|{delay}\n")
        return int(process.stdout.readline())

    yield run
    process.stdin.close()
    process.wait()


def check(path: Path, reported: int) -> int:
    folders = read_checkpoint(path)
    step = folders[""]["state"]["step"]
    assert reported <= step <= reported + 1
    for tree in folders.values():
        assert tree["state"]["step"] == step
        assert all((array == step).all() for array in tree["arrays"].values())
    return int(step)


def test_kill_9_while_saving_always_leaves_a_newest_checkpoint_that_loads(
    tmp_path: Path, run_and_kill: Callable[..., int]
) -> None:
    step = interrupted = 0
    for kill in range(15):
        reported = run_and_kill(tmp_path, step, "step_STEP", 0.001 + 0.0007 * kill)
        interrupted += any(child.name.startswith(".") for child in tmp_path.iterdir())
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a killed save is not even seen
            newest = newest_checkpoint(tmp_path)
        step = check(newest, reported)
    assert interrupted >= 3  # the kills did hit saves under way


def test_kill_9_while_replacing_leaves_the_old_or_the_new(tmp_path: Path, run_and_kill: Callable[..., int]) -> None:
    step = 0
    for kill in range(15):
        reported = run_and_kill(tmp_path, step, "best", 0.001 + 0.0007 * kill)
        step = check(tmp_path / "best", reported)


def test_everything_new_is_synced_before_the_checkpoint_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded at the system calls: a power failure cannot be tested otherwise."""
    target = tmp_path / "checkpoint"
    sync, synced = os.fsync, set[int]()

    def fsync(descriptor: int) -> None:
        assert not target.exists() or os.fstat(descriptor).st_ino == tmp_path.stat().st_ino
        synced.add(os.fstat(descriptor).st_ino)
        sync(descriptor)

    best = write_checkpoint(tmp_path / "best", {"": {"a": {"w": np.ones(3)}}})
    monkeypatch.setattr("os.fsync", fsync)
    write_checkpoint(target, {"": {"a": 1}, "inner/part": {"b": {"w": np.ones(3)}}}, carried={"best": best})

    second_names = {path for path in (target / "best").rglob("*") if path.is_file()}
    assert second_names
    new = {target, *target.rglob("*")} - second_names
    assert {path.stat().st_ino for path in new} <= synced


def test_what_a_killed_process_left_is_cleared_by_the_next_save(tmp_path: Path) -> None:
    died = (
        "import os, sys; from pathlib import Path; from lockstep.state.replace import temporary_sibling;"
        "p = temporary_sibling(Path(sys.argv[1])); p.mkdir(); (p / 'half').write_text('x'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", died, str(tmp_path / "c")], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    from lockstep.state.replace import temporary_sibling

    own = temporary_sibling(tmp_path / "other")  # of a process that lives: this one
    own.mkdir()
    write_checkpoint(tmp_path / "c", {"": {"a": 1}})
    assert sorted(tmp_path.iterdir()) == sorted([own, tmp_path / "c"])


def test_a_refused_write_leaves_only_the_old_checkpoint(tmp_path: Path, file_size_limit: Any) -> None:
    with file_size_limit(16384):
        write_checkpoint(tmp_path / "c", {"": {"step": 1}})
        with pytest.raises(CheckpointError, match=r"cannot write checkpoint .*Nothing half-written is left"):
            write_checkpoint(tmp_path / "c", {"": {"first": 1, "big": {"a": np.zeros(10_000)}}})
        assert [child.name for child in tmp_path.iterdir()] == ["c"]
        assert read_checkpoint(tmp_path / "c") == {"": {"step": 1}}


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    """On a real file system of 256 KiB, where this process may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system is not allowed here; the RLIMIT_FSIZE tests cover the path")
    try:
        write_checkpoint(disk / "old", {"": {"a": 1}})
        with pytest.raises(CheckpointError, match="No space left on device"):
            write_checkpoint(disk / "new", {"": {"big": {"a": np.zeros(100_000)}}})
        assert [child.name for child in disk.iterdir()] == ["old"]
        assert newest_checkpoint(disk) == disk / "old"
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write checkpoint .*file/c: (Not a directory|File exists)"):
        write_checkpoint(tmp_path / "file" / "c", {"": {"a": 1}})
    with pytest.raises(CheckpointError, match="cannot write checkpoint /proc/lockstep"):
        write_checkpoint("/proc/lockstep/c", {"": {"a": 1}})


def test_an_interrupt_while_saving_leaves_nothing(tmp_path: Path) -> None:
    from collections.abc import Iterator, Mapping

    class Interrupted(Mapping):
        """A mapping at which Ctrl-C arrives."""

        def __getitem__(self, key: str) -> int:
            raise KeyboardInterrupt

        def __iter__(self) -> Iterator[str]:
            return iter(["a"])

        def __len__(self) -> int:
            return 1

    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(tmp_path / "c", {"": {"written": 1}, "inner": Interrupted()})
    assert list(tmp_path.iterdir()) == []


# A file system that cannot swap two names (NFS, say), on which a kill comes between the two renames
KILLED_BETWEEN = """
import os, signal, sys
from lockstep.state import replace, write_checkpoint

replace._exchange = lambda first, second: False  # what renameat2 says there
write_checkpoint(sys.argv[1], {"": {"state": {"step": 2}}})
rename = os.rename

def rename_and_die(source, target):
    rename(source, target)
    if os.path.basename(source) == "best":
        os.kill(os.getpid(), signal.SIGKILL)

os.rename = rename_and_die
write_checkpoint(sys.argv[1], {"": {"state": {"step": 3}}})
"""


@pytest.mark.long
def test_a_kill_between_the_two_renames_of_a_replacement_loses_nothing(tmp_path: Path) -> None:
    target = tmp_path / "best"
    write_checkpoint(target, {"": {"state": {"step": 1}}})
    done = subprocess.run([sys.executable, "-c", KILLED_BETWEEN, str(target)], check=False)
    assert done.returncode == -9
    assert not target.exists()
    assert read_checkpoint(target) == {"": {"state": {"step": 2}}}
    assert newest_checkpoint(tmp_path) == target
    write_checkpoint(tmp_path / "other", {"": {"state": {"step": 5}}})  # whoever writes next gives it its name back
    assert sorted(child.name for child in tmp_path.iterdir()) == ["best", "other"]
    write_checkpoint(target, {"": {"state": {"step": 4}}})
    assert read_checkpoint(target) == {"": {"state": {"step": 4}}}
