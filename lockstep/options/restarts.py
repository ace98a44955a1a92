"""Limits on how often a failed worker is started again."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from lockstep.options.checks import check_number, check_whole


@dataclass(frozen=True)
class RestartLimits:
    """Largest numbers of restarts. All environments of one vector count as one worker.

    Raises:
        ValueError: A number is not allowed.
    """

    in_run: int = 10
    """Restarts in a run, of all workers of one kind together."""
    in_window: int = 1
    """Restarts of one worker within `window_s`."""
    window_s: float = 60.0
    """Length of the window in seconds."""

    def __post_init__(self) -> None:
        check_whole("in_run", self.in_run, 0)
        check_whole("in_window", self.in_window, 0)
        check_number("window_s", self.window_s, gt=0)


class RestartBudget:
    """Counter of restarts that reports when a limit is reached.

    Args:
        limits: The limits.
        clock: Function that returns seconds which only rise.
    """

    def __init__(self, limits: RestartLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self.num_restarts = 0
        """Number of restarts of all workers so far."""
        self._times: dict[Hashable, list[float]] = {}
        """For each worker the times of its restarts within the last window."""

    def take(self, worker: Hashable) -> str | None:
        """Count one restart of `worker` and return None. If a limit forbids it, count nothing and return a message."""
        limits = self.limits
        now = self._clock()
        if self.num_restarts >= limits.in_run:
            return f"{self.num_restarts} restarts in this run, at most {limits.in_run} are allowed"
        recent = [then for then in self._times.get(worker, ()) if now - then < limits.window_s]
        if len(recent) >= limits.in_window:
            return f"{len(recent)} restarts in the last {limits.window_s:g} s, at most {limits.in_window} are allowed"
        self._times[worker] = [*recent, now]
        self.num_restarts += 1
        return None
