"""What runs in the process of a remote learner: the same `Learner`, and how it joins the others."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lockstep.learner.backend import update_learner
from lockstep.learner.errors import LearnerError
from lockstep.learner.learner import Learner
from lockstep.learner.reduction import DistributedReducer, Reducer, distributed
from lockstep.learner.requests import UpdateRequest

BuildLearner = Callable[..., Learner]
"""`build(reducer=...)`: a built learner, the same in each process"""


@dataclass(frozen=True)
class Answer:
    """What a call on a learner came to."""

    value: Any = None
    error: BaseException | None = None
    trace: str = ""
    """of the error, as it was in the learner's process"""
    is_own: bool = True
    """the learner's own error, not one that says that another learner failed"""


class LearnerWorker:
    """One remote learner. Its methods answer with an `Answer`: no error is mistaken for a dead process."""

    def __init__(self) -> None:
        # What comes through the object store is read where it lies, and must not be written to; no learner does.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        self._learner: Learner | None = None
        self._store: Any = None
        self._before: dict[str, Any] | None = None

    @property
    def learner(self) -> Learner:
        """The learner; `RuntimeError` before `join`."""
        if self._learner is None:
            raise RuntimeError("this learner has not joined the others yet")
        return self._learner

    def process_id(self) -> int:
        """Of the learner's process."""
        return os.getpid()

    def serve(self, num_learners: int) -> Answer:
        """Opens the store where all learners find each other; its address."""

        def work() -> str:
            from ray.util import get_node_ip_address

            host = get_node_ip_address()
            self._store = distributed.TCPStore(host, 0, num_learners, is_master=True, wait_for_workers=False)
            return f"tcp://{host}:{self._store.port}"

        return _answer(work)

    def join(self, build: BuildLearner, rank: int, num_learners: int, address: str, options: dict[str, Any]) -> Answer:
        """Becomes learner `rank`: built if it is new, otherwise as it was before an update that failed."""

        def work() -> None:
            store = self._store if rank == 0 else address
            reducer = DistributedReducer(rank, num_learners, store, **options)
            if self._learner is None:
                self._learner = build(reducer=reducer)
                return
            self._learner.reducer = reducer
            if self._before is not None:
                self._learner.set_state(self._before)
                self._before = None

        return _answer(work)

    def is_built(self) -> bool:
        """Has it a learner, whose state counts?"""
        return self._learner is not None

    def update(self, request: UpdateRequest, data: Any) -> Answer:
        """The learner's part in an update. After an error it leaves the others, so that none of them waits for it."""

        def work() -> Any:
            self._before = self.learner.get_state()
            return update_learner(self.learner, replace(request, data=data))

        answer = _answer(work)
        if answer.error is not None and self._learner is not None:
            self._learner.reducer.close()
            self._learner.reducer = _Left()
        return answer

    def accept(self) -> None:
        """All learners have made the update: what was before is not needed any more."""
        self._before = None

    def apply(self, func: Callable[..., Any], *args: Any) -> Answer:
        """`func(learner, *args)`."""
        return _answer(lambda: func(self.learner, *args))


class _Left(Reducer):
    """Of a learner that left the others; nothing refers to the sockets any more, so they close."""

    world_size, rank = 2, 0

    def sum_(self, tensor: Any) -> Any:
        raise LearnerError("this learner left the others after an error")

    def gather(self, value: Any) -> list[Any]:
        raise LearnerError("this learner left the others after an error")

    def broadcast_(self, tensor: Any, source: int = 0) -> Any:
        raise LearnerError("this learner left the others after an error")

    def close(self) -> None:
        """Nothing is left to close."""


def _answer(work: Callable[[], Any]) -> Answer:
    try:
        return Answer(work())
    except BaseException as error:
        trace = traceback.format_exc()
        return Answer(error=_plain(error), trace=trace, is_own=not isinstance(error, LearnerError))


def _plain(error: BaseException) -> BaseException:
    """`error` without its frames; one of a kind that another process may not know as a `LearnerError`."""
    plain = all(isinstance(arg, str | int | float) for arg in error.args)
    if type(error).__module__ == "builtins" and plain:
        return type(error)(*error.args)
    return LearnerError(f"{type(error).__name__}: {error}")
