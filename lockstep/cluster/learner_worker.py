"""`LearnerWorker`: a `Learner` in a process of its own, as a Ray actor."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from lockstep.cluster.processes import Worker
from lockstep.connectors import ModuleConnectors
from lockstep.data.trees import Tree
from lockstep.learner.config import TrainingSection
from lockstep.learner.group import Data, run_request
from lockstep.learner.inputs import TrainedModules
from lockstep.learner.learner import Learner
from lockstep.learner.many.reduction import DistributedReducer, LearnerError, LocalReducer, Reducer, serve_store
from lockstep.learner.many.request_queue import UpdateRequest
from lockstep.modules import RLModuleSpec
from lockstep.modules.multi_rl_module import module_changes

BuildLearner = Callable[..., Learner]
"""Function `build(reducer=...)` that returns a built learner, the same one in each process."""
CONTROL = "control"
"""Name of the actor's second thread, in which it answers while it works on a call."""


@dataclass(frozen=True)
class LearnerSnapshot:
    """Description and state of a learner, from which another learner can continue.

    It describes the modules too, because modules may have been added and removed since the learner was built.
    """

    specs: Mapping[str, RLModuleSpec]
    """Specifications of all modules."""
    configs: Mapping[str, TrainingSection]
    """Training options of the modules that have their own."""
    connectors: Mapping[str, ModuleConnectors]
    """Connectors of the modules that were added after the build. All others are built by each learner itself, because
    not all of them can be pickled."""
    policies_to_train: TrainedModules
    """Modules that learn."""
    state: Mapping[str, Any]
    """State of the learner."""


@dataclass(frozen=True)
class CallResult:
    """Value or error of a call on a learner."""

    value: Any = None
    """Returned value."""
    error: BaseException | None = None
    """Exception of the call."""
    trace: str = ""
    """Traceback of the error in the learner's process."""
    is_own: bool = True
    """Whether the error is the learner's own. Otherwise it reports that another learner has failed."""
    is_alive: bool = True
    """Whether the learner's process still answers."""
    modules: dict[str, bool] = field(default_factory=dict)
    """Ids of the learner's modules, each with whether it has a memory."""


class LearnerWorker(Worker):
    """Actor with one learner.

    Its methods return a `CallResult` and never raise, so that an error of the learner is not mistaken for the death of
    its process. `progress`, `snapshot` and `read` of few numbers may be called in the thread `CONTROL` while another
    call is running. All other calls run one after another.
    """

    def __init__(self) -> None:
        super().__init__()
        self.learner: Any = None
        """The `Learner`, after the first `join`."""
        self._store: Any = None
        self._snapshot: LearnerSnapshot | None = None
        """The learner before the present call, until all learners have executed it."""
        self._is_connected = False
        """Whether the learner is connected with the others."""

    def serve(self, num_learners: int) -> CallResult:
        """Open the key-value store through which learners find each other, and return its address."""

        def work() -> str:
            from ray.util import get_node_ip_address

            host = get_node_ip_address()
            self._store = serve_store(host, 0, num_learners, wait_for_workers=False)
            return f"tcp://{host}:{self._store.port}"

        return _call(work)

    def join(
        self, build: BuildLearner, rank: int, num_learners: int, address: str, options: dict[str, Any]
    ) -> CallResult:
        """Connect with the other learners as learner `rank`. A new process builds its learner first."""

        def work() -> dict[str, bool]:
            from ray.util import get_node_ip_address

            store = self._store if rank == 0 else address
            reducer: Reducer = LocalReducer()
            if num_learners > 1:
                reducer = DistributedReducer(rank, num_learners, store, host=get_node_ip_address(), **options)
            if self.learner is None:
                self.learner = build(reducer=reducer)
            self.learner.reducer = reducer
            self._is_connected = True
            return self.learner.modules_with_memory()

        return _call(work)

    def update(self, request: UpdateRequest, data: Data) -> CallResult:
        """Execute this learner's part of an update."""
        return self._call_with_snapshot(lambda: run_request(replace(request, data=data), self.learner))

    def apply(self, func: Callable[..., Any], *args: object) -> CallResult:
        """Return `func(learner, *args)`, which may change the learner."""
        return self._call_with_snapshot(lambda: func(self.learner, *args))

    def read(self, func: Callable[..., Any], *args: object) -> CallResult:
        """Return `func(learner, *args)`, which must not change the learner."""
        return _call(lambda: func(self.learner, *args))

    def commit(self) -> None:
        """Drop the snapshot, because all learners have executed the call."""
        self._snapshot = None

    def roll_back(self) -> CallResult:
        """Undo a call that was not committed. The learner must join the others again."""

        def work() -> None:
            self._leave()
            if self._snapshot is not None:
                restore_snapshot(self.learner, self._snapshot)
                self._snapshot = None

        return _call(work)

    # -- calls in the thread `CONTROL` ---

    def progress(self) -> tuple[int, bool]:
        """Return the number of reductions so far, and whether the learner is waiting for the others in one."""
        reducer = None if self.learner is None else self.learner.reducer
        return (0, False) if reducer is None else (reducer.num_calls, reducer.is_waiting)

    def snapshot(self) -> LearnerSnapshot | None:
        """Return the learner before the call that it is working on."""
        return self._snapshot

    # -- private methods ---

    def _call_with_snapshot(self, work: Callable[[], Any]) -> CallResult:
        """Execute a call that can be rolled back.

        After an error the learner disconnects, so that no other learner waits for it.
        """

        def work_with_snapshot() -> Any:
            self._snapshot = take_snapshot(self.learner)
            return work()

        result = _call(work_with_snapshot)
        if result.error is not None:
            self._leave()
            return result
        return replace(result, modules=self.learner.modules_with_memory())

    def _leave(self) -> None:
        """Disconnect from the other learners, whose reductions then fail instead of waiting for this one."""
        if self.learner is not None and self._is_connected:
            self.learner.reducer.close()
            self.learner.reducer = _DisconnectedReducer()
            self._is_connected = False


