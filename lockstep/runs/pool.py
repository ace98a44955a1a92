"""`ProcessPool`: whole runs in processes of their own, which end in order when the command that waits is stopped."""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event as StopEvent
from types import TracebackType
from typing import Any, Self

from lockstep.runs.run import Run
from lockstep.trainer.callbacks import Callback, Event, Stop

KILLED = "its process was killed"


class ProcessKilledError(RuntimeError):
    """The process of a task has ended without an answer, as after `kill -9`."""


class UnsendableError(ValueError):
    """The function or an argument of a task cannot be sent to another process."""


class PoolWorker:
    """What a task knows of the process that it runs in: the way to the pool, and whether to stop."""

    def __init__(self, channel: Connection, stop: StopEvent) -> None:
        self._channel = channel
        self._stop = stop
        # Not the parent's number: if it died while this process imported the library, that number is already another.
        self._parent = multiprocessing.parent_process()

    @property
    def wants_stop(self) -> bool:
        """Whether the pool asked its tasks to stop, or its process has died."""
        return self._stop.is_set() or (self._parent is not None and not self._parent.is_alive())

    def send(self, message: object) -> None:
        """Send a message to `Task.messages`. Nothing happens if the pool's process has died."""
        with suppress(OSError):
            self._channel.send((False, message))


class StopsWithPool(Callback):
    """Asks a run to stop after its update when its pool stops."""

    def __init__(self, worker: PoolWorker) -> None:
        self._worker = worker

    def on_event(self, event: Event) -> Stop:
        return "interrupted" if self._worker.wants_stop else None


def check_not_stopped(run: Run) -> None:
    """Raise `KeyboardInterrupt` for a run that its pool has stopped: it has no final return."""
    if run.trainer.stop_reason == "interrupted":
        raise KeyboardInterrupt


