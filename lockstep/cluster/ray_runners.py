"""`RayRunnerBackend`: m env runners in Ray actors behind an `EnvRunnerGroup`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lockstep.cluster.processes import RayProcesses, Worker, start_ray
from lockstep.rollout.config import EnvRunnersSection
from lockstep.rollout.env_runner import EnvRunner
from lockstep.rollout.errors import EnvRunnerError, RunnerLostError
from lockstep.rollout.runner_group import BuildRunner, Call


@dataclass(frozen=True)
class Stored:
    """A value in the object store; the worker that is handed it fetches it, which is faster than to let Ray do it."""

    reference: Any


class RunnerWorker(Worker):
    """What runs in the process of a remote runner."""

    def __init__(self) -> None:
        super().__init__()
        self._build: Callable[[], EnvRunner] | None = None
        self._runner: EnvRunner | None = None

    def take_place(self, build: BuildRunner, index: int, num_runners: int, generation: int) -> None:
        """Say which runner this is."""
        self._build = partial(build, index=index, num_runners=num_runners, generation=generation)

    def apply(self, func: Callable[..., Any], *args: object, **options: object) -> Any:
        """Return `func(runner, *args, **options)`; the first call builds the runner, and raises where that fails."""
        import ray

        if self._runner is None and self._build is not None:
            self._runner = self._build()
        for name, value in options.items():
            if isinstance(value, Stored):
                options[name] = ray.get(value.reference)
        return func(self._runner, *args, **options)


class RayRunnerBackend:
    """`section.num_env_runners` runners, each `build(index=..., num_runners=..., generation=...)` in an actor.

    Starts Ray on this machine where it does not run yet. Raises `EnvRunnerError` where the cluster has no room.
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
        self._ray, self._num_runners = self._processes.ray, section.num_env_runners
        try:
            self._build = self._ray.put(build)
            self._processes.reserve(self._num_runners)
            self._start(range(self._num_runners), 0)
        except BaseException:
            self.shutdown()
            raise

    def __len__(self) -> int:
        return self._num_runners

    def _start(self, indices: Sequence[int], generation: int) -> None:
        self._processes.start(indices)
        for index in indices:
            self._processes.actors[index].take_place.remote(self._build, index, self._num_runners, generation)

    def put(self, value: object) -> Stored:
        """Put `value` into the object store; runners on the same machine read it where it lies."""
        return Stored(self._processes.store(value))

    def call(self, index: int, func: Callable[..., Any], *args: object, **options: object) -> Call:
        """Begin a call; return its reference."""
        return self._processes.actors[index].apply.remote(func, *args, **options)

    def wait(self, calls: Sequence[Call], timeout_s: float) -> list[Call]:
        """Return those that have ended, as soon as there is one."""
        ready, _ = self._ray.wait(list(calls), num_returns=1, timeout=max(0.0, timeout_s), fetch_local=True)
        if ready and len(calls) > 1:
            ready, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0, fetch_local=True)
        if not ready:  # what has ended on another machine counts, though it is not here yet
            ready, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0, fetch_local=False)
        return list(ready)

    def result(self, call: Call) -> Any:
        """Return what a call returned; arrays of fragments lie in the object store."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(call)
        except errors.RayTaskError as error:
            raise _error_of_runner(error) from error
        except errors.RayError as error:  # its process died, was ended for its memory, its node or its object is lost
            raise RunnerLostError(f"its process or node ended: {_first_line(error)}") from error

    def replace(self, index: int, generation: int) -> None:
        """End the actor and start another one in its place."""
        self._processes.end([index])
        self._start([index], generation)

    def process_ids(self) -> list[int]:
        """Return the processes of the runners, in order."""
        return self._processes.process_ids()

    def shutdown(self) -> None:
        """End all actors, and Ray if it was started here."""
        self._processes.shutdown()


def _error_of_runner(error: Any) -> BaseException:
    """Return what the runner raised, with its traceback as a note."""
    cause = error.cause if isinstance(error.cause, Exception) else None
    raised: BaseException = EnvRunnerError(_first_line(error)) if cause is None else cause
    raised.add_note(f"in the runner's process:\n{error}")
    return raised


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