class _DisconnectedReducer(Reducer):
    """Reducer of a learner that has disconnected from the others.

    It replaces the old reducer, because sockets close only when nothing refers to them.
    """

    world_size = 2  # with 1 a learner would not reduce at all
    rank = 0

    def sum_(self, tensor: Tensor) -> Any:
        raise LearnerError("this learner left the others after an error")

    def gather(self, value: Tree) -> list[Any]:
        raise LearnerError("this learner left the others after an error")

    def close(self) -> None:
        """Do nothing: there is no connection to close."""


def take_snapshot(learner: Learner) -> LearnerSnapshot:
    """Return a snapshot of a learner. The state in it is a copy."""
    connectors = {}
    for module_id, module_connectors in learner.connectors.items():
        if module_connectors is not learner.built_connectors.get(module_id):
            # The functions that combine the statistics of several learners belong to this process.
            connectors[module_id] = replace(module_connectors, join=None, gather=None)
    return LearnerSnapshot(
        specs=learner.module.spec().rl_module_specs,
        configs=dict(learner.module_configs),
        connectors=connectors,
        policies_to_train=learner.policies_to_train,
        state=learner.get_state(),
    )


def restore_snapshot(learner: Learner, snapshot: LearnerSnapshot) -> None:
    """Make a learner equal to the one of a snapshot, with its modules in the same order.

    Learners reduce their gradients optimizer by optimizer: with another order those of two modules would be mixed.
    """
    connectors = {**learner.built_connectors, **snapshot.connectors}
    for change in module_changes(list(learner.module), list(snapshot.specs)):
        module_id = change.module_id
        if change.is_added:
            learner.add_module(
                module_id=module_id,
                module_spec=snapshot.specs[module_id],
                config_overrides=snapshot.configs.get(module_id),
                connectors=connectors[module_id],
            )
        else:
            learner.remove_module(module_id)
    learner.policies_to_train = snapshot.policies_to_train
    learner.set_state(snapshot.state)


def _call(work: Callable[[], Any]) -> CallResult:
    """Return the value of `work()`, or its exception."""
    try:
        return CallResult(work())
    except BaseException as error:
        # KeyboardInterrupt and SystemExit too: an actor that does not answer counts as dead, and its error is lost.
        trace = traceback.format_exc()
        return CallResult(error=_sendable_error(error), trace=trace, is_own=not isinstance(error, LearnerError))


def _sendable_error(error: BaseException) -> BaseException:
    """Return an exception that another process can read: without frames, and of a class that it knows."""
    is_plain = all(isinstance(arg, str | int | float) for arg in error.args)
    if type(error).__module__ == "builtins" and is_plain:
        return type(error)(*error.args)
    return LearnerError(f"{type(error).__name__}: {error}")
