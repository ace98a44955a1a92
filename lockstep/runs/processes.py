"""`processes`: a pool whose runs end in order when the command that waits for them is stopped, or gone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

from lockstep.runs.run import Run
from lockstep.trainer.callbacks import Callback, Event, Stop

T = TypeVar("T")


class EndsWithCommand(Callback):
    """Asks a run in a process of `processes` to stop after its update where the command was stopped."""

    asked: ClassVar[Any] = None

    @classmethod
    def listen(cls, asked: Any) -> None:
        """Begin a process: it ends with the command above, and leaves Ctrl-C, which a terminal sends to all, to it."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        cls.asked = asked
        threading.Thread(target=_end_with_parent, daemon=True).start()

    def on_event(self, event: Event) -> Stop:
        return "interrupted" if self.asked.is_set() else None


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class RunPool(ProcessPoolExecutor):
    """A pool whose processes no Ctrl-C reaches before they ignore it."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Have a function called in one of the processes."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # what begins now inherits it
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def processes(jobs: int, max_tasks_per_child: int | None = None) -> Iterator[RunPool]:
    """Yield a pool of `jobs` processes for runs that have `EndsWithCommand()` among their callbacks.

    Where the body raises, as at Ctrl-C, nothing more begins, and what is under way ends after its update.
    """
    context = multiprocessing.get_context("spawn")
    asked = context.Event()
    pool = RunPool(jobs, context, EndsWithCommand.listen, (asked,), max_tasks_per_child=max_tasks_per_child)
    try:
        yield pool
    except BaseException:
        asked.set()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def check_ended(run: Run) -> None:
    """Raise `KeyboardInterrupt` for a run that `EndsWithCommand` has stopped: its last return is none of the end."""
    if run.trainer.stop_reason == "interrupted":
        raise KeyboardInterrupt
