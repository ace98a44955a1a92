"""Where the learners of a group live. The group speaks to all of them through these few methods.

Here: one learner in this process. Learners in other processes implement the same protocol, on a higher floor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from lockstep.learner.learner import Learner
from lockstep.learner.requests import UpdateRequest, frozen_data
from lockstep.learner.results import Results

STATE_AFTER_UPDATE = "_rl_module_state_after_update"


class LearnerBackend(Protocol):
    """The learners of one group. One call at a time; each ends on all learners before it returns."""

    is_local: bool
    last_checkpoint: str
    """path of what was saved or restored last; empty before that"""

    def __len__(self) -> int:
        """Number of learners."""
        ...

    def update(self, request: UpdateRequest) -> list[Results]:
        """One update on all learners together (each has its shard); the results of each, in order."""
        ...

    def fetched(self, data: Any) -> Any:
        """Episodes or a batch, where `data` may be references to them."""
        ...

    def freeze(self, data: Any) -> Any:
        """Episodes or a batch as an asynchronous update holds them, whatever becomes of the caller's."""
        ...

    def foreach(self, func: Callable[..., Any], *args: Any) -> list[Any]:
        """`[func(learner, *args)]`, in order; where all raise, nothing is changed."""
        ...

    def first(self, func: Callable[..., Any], *args: Any) -> Any:
        """`func(learner, *args)` of one learner, for what is the same on all and changes nothing."""
        ...

    def peek(self, func: Callable[..., Any]) -> Any:
        """`func(learner)` of one learner, which may be at work on an update; None where none answers."""
        ...

    def resize(self, num_learners: int) -> None:
        """Another number of learners, which go on with the same state."""
        ...

    def num_restarts(self) -> int:
        """Learners that were started again after a failure."""
        ...

    def shutdown(self) -> None:
        """Ends all processes."""
        ...


class LocalBackend:
    """One learner in this process."""

    is_local = True

    def __init__(self, learner: Learner) -> None:
        learner.build()  # an override need not return anything
        self.learner, self.last_checkpoint = learner, ""

    def __len__(self) -> int:
        return 1

    def update(self, request: UpdateRequest) -> list[Results]:
        """The results of the one learner."""
        return [update_learner(self.learner, request)]

    def fetched(self, data: Any) -> Any:
        """`data` itself: here nothing is referred to."""
        return data

    def freeze(self, data: Any) -> Any:
        """A copy."""
        return frozen_data(data)

    def foreach(self, func: Callable[..., Any], *args: Any) -> list[Any]:
        """`[func(learner, *args)]`."""
        return [func(self.learner, *args)]

    def first(self, func: Callable[..., Any], *args: Any) -> Any:
        """`func(learner, *args)`."""
        return func(self.learner, *args)

    def peek(self, func: Callable[..., Any]) -> Any:
        """`func(learner)`."""
        return func(self.learner)

    def resize(self, num_learners: int) -> None:
        """A learner in this process stays one."""
        if num_learners not in (0, 1):
            raise ValueError(
                f"resize({num_learners}): this group has its one learner in this process; for several, build the group "
                f"with learners(num_learners={num_learners})"
            )

    def num_restarts(self) -> int:
        """Always 0."""
        return 0

    def shutdown(self) -> None:
        """There is no process to end."""


def update_learner(learner: Learner, request: UpdateRequest) -> Results:
    """One learner's part in an update; every backend calls it where its learners are."""
    update = learner.update_from_episodes if request.kind == "episodes" else learner.update_from_batch
    results: Results = update(request.data, **request.options)
    if request.return_state and learner.reducer.rank == 0:
        results[STATE_AFTER_UPDATE] = {mid: module.get_state() for mid, module in learner.module.items()}
    return results


def modules_with_memory(learner: Learner) -> dict[str, bool]:
    """`{module_id: has it memory?}`, as `shards_of` needs it."""
    return {module_id: module.is_stateful() for module_id, module in learner.module.items()}
