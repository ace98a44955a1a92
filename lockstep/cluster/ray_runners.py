"""`RayRunnerBackend`: m env runners in Ray actors behind an `EnvRunnerGroup`."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.cluster.start import start_ray
from lockstep.rollout.config import EnvRunnersSection
from lockstep.rollout.env_runner import EnvRunner
from lockstep.rollout.errors import EnvRunnerError, RunnerLostError
from lockstep.rollout.runner_group import BuildRunner, Call

ROOM_S = 30.0
"""seconds that a cluster has to find room for a runner"""


@dataclass(frozen=True)
class Stored:
    """What lies in the object store; who is handed it fetches it, which is faster than to let Ray do it before."""

    reference: Any


def _fetched(value: Any) -> Any:
    import ray

    return ray.get(value.reference) if isinstance(value, Stored) else value


class RunnerWorker:
    """What runs in the process of a remote runner."""

    def __init__(self, build: BuildRunner, index: int, num_runners: int, generation: int) -> None:
        # What comes through the object store is read where it lies, and is not written to.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        self._build = build
        self._place = {"index": index, "num_runners": num_runners, "generation": generation}
        self._runner: EnvRunner | None = None

    def process_id(self) -> int:
        """Of the runner's process."""
        return os.getpid()

    def apply(self, func: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """`func(runner, *args, **options)`; the first call builds the runner, so that its error is that call's."""
        if self._runner is None:
            self._runner = self._build(**self._place)
        return func(self._runner, *args, **{name: _fetched(value) for name, value in options.items()})


class RayRunnerBackend:
    """`section.num_env_runners` runners, each `build(index=..., num_runners=..., generation=...)` in an actor.

    Starts Ray on this machine where it does not run yet. Raises `EnvRunnerError` where the cluster has no room.
    """

    is_local = False

    def __init__(
        self, build: BuildRunner, section: EnvRunnersSection, *, start_ray: Callable[[], bool] = start_ray
    ) -> None:
        import ray

        if section.num_env_runners < 1:
            raise ValueError(f"num_env_runners={section.num_env_runners}; runners in other processes are at least 1")
        self._ray, self._section = ray, section
        self._owns_ray = start_ray()
        self._workers: list[Any] = []
        self._build = ray.put(build)
        self._calls: dict[Any, int] = {}
        try:
            self._workers = [self._new_worker(index, 0) for index in range(section.num_env_runners)]
            self._check_room()
        except BaseException:
            self.shutdown()
            raise

    def __len__(self) -> int:
        return len(self._workers)

    def put(self, value: Any) -> Any:
        """A reference to `value` in the object store; runners on the same machine read it where it lies."""
        return Stored(self._ray.put(value))

    def call(self, index: int, func: Callable[..., Any], *args: Any, **options: Any) -> Call:
        """Begins a call; returns its reference."""
        return self._workers[index].apply.remote(func, *args, **options)

    def wait(self, calls: Sequence[Call], timeout_s: float) -> list[Call]:
        """Those that have ended, as soon as there is one."""
        ready, _ = self._ray.wait(list(calls), num_returns=1, timeout=max(0.0, timeout_s), fetch_local=True)
        if ready and len(calls) > 1:
            ready, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0, fetch_local=True)
        if not ready:  # what has ended on another machine counts, though it is not here yet
            ready, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0, fetch_local=False)
        return list(ready)

    def result(self, call: Call) -> Any:
        """What a call returned; arrays of fragments lie in the object store."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(call)
        except errors.RayTaskError as error:
            raise _own_error(error) from error
        except errors.RayError as error:  # its process died, was ended for its memory, its node or its object is lost
            raise RunnerLostError(f"its process or node ended: {_first_line(error)}") from error

    def replace(self, index: int, generation: int) -> None:
        """Ends the actor and starts another one in its place, on any node."""
        self._ray.kill(self._workers[index])
        self._workers[index] = self._new_worker(index, generation)

    def process_ids(self) -> list[int]:
        """Of the runners, in order."""
        ids: list[int] = self._ray.get([worker.process_id.remote() for worker in self._workers])
        return ids

    def shutdown(self) -> None:
        """Ends all actors, and Ray if it was started here."""
        if not self._ray.is_initialized():
            return
        for worker in self._workers:
            self._ray.kill(worker)
        self._workers = []
        if self._owns_ray:
            self._ray.shutdown()

    def _new_worker(self, index: int, generation: int) -> Any:
        section = self._section
        return (
            self._ray.remote(RunnerWorker)
            .options(
                num_cpus=section.num_cpus_per_env_runner,
                num_gpus=section.num_gpus_per_env_runner,
                resources=section.custom_resources_per_env_runner or None,
                scheduling_strategy="SPREAD",
                max_restarts=0,
            )
            .remote(self._build, index, section.num_env_runners, generation)
        )

    def _check_room(self) -> None:
        waiting = [worker.process_id.remote() for worker in self._workers]
        until = time.monotonic() + ROOM_S
        while waiting:
            _, waiting = self._ray.wait(waiting, num_returns=len(waiting), timeout=max(0.0, until - time.monotonic()))
            if waiting and time.monotonic() >= until:
                section = self._section
                wanted = {"CPU": section.num_cpus_per_env_runner, "GPU": section.num_gpus_per_env_runner}
                wanted = {k: v for k, v in {**wanted, **section.custom_resources_per_env_runner}.items() if v}
                free = self._ray.available_resources()
                raise EnvRunnerError(
                    f"the cluster found no room for {len(waiting)} of {section.num_env_runners} env runners with "
                    f"{wanted} each in {ROOM_S:.0f} s; free are { {name: free.get(name, 0) for name in wanted} }; "
                    "ask for fewer runners, or set env_runners.num_cpus_per_env_runner lower"
                )


def _own_error(error: Any) -> BaseException:
    """What the runner raised, with its traceback as a note."""
    cause = error.cause if isinstance(error.cause, Exception) else None
    own: BaseException = EnvRunnerError(_first_line(error)) if cause is None else cause
    own.add_note(f"in the runner's process:\n{error}")
    return own


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
