"""Setup of processes that step environments, so that they neither hang nor outlive their parent."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import torch

from lockstep.state.processes import KILL_SIGNAL

ORPHAN_SECONDS = 1.0
"""Maximum seconds that a worker runs after its parent was killed."""


def worker_context() -> Any:
    """Return the `multiprocessing` context that starts workers.

    It uses the start method of `multiprocessing.set_start_method`, if one was set. Otherwise workers are forked on
    Linux: a forked process needs no pickled environment function, and a script needs no
    `if __name__ == "__main__"`.
    """
    chosen = cast("str | None", multiprocessing.get_start_method(allow_none=True))
    if chosen is None and sys.platform == "linux":
        chosen = "fork"
    return multiprocessing.get_context(chosen)


def begin_worker() -> None:
    """Prepare this process, which `multiprocessing` has started, for stepping environments.

    The process will end when its parent is gone, also in the middle of a step.
    """
    # A forked process inherits the parent's OpenMP thread pool without its threads, and would wait for them for ever.
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, name="end with parent", daemon=True).start()


def _end_with_parent() -> None:
    """Kill this process once its parent has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    # Neither sign is enough alone. `is_alive` reads a pipe from the parent, which may stay open: workers that were
    # forked later hold copies of it. And with a fork server, the process above this one is the server.
    parent_pid = os.getppid()
    while parent.is_alive() and os.getppid() == parent_pid:
        time.sleep(ORPHAN_SECONDS)

    # Not SIGTERM, because an environment in the middle of a step does not return to Python's signal handlers.
    os.kill(os.getpid(), KILL_SIGNAL)


class MadeInWorker:
    """Function that makes an environment, and prepares the process for it if that is a worker.

    For vectors of other libraries, which start their processes themselves.

    Args:
        make_env: Function that makes one environment.
    """

    def __init__(self, make_env: Callable[[], Any]) -> None:
        self._make_env = make_env
        self._parent = os.getpid()

    def __call__(self) -> Any:
        """Return an environment."""
        if os.getpid() != self._parent:
            begin_worker()
        return self._make_env()
