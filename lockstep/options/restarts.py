"""How often something that failed may be started again."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from lockstep.options.checks import check_number, check_whole


@dataclass(frozen=True)
class RestartLimits:
    """`in_run` restarts in a run, of all workers of a kind together; of one worker `in_window` within `window_s`.

    The environments of one vector count as one worker. `ValueError` for a number that is not allowed.
    """

    in_run: int = 10
    in_window: int = 1
    window_s: float = 60.0

    def __post_init__(self) -> None:
        check_whole("in_run", self.in_run, 0)
        check_whole("in_window", self.in_window, 0)
        check_number("window_s", self.window_s, gt=0)


class RestartBudget:
    """Counts restarts and says when a limit is reached.

    Args:
        limits: how many there may be.
        clock: seconds that only rise.
    """

    def __init__(self, limits: RestartLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits, self._clock = limits, clock
        self.num_restarts = 0
        """restarts so far"""
        self._times: dict[Hashable, list[float]] = {}

    def take(self, worker: Hashable) -> str | None:
        """Count one restart of `worker` and return None; or, uncounted, return which limit is in its way."""
        limits, now = self.limits, self._clock()
        if self.num_restarts >= limits.in_run:
            return f"{self.num_restarts} restarts in this run, at most {limits.in_run} are allowed"
        recent = [then for then in self._times.get(worker, ()) if now - then < limits.window_s]
        if len(recent) >= limits.in_window:
            return f"{len(recent)} restarts in the last {limits.window_s:g} s, at most {limits.in_window} are allowed"
        self._times[worker] = [*recent, now]
        self.num_restarts += 1
        return None
