"""`RayRunnerBackend`: env runners in Ray actors behind an `EnvRunnerGroup`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from lockstep.cluster.processes import RayProcesses, Worker, start_ray
from lockstep.rollout.config import EnvRunnersSection
from lockstep.rollout.env_runner import EnvRunner
from lockstep.rollout.errors import EnvRunnerError, RunnerLostError
from lockstep.rollout.runner_group import BuildRunner, Call


@dataclass(frozen=True)
class StoredValue:
    """Value in Ray's object store, as an argument of a call.

    The worker fetches it. If the reference itself were the argument, Ray would fetch it before the call, more slowly.
    """

    reference: Any
    """Reference to the value."""


class RunnerWorker(Worker):
    """Actor with one env runner."""

    def __init__(self) -> None:
        super().__init__()
        self._build: Callable[[], EnvRunner] | None = None
        self._runner: EnvRunner | None = None

    def take_place(self, build: BuildRunner, index: int, num_runners: int, generation: int) -> None:
        """Set the index of this runner. It is built by the first call."""
        self._build = partial(build, index=index, num_runners=num_runners, generation=generation)

    def apply(self, func: Callable[..., Any], *args: object, **options: object) -> Any:
        """Return `func(runner, *args, **options)`. The first call builds the runner, and raises if the build fails."""
        import ray

        if self._runner is None and self._build is not None:
            self._runner = self._build()
        for name, value in options.items():
            if isinstance(value, StoredValue):
                options[name] = ray.get(value.reference)
        return func(self._runner, *args, **options)


class RayRunnerBackend:
    """Backend with `section.num_env_runners` env runners in actors.

    Each runner is built by `build(index=..., num_runners=..., generation=...)` in its actor. If Ray is not running, it
    is started on this machine.

    Raises:
        EnvRunnerError: the cluster does not have the resources.
    """

    is_local = False

    def __init__(
        self,
        build: BuildRunner,
        section: EnvRunnersSection,
        *,
        num_standby: int = 0,
        start_ray: Callable[[], bool] = start_ray,
    ) -> None:
        self._processes = RayProcesses(
            RunnerWorker,
            kind="env runner",
            resources={
                "CPU": section.num_cpus_per_env_runner,
                "GPU": section.num_gpus_per_env_runner,
                **section.custom_resources_per_env_runner,
            },
            strategy="SPREAD",
            error=EnvRunnerError,
            start_ray=start_ray,
            num_standby=num_standby,
        )
        self._ray = self._processes.ray
        self._num_runners = section.num_env_runners
        # An error or Ctrl-C during the start must not leave processes behind.
        with ExitStack() as cleanup:
            cleanup.callback(self.shutdown)
            self._build = self._ray.put(build)
            self._processes.reserve(self._num_runners)
            self._start(range(self._num_runners), 0)
            cleanup.pop_all()

    def __len__(self) -> int:
        return self._num_runners

    def _start(self, indices: Sequence[int], generation: int) -> None:
        self._processes.start(indices)
        for index in indices:
            self._processes.actors[index].take_place.remote(self._build, index, self._num_runners, generation)

    def put(self, value: object) -> StoredValue:
        """Put a value into the object store. Runners on the same machine read it there without a copy."""
        return StoredValue(self._processes.store(value))

    def call(self, index: int, func: Callable[..., Any], *args: object, **options: object) -> Call:
        """Begin a call and return its reference."""
        return self._processes.actors[index].apply.remote(func, *args, **options)

    def wait(self, calls: Sequence[Call], timeout_s: float) -> list[Call]:
        """Return the calls that have ended, as soon as there is at least one."""
        ready, _ = self._ray.wait(list(calls), num_returns=1, timeout=max(0.0, timeout_s), fetch_local=True)
        if ready and len(calls) > 1:
            ready, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0, fetch_local=True)
        if not ready:  # a call may have ended on another machine while its result is still being transferred
            ready, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0, fetch_local=False)
        return list(ready)

    def result(self, call: Call) -> Any:
        """Return the result of a call. Arrays of fragments remain in the object store.

        Raises:
            RunnerLostError: the runner's process or node has ended.
            Exception: the runner's own exception.
        """
        errors = self._ray.exceptions
        try:
            return self._ray.get(call)
        except errors.RayTaskError as error:
            raise _error_of_runner(error) from error
        except errors.RayError as error:  # the process died or was ended for its memory, or the node or result was lost
            raise RunnerLostError(f"its process or node ended: {_first_line(error)}") from error

    def replace(self, index: int, generation: int) -> None:
        """End the actor of a runner and start a new one."""
        self._processes.end([index])
        self._start([index], generation)

    def process_ids(self) -> list[int]:
        """Return the process ids of the runners, by index."""
        return self._processes.process_ids()

    def shutdown(self) -> None:
        """End all actors, and Ray if this group has started it."""
        self._processes.shutdown()


def _error_of_runner(error: Any) -> Exception:
    """Return the runner's exception with its traceback as a note."""
    runner_error: Exception = EnvRunnerError(_first_line(error))
    if isinstance(error.cause, Exception):
        runner_error = error.cause
    runner_error.add_note(f"in the runner's process:\n{error}")
    return runner_error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
