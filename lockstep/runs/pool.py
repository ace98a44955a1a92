"""Process pool for whole runs: each task has its own process, and Ctrl-C ends all of them in order."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event as StopEvent
from types import TracebackType
from typing import Any, Self, cast

from gymnasium.vector.utils import CloudpickleWrapper

from lockstep.runs.run import Run
from lockstep.trainer.callbacks import Callback, Event, Stop

KILLED = "its process was killed"


class ProcessKilledError(RuntimeError):
    """The process of a task has ended without an answer, as after `kill -9`."""


class UnsendableError(ValueError):
    """The function or an argument of a task cannot be sent to another process."""


class PoolWorker:
    """A task's connection to the pool: sends messages, and says whether the pool wants the task to stop."""

    def __init__(self, channel: Connection, stop: StopEvent) -> None:
        self._channel = channel
        self._stop = stop
        # The process id from `os.getppid()` would not do: if the parent died while this process imported the library,
        # it is already the id of the process that adopted this one.
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
    """Callback that stops a run after the current update once the run's pool stops."""

    def __init__(self, worker: PoolWorker) -> None:
        self._worker = worker

    def on_event(self, event: Event) -> Stop:
        return "interrupted" if self._worker.wants_stop else None


def check_not_stopped(run: Run) -> None:
    """Raise `KeyboardInterrupt` if the pool stopped the run before its end, since it then has no final return."""
    if run.trainer.stop_reason == "interrupted":
        raise KeyboardInterrupt


class Task:
    """One call of a function in a process of a pool."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.call = (function, arguments)
        self.messages: deque[Any] = deque()
        """Messages sent with `PoolWorker.send` that the pool's owner has not read yet, oldest first."""
        self.is_done = False
        self.was_killed = False
        """Whether the task's process ended without an answer."""
        self.error: BaseException | None = None
        """Exception that the function raised, or a `ProcessKilledError`. None if the task succeeded or is not done."""
        self._value: Any = None

    def finish(self, value: object, error: BaseException | None) -> None:
        """Set the outcome of the call and mark the task as done."""
        self._value = value
        self.error = error
        self.is_done = True

    @property
    def error_text(self) -> str:
        """Class and message of the error; empty if the task succeeded or is not done."""
        if self.was_killed:
            return KILLED
        if self.error is None:
            return ""
        return f"{type(self.error).__name__}: {self.error}"

    def result(self) -> Any:
        """Return the function's return value, or raise its exception. The task must be done.

        Raises:
            ProcessKilledError: the task's process was killed.
        """
        if self.error is not None:
            raise self.error
        return self._value


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Context manager that blocks SIGINT in this thread. Windows cannot block it, so nothing happens there."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


class _Process:
    """A process of the pool, and the task that it is running."""

    def __init__(self, stop: StopEvent, is_reused: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self.channel, worker_end = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(worker_end, stop, is_reused))

        # A terminal sends Ctrl-C to every process of the group, but only the command decides what it means. The new
        # process inherits the blocked signal, so Ctrl-C cannot kill it before `_serve` ignores the signal.
        with _interrupts_blocked():
            self.process.start()

        # While this process holds the worker's end too, `recv` would never report that the worker has died.
        worker_end.close()
        self.task: Task | None = None

    def begin(self, task: Task) -> None:
        """Send the task to the process, which calls the task's function.

        Raises:
            UnsendableError: the task cannot be sent to another process.
            OSError: the process has ended.
        """
        try:
            self.channel.send(_sendable(task.call))
        except OSError:
            raise
        except Exception as error:
            raise UnsendableError(f"a task cannot be sent to another process ({error})") from error
        self.task = task

    def release(self) -> None:
        """Close the channel, so that the process exits once its task is done."""
        self.channel.close()

    def end(self) -> None:
        """Release the process and wait until it has exited."""
        self.release()
        self.process.join()


