"""`ProcessPool`: tasks in processes of their own; one that is killed fails alone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from parts import fast_if

from lockstep.runs.pool import PoolWorker, ProcessKilledError, ProcessPool


def answer(number: int, worker: PoolWorker) -> tuple[int, int]:
    """Send a message, and return the number with the id of the process. A negative number kills the process."""
    worker.send(f"begin {number}")
    if number < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if number > 100:
        raise KeyError(number)
    return number, os.getpid()


@pytest.mark.parametrize("reuse_processes", fast_if(bool, [False, True]))
def test_a_killed_process_fails_its_own_task_only(reuse_processes):
    with ProcessPool(1, reuse_processes=reuse_processes) as pool:
        tasks = [pool.submit(answer, number) for number in (1, -2, 3, 400, 5)]
        done = list(pool.as_completed(tasks))
    assert done == tasks  # one after the other
    first, killed, third, failed, last = tasks
    with pytest.raises(ProcessKilledError, match="was killed"):
        killed.result()
    with pytest.raises(KeyError, match="400"):
        failed.result()
    assert [task.result()[0] for task in (first, third, last)] == [1, 3, 5]
    assert [task.messages.popleft() for task in tasks] == ["begin 1", "begin -2", "begin 3", "begin 400", "begin 5"]
    assert (third.result()[1] == last.result()[1]) is reuse_processes


def test_a_task_that_cannot_be_sent_is_refused_and_the_pool_works_on():
    with ProcessPool(1) as pool:
        with pytest.raises(ValueError, match="cannot be sent to another process"):
            pool.submit(threading.Lock().acquire)
        (task,) = pool.as_completed([pool.submit(answer, 7)])
    assert task.result()[0] == 7


def test_a_process_that_is_killed_without_a_task_is_replaced():
    with ProcessPool(1, reuse_processes=True) as pool:
        (first,) = pool.as_completed([pool.submit(answer, 1)])
        (child,) = (child for child in multiprocessing.active_children() if child.pid == first.result()[1])
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        done = list(pool.as_completed([pool.submit(answer, number) for number in (2, 3)]))
    assert [task.result()[0] for task in done] == [2, 3]


def print_whether_to_stop(worker: PoolWorker) -> None:
    """Print whether the task should stop."""
    print(worker.wants_stop, flush=True)


ORPHAN = """
import os
from test_trainer_pool import ProcessPool, print_whether_to_stop
if __name__ == "__main__":
    pool = ProcessPool(1)
    pool.submit(print_whether_to_stop)
    os._exit(0)
"""


@pytest.mark.long
def test_a_task_notices_that_its_command_died_while_its_process_started(tmp_path):
    script = tmp_path / "command.py"
    script.write_text(ORPHAN)
    paths = [str(Path(__file__).parent), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    # Its process has the same output: `run` returns when that has ended, too.
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n", done.stderr
