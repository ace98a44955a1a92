"""`ProcessPool`: tasks in processes of their own; one that is killed fails alone."""

from __future__ import annotations

import os
import signal

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


def test_a_task_that_cannot_be_sent_is_refused_and_the_pool_goes_on():
    with ProcessPool(1) as pool:
        with pytest.raises(ValueError, match="cannot be sent to another process"):
            pool.submit(lambda worker: None)
        (task,) = pool.as_completed([pool.submit(answer, 7)])
    assert task.result()[0] == 7
