"""gymnasium's `AsyncVectorEnv` behind the boundary, with its known faults guarded.

- After a time-out its pipes answer the wrong question: the workers are ended, and a further step is refused.
- An error in a worker arrives with its traceback, row and last action; gymnasium only logs the traceback.
- A worker that died cannot be started again from outside: the answers of the others are read, and the arguments of
  its process gone. The error says what can (`WorkerVectorEnv`).
- In DISABLED mode stepping past the end is silent: the boundary resets finished rows itself, always.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
from collections.abc import Iterable
from multiprocessing import connection
from typing import Any

from gymnasium.vector import AsyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState

from lockstep.envs.adapters import VectorEnvBoundary, _row_of
from lockstep.envs.errors import EnvironmentStepError, EnvironmentTimeoutError, WorkerTraceback, step_error
from lockstep.state.messages import no_copies

_REPORT_TIMEOUT = 5.0
"""Seconds to wait for the report of a worker that has said that it failed."""


_RESTARTS = (
    "gymnasium's AsyncVectorEnv cannot start a worker again; our own vector does, within limits: give the function "
    "that makes one environment, with env_runners(vectorize_mode='async') or "
    "make_vector(function, num_envs=n, mode='async'). "
)
_PICKLE = (
    "What an environment in a process of its own gives, info too, must be picklable: take the rest out of info, or use "
    "make_vector(function, num_envs=n, mode='async'), which leaves it out. "
)


class AsyncVectorEnvBoundary(VectorEnvBoundary):
    """`AsyncVectorEnv` (one process for each environment) behind the boundary.

    Args:
        env: the vector environment, not wrapped.
        step_timeout: seconds that the slowest environment may take for a step or a reset; None waits for
            ever.
    """

    def __init__(self, env: AsyncVectorEnv, *, step_timeout: float | None = None) -> None:
        if step_timeout is not None and step_timeout <= 0:
            raise ValueError(f"step_timeout must be a positive number of seconds or None, got {step_timeout!r}.")
        super().__init__(env)
        self._workers = env
        self._step_timeout = step_timeout
        self._env_step = self._step_workers
        self._last_actions: Any = None
        self._broken: str | None = None
        env._raise_if_errors = self._raise_worker_errors  # type: ignore[method-assign]

    def _resets_single_rows(self, base: Any) -> bool:
        return bool(base.shared_memory)

    def _step_workers(self, actions: Any) -> Any:
        self._last_actions = actions
        with self._guard("step"):
            self._workers.step_async(actions)
            return self._workers.step_wait(self._step_timeout)

    def _reset_all(self, seeds: list[int] | None) -> Any:
        self._last_actions = None
        with self._guard("reset"):
            self._workers.reset_async(seed=None if seeds is None else [int(seed) for seed in seeds])
            return self._workers.reset_wait(self._step_timeout)[0]

    def _reset_rows(self, mask: Any) -> Any:
        with self._guard("reset"):
            self._workers.reset_async(options={"reset_mask": mask})
            return self._workers.reset_wait(self._step_timeout)[0]

    def check_open(self) -> None:
        """Raises `RuntimeError` after `close`, `EnvironmentStepError` after a failure that ended the workers."""
        if self._broken is not None:
            raise EnvironmentStepError(
                f"the workers were ended after an earlier failure ({self._broken}); build the vector again."
            )
        super().check_open()

    @contextlib.contextmanager
    def _guard(self, during: str) -> Any:
        try:
            yield
        except EnvironmentStepError:
            raise
        except multiprocessing.TimeoutError as error:
            late = [row for row, pipe in enumerate(self._workers.parent_pipes) if not pipe.poll(0)]
            self._end_workers(f"time-out of rows {late}")
            raise EnvironmentTimeoutError(
                f"environments {late} did not answer within step_timeout={self._step_timeout} s (during "
                f"{during}). "
                f"Their pipes are out of step, so all workers were ended; build the vector again. {_RESTARTS.strip()}",
                env_index=late[0] if late else None,
            ) from error
        except (EOFError, ConnectionError) as error:
            row = self._dead_row()
            self._end_workers(f"worker {row} died")
            told = step_error(None, backend=self.backend, env_index=row, action=self._action_of(row), during=during)
            told.args = (f"{told} {_RESTARTS}",)
            raise told from error

    def _dead_row(self) -> int | None:
        """The first worker that has ended; a pipe may be seen closed a moment before its process is gone."""
        sentinels = [process.sentinel for process in self._workers.processes]
        ended = connection.wait(sentinels, timeout=_REPORT_TIMEOUT)
        return min((sentinels.index(sentinel) for sentinel in ended), default=None)  # type: ignore[arg-type]

    def _action_of(self, row: int | None) -> Any:
        return None if row is None or self._last_actions is None else _row_of(self._last_actions, row)

    def _raise_worker_errors(self, successes: Iterable[bool]) -> None:
        """Stands in for `AsyncVectorEnv._raise_if_errors`: with the place and the traceback."""
        failed = [row for row, success in enumerate(successes) if not success]
        if not failed:
            return
        row, value, text = self._report_of(failed)
        self._end_workers(f"error in row {row}")
        if isinstance(value, KeyboardInterrupt):
            raise value
        raise step_error(
            value,
            backend=self.backend,
            env_index=row,
            action=self._action_of(row),
            during="reset" if self._last_actions is None else "step",
            hint=_PICKLE if "pipe.send" in text and "pickle" in text else "",
        ) from WorkerTraceback(text)

    def _report_of(self, failed: list[int]) -> tuple[int, Any, str]:
        """(row, error or its summary, traceback text) of the first failed row whose report arrives."""
        reports: list[Any] = []
        try:
            while len(reports) < len(failed):
                reports.append(self._workers.error_queue.get(timeout=_REPORT_TIMEOUT))
        except queue.Empty:
            lost = "an error that cannot be pickled, so that it could not be told from its process"
        except Exception as error:
            lost = f"an error that cannot be made again from its pickled form ({error})"
        if not reports:
            return failed[0], lost, "(in a worker process; step the environment in one process to see its traceback)"
        row, _, value, text = min(reports, key=lambda report: report[0])
        return row, value, text

    def _end_workers(self, reason: str | None) -> None:
        """End all processes and pipes without asking them anything; `reason` is the failure, if there was one."""
        self._broken = reason
        self._closed = True
        env = self._workers
        for process in env.processes:
            process.terminate()
        for process in env.processes:
            process.join(1.0)
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in env.parent_pipes:
            if pipe is not None and not pipe.closed:
                pipe.close()
        env.closed = True

    __reduce__ = no_copies("processes", "make another one")

    def close(self) -> None:
        """End the workers; a second call does nothing."""
        if not self._closed:
            self._closed = True
            if self._workers._state is AsyncState.DEFAULT:
                with contextlib.suppress(EOFError, OSError):
                    self._workers.close()
            if not self._workers.closed:
                self._end_workers(None)