class ProcessPool:
    """Pool that calls functions in at most `jobs` processes at once. A killed process fails only its own task.

    Each function is called with the arguments of `submit`, followed by its `PoolWorker`. Use the pool as a context
    manager: if the body raises (Ctrl-C included), no further task begins, and the running tasks are asked to stop and
    waited for.

    Args:
        jobs: Largest number of processes at a time.
        reuse_processes: Whether a process runs further tasks after its first. By default each task gets a new process,
            so that no task depends on the tasks before it.
    """

    def __init__(self, jobs: int, *, reuse_processes: bool = False) -> None:
        self._jobs = jobs
        self._is_reused = reuse_processes
        self._stop = multiprocessing.get_context("spawn").Event()
        self._waiting: deque[Task] = deque()
        self._processes: list[_Process] = []
        self._ending: list[_Process] = []
        """Processes that get no further task and may not have exited yet."""

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
        """Queue the call `function(*arguments, worker)`, and return its task. It begins when a process is free.

        Raises:
            UnsendableError: the function or an argument cannot be sent to another process.
        """
        task = Task(function, arguments)
        self._waiting.append(task)
        self._begin_tasks()
        return task

    def wait(self, timeout: float | None = None) -> list[Task]:
        """Wait at most `timeout` seconds (None: without limit) for messages and outcomes; return the tasks with any."""
        changed_tasks = []
        by_channel = {process.channel: process for process in self._processes if process.task is not None}
        for channel in wait(list(by_channel), timeout):
            assert isinstance(channel, Connection)
            process = by_channel[channel]
            assert process.task is not None
            changed_tasks.append(process.task)
            self._receive(process, process.task)
        self._begin_tasks()
        return changed_tasks

    def as_completed(self, tasks: list[Task]) -> Iterator[Task]:
        """Iterate over the tasks in the order in which they end."""
        pending = list(tasks)
        while pending:
            done_tasks = [task for task in pending if task.is_done]
            for task in done_tasks or self.wait():
                if task.is_done and task in pending:
                    pending.remove(task)
                    yield task

    def stop(self) -> None:
        """Begin no further task, and ask the running tasks to stop."""
        self._stop.set()
        self._waiting.clear()

    def terminate(self) -> None:
        """Kill all processes without waiting for their tasks."""
        self.stop()
        # All are signalled before the first is waited for, so that they exit at the same time.
        processes = [*self._processes, *self._ending]
        for process in processes:
            process.process.terminate()
        for process in processes:
            process.end()
        self._processes.clear()
        self._ending.clear()

    def _begin_tasks(self) -> None:
        """Give waiting tasks to free processes, and start processes for them up to the limit."""
        while self._waiting:
            process = self._free_process()
            if process is None:
                return
            task = self._waiting.popleft()
            try:
                process.begin(task)
            except OSError:  # the process was killed while it had no task, so another process takes the task
                self._waiting.appendleft(task)
                self._drop(process)

    def _free_process(self) -> _Process | None:
        """Return a process without a task, a new one if the pool is not full; None if all are busy."""
        for process in self._processes:
            if process.task is None:
                return process
        if len(self._processes) >= self._jobs:
            return None
        process = _Process(self._stop, self._is_reused)
        self._processes.append(process)
        return process

    def _receive(self, process: _Process, task: Task) -> None:
        """Read one message of a process: its task's message or outcome, or the end of the process."""
        try:
            is_outcome, content = process.channel.recv()
        except (EOFError, OSError):
            self._drop(process)
            task.was_killed = True
            task.finish(None, ProcessKilledError(KILLED))
            return
        except Exception as error:  # an answer that cannot be unpickled, such as an exception with its own arguments
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
        """Give a process no further task.

        An exit may take seconds, so it is waited for only when the pool ends.
        """
        process.release()
        self._processes.remove(process)
        self._ending.append(process)
        # `is_alive` reaps an exited process, so that a pool with many tasks does not collect zombies.
        self._ending = [ending for ending in self._ending if ending.process.is_alive()]


def _sendable(call: tuple[Callable[..., Any], tuple[Any, ...]]) -> object:
    """Return a function and its arguments in a form that a process of the pool can read."""
    # A new process imports the file of a script, and finds its classes there. A notebook or an interactive session has
    # no file, so its classes and functions are sent with their code.
    if hasattr(sys.modules["__main__"], "__file__"):
        return call
    # The wrapper's type says that it holds functions, but it takes any object.
    return CloudpickleWrapper(cast("Any", call))


def _serve(channel: Connection, stop: StopEvent, is_reused: bool) -> None:
    """Run tasks in a process of the pool until the pool closes the channel."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = PoolWorker(channel, stop)
    while True:
        value: Any = None
        error: BaseException | None = None
        try:
            received = channel.recv()
        except (EOFError, OSError):
            return
        except Exception as receive_error:  # the function or an argument cannot be unpickled in this process
            error = receive_error
        else:
            call: Any = received.fn if isinstance(received, CloudpickleWrapper) else received
            function, arguments = call
            try:
                value = function(*arguments, worker)
            # BaseException: a task reports with KeyboardInterrupt that it was stopped, and an environment may call
            # `sys.exit`. Both are the task's outcome, not the end of this process.
            except BaseException as task_error:
                # The traceback itself cannot be pickled; its text can.
                task_error.add_note(traceback.format_exc())
                error = task_error

        try:
            channel.send((True, (value, error)))
        except OSError:
            return
        except Exception:  # the value or the exception cannot be pickled: its text is sent instead
            outcome = error or value
            channel.send((True, (None, RuntimeError(f"{type(outcome).__name__}: {outcome}"))))
        if not is_reused:
            return