class Task:
    """One call of a function in a process of a pool."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.call = (function, arguments)
        self.messages: deque[Any] = deque()
        """What the task has sent with `PoolWorker.send` and nobody has taken yet."""
        self.is_done = False
        self.was_killed = False
        """Whether its process ended without an answer."""
        self.error: BaseException | None = None
        """What the function raised, or a `ProcessKilledError`. None for a task that succeeded or is not done."""
        self._value: Any = None

    def finish(self, value: object, error: BaseException | None) -> None:
        """Take the outcome of the call."""
        self._value = value
        self.error = error
        self.is_done = True

    def result(self) -> Any:
        """Return what the function returned, or raise what it raised; `ProcessKilledError` if its process was killed.

        Only for a task that is done.
        """
        if self.error is not None:
            raise self.error
        return self._value


class _Process:
    """A process of the pool, and the task that it works on."""

    def __init__(self, stop: StopEvent, is_reused: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self.channel, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, stop, is_reused))
        # A terminal sends Ctrl-C to all processes, and the command alone decides what it means. The new process
        # inherits that the signal is blocked, until it ignores it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self.task: Task | None = None

    def begin(self, task: Task) -> None:
        """Have the task's function called.

        Raises:
            UnsendableError: the task cannot be sent to another process.
            OSError: the process has ended.
        """
        try:
            self.channel.send(task.call)
        except OSError:
            raise
        except Exception as error:
            raise UnsendableError(f"a task cannot be sent to another process ({error})") from error
        self.task = task

    def release(self) -> None:
        """Let the process end when its task is done."""
        self.channel.close()

    def end(self) -> None:
        """Wait until the process has ended. It ends when its task is done."""
        self.release()
        self.process.join()


class ProcessPool:
    """Calls functions in at most `jobs` processes at once. A process that is killed fails its own task only.

    A function is called with the arguments of `submit` and then its `PoolWorker`. Used as a context: if the body
    raises, as at Ctrl-C, no further task begins, and those that run are asked to stop and waited for.

    Args:
        jobs: the number of processes.
        reuse_processes: whether a process takes further tasks. Without it each task has a new process, so that no task
            depends on what ran before it.
    """

    def __init__(self, jobs: int, *, reuse_processes: bool = False) -> None:
        self._jobs = jobs
        self._is_reused = reuse_processes
        self._stop = multiprocessing.get_context("spawn").Event()
        self._waiting: deque[Task] = deque()
        self._processes: list[_Process] = []
        self._ending: list[_Process] = []
        """Processes that are done and have not exited yet."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, place: TracebackType | None
    ) -> None:
        if error is not None:
            self.stop()
        while self.is_working:
            self.wait()
        for process in [*self._processes, *self._ending]:
            process.end()
        self._processes.clear()
        self._ending.clear()

    @property
    def is_working(self) -> bool:
        """Whether a task is running or will run."""
        return bool(self._waiting) or any(process.task is not None for process in self._processes)

    def submit(self, function: Callable[..., Any], *arguments: object) -> Task:
        """Have `function(*arguments, worker)` called as soon as a process is free.

        Raises:
            UnsendableError: the function or an argument cannot be sent to another process.
        """
        task = Task(function, arguments)
        self._waiting.append(task)
        self._begin_tasks()
        return task

    def wait(self, timeout: float | None = None) -> list[Task]:
        """Wait for news of tasks, at most `timeout` seconds; return the tasks with new messages or an outcome."""
        news = []
        by_channel = {process.channel: process for process in self._processes if process.task is not None}
        for channel in wait(list(by_channel), timeout):
            assert isinstance(channel, Connection)
            process = by_channel[channel]
            assert process.task is not None
            news.append(process.task)
            self._receive(process, process.task)
        self._begin_tasks()
        return news

    def as_completed(self, tasks: list[Task]) -> Iterator[Task]:
        """Iterate over tasks in the order in which they end."""
        left = list(tasks)
        while left:
            for task in [task for task in left if task.is_done] or self.wait():
                if task.is_done and task in left:
                    left.remove(task)
                    yield task

    def stop(self) -> None:
        """Begin no further task, and ask those that run to stop."""
        self._stop.set()
        self._waiting.clear()

    def terminate(self) -> None:
        """End all processes at once."""
        self.stop()
        processes = [*self._processes, *self._ending]
        for process in processes:
            process.process.terminate()
        for process in processes:
            process.end()
        self._processes.clear()
        self._ending.clear()

    def _begin_tasks(self) -> None:
        while self._waiting:
            free = next((process for process in self._processes if process.task is None), None)
            if free is None and len(self._processes) < self._jobs:
                free = _Process(self._stop, self._is_reused)
                self._processes.append(free)
            if free is None:
                return
            task = self._waiting.popleft()
            try:
                free.begin(task)
            except OSError:  # it was killed while it had no task: another process takes this one
                self._waiting.appendleft(task)
                self._drop(free)

    def _receive(self, process: _Process, task: Task) -> None:
        """Take one message of a process, or note that it has ended."""
        try:
            is_outcome, content = process.channel.recv()
        except (EOFError, OSError):
            self._drop(process)
            task.was_killed = True
            task.finish(None, ProcessKilledError(KILLED))
            return
        except Exception as error:  # an answer that cannot be read here, such as an error of an unusual class
            is_outcome = True
            content = (None, RuntimeError(f"its answer cannot be read: {type(error).__name__}: {error}"))
        if not is_outcome:
            task.messages.append(content)
            return
        task.finish(*content)
        process.task = None
        if not self._is_reused:
            self._drop(process)

    def _drop(self, process: _Process) -> None:
        """Give a process no further task. Nobody waits for its exit, which may take seconds, before the pool ends."""
        process.release()
        self._processes.remove(process)
        self._ending = [each for each in [*self._ending, process] if each.process.is_alive()]


def _serve(channel: Connection, stop: StopEvent, is_reused: bool) -> None:
    """Work off tasks until the pool closes the channel."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = PoolWorker(channel, stop)
    while True:
        value: Any = None
        error: BaseException | None = None
        try:
            function, arguments = channel.recv()
        except (EOFError, OSError):
            return
        except Exception as problem:  # what was sent cannot be read here
            error = problem
        else:
            try:
                value = function(*arguments, worker)
            except BaseException as problem:
                problem.add_note(traceback.format_exc())
                error = problem
        try:
            channel.send((True, (value, error)))
        except OSError:
            return
        except Exception:
            channel.send((True, (None, RuntimeError(f"{type(error or value).__name__}: {error or value}"))))
        if not is_reused:
            return
