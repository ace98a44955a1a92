"""What a process that steps environments does first, so that it neither hangs nor outlives its parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import torch

ORPHAN_SECONDS = 1.0
"""How long a worker whose parent was killed lives on at most."""


def worker_context() -> Any:
    """Return the context of `multiprocessing` that starts workers: it says how they are started.

    That is as `multiprocessing.set_start_method` says, else forked on Linux.

    Functions of any kind reach a forked process, and a script needs no `if __name__ == "__main__"`.
    """
    chosen = cast("str | None", multiprocessing.get_start_method(allow_none=True))
    if chosen is None and sys.platform == "linux":
        chosen = "fork"
    return multiprocessing.get_context(chosen)


def begin_worker() -> None:
    """Make this process, which `multiprocessing` has started, fit to step environments.

    torch gets one thread: a forked process has the parent's pool of OpenMP threads, but none of the threads, and would
    wait for them for ever.

    The process ends when its parent is gone, also in the middle of a step.
    """
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, name="end with parent", daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    # The pipe to the parent does not tell its end for certain: workers that were forked later hold copies of it.
    # The process above does not either: with a fork server that is the server.
    above = os.getppid()
    while parent.is_alive() and os.getppid() == above:
        time.sleep(ORPHAN_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


class MadeInWorker:
    """A function that makes an environment, and makes the process fit for it where that is a worker's.

    For vectors of other libraries, which start their processes themselves.
    """

    def __init__(self, make_env: Callable[[], Any]) -> None:
        self._make_env = make_env
        self._parent = os.getpid()

    def __call__(self) -> Any:
        """Return an environment."""
        if os.getpid() != self._parent:
            begin_worker()
        return self._make_env()
