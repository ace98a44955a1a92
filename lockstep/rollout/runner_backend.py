"""Where the runners of a group live. The group speaks to all of them through these few methods.

Here: one runner in this process. Runners in other processes implement the same protocol, on a higher floor.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from lockstep.rollout.env_runner import EnvRunner

BuildRunner = Callable[..., EnvRunner]
"""`build(index=..., num_runners=..., generation=...)`: a runner with environments of its own"""
Call = Any
"""a call under way"""


class RunnerLostError(RuntimeError):
    """The process of a runner ended, or its node did; what it was asked for is lost."""


class RunnerBackend(Protocol):
    """The runners of one group. Calls of one runner are worked off in the order in which they were made."""

    is_local: bool

    def __len__(self) -> int:
        """Number of runners."""
        ...

    def put(self, value: Any) -> Any:
        """`value` where all runners can fetch it: hand the result to `call`."""
        ...

    def call(self, index: int, func: Callable[..., Any], *args: Any, **options: Any) -> Call:
        """Begins `func(runner, *args, **options)` on one runner; returns at once."""
        ...

    def wait(self, calls: Sequence[Call], timeout_s: float) -> list[Call]:
        """Those of `calls` that have ended, as soon as there is one; none after `timeout_s` seconds."""
        ...

    def result(self, call: Call) -> Any:
        """What an ended call returned. Raises what the runner raised, `RunnerLostError` where there is no runner."""
        ...

    def replace(self, index: int, generation: int) -> None:
        """Ends a runner, if it still lives, and starts another one in its place."""
        ...

    def process_ids(self) -> list[int]:
        """Of the runners, in order."""
        ...

    def shutdown(self) -> None:
        """Ends all processes."""
        ...


class LocalRunner:
    """One runner in this process. A call is made at once; what it returns is a copy."""

    is_local = True

    def __init__(self, build: BuildRunner) -> None:
        self.runner = build(index=0, num_runners=1, generation=0)
        self._ended: dict[int, tuple[Any, BaseException | None]] = {}
        self._calls = 0

    def __len__(self) -> int:
        return 1

    def put(self, value: Any) -> Any:
        """The value itself."""
        return value

    def call(self, index: int, func: Callable[..., Any], *args: Any, **options: Any) -> Call:
        """Makes the call."""
        self._calls += 1
        try:
            self._ended[self._calls] = copy.deepcopy(func(self.runner, *args, **options)), None
        except Exception as error:
            self._ended[self._calls] = None, error
        return self._calls

    def wait(self, calls: Sequence[Call], timeout_s: float) -> list[Call]:
        """All calls: none is under way."""
        return list(calls)

    def result(self, call: Call) -> Any:
        """What it returned, or raises what it raised."""
        value, error = self._ended.pop(call)
        if error is not None:
            raise error
        return value

    def replace(self, index: int, generation: int) -> None:
        """Never asked for: this process cannot be lost."""

    def process_ids(self) -> list[int]:
        """Of no other process."""
        return []

    def shutdown(self) -> None:
        """Closes the environments."""
        self.runner.close()
