"""Marks of ranks say how each rank ended, and from them a restart says why it was needed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from lockstep.tracking import RunFolder
from lockstep.tracking.rank_marks import RANKS, RankMark, restart_reason

HERE = f"process {os.getpid()} on {os.uname().nodename}"


def test_a_rank_that_ends_in_order_leaves_no_mark(tmp_path):
    marks = [RankMark(tmp_path, rank) for rank in (0, 1)]
    with marks[0].training(), marks[1].training():
        assert marks[1].last_end() == {"process": HERE, "error": None}
    assert [mark.last_end() for mark in marks] == [None, None]
    assert not (tmp_path / RANKS).exists()


def test_ctrl_c_and_sigterm_are_ends_in_order(tmp_path):
    mark = RankMark(tmp_path, 3)
    with pytest.raises(KeyboardInterrupt), mark.training():
        raise KeyboardInterrupt
    assert mark.last_end() is None


def test_an_error_is_kept_with_its_first_line(tmp_path):
    mark = RankMark(tmp_path, 1)
    with pytest.raises(RuntimeError), mark.training():
        raise RuntimeError("no room\nin the second line")
    assert mark.last_end() == {"process": HERE, "error": "RuntimeError: no room"}
    with mark.training():
        assert mark.last_end()["error"] is None


def test_a_killed_process_leaves_a_mark_without_an_error(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from lockstep.tracking.rank_marks import RankMark\n"
        "with RankMark(Path(sys.argv[1]), 2).training(): print('here', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
    finally:
        process.kill()
    end = RankMark(tmp_path, 2).last_end()
    assert end == {"process": f"process {process.pid} on {os.uname().nodename}", "error": None}
    reason = restart_reason([None, None, end])
    assert reason.startswith(f"rank 2 (process {process.pid} on ")
    assert "died without an error" in reason


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"process": 1}', b"\xff"])
def test_a_damaged_mark_counts_as_a_death(tmp_path, content):
    mark = RankMark(tmp_path, 0)
    mark.path.parent.mkdir()
    mark.path.write_bytes(content)
    assert mark.last_end() == {"process": "unknown process", "error": None}


def test_the_reason_is_a_death_then_an_own_error_then_the_loss_of_another_rank():
    lost = {"process": "p0", "error": "LearnerError: rank 1 has left"}
    failed = {"process": "p1", "error": "ValueError: wrong"}
    dead = {"process": "p2", "error": None}
    assert restart_reason([lost, failed, dead]).startswith("rank 2 (p2) died")
    assert restart_reason([lost, failed, None]) == "rank 1 (p1) ended with ValueError: wrong"
    assert restart_reason([lost, None]) == "rank 0 (p0) ended with LearnerError: rank 1 has left"
    assert "stopped and started again" in restart_reason([None, None])


def test_restarts_are_counted_in_the_folder_and_reported(tmp_path):
    folder = RunFolder.create(tmp_path, algo="ppo", env="CartPole-v1", seed=1, config={})
    with pytest.warns(RuntimeWarning, match="restarted 1 time, now at step 256: rank 1"):
        folder.record_restart(256, "rank 1 died")
    with pytest.warns(RuntimeWarning, match="restarted 2 times, now at step 1,024: rank 0"):
        folder.record_restart(1024, "rank 0 died")
    restarts = RunFolder.open(folder.path).restarts
    assert [(each["step"], each["reason"]) for each in restarts] == [(256, "rank 1 died"), (1024, "rank 0 died")]
