"""What runs in the process of a remote learner: the same `Learner`, and how it joins the others."""

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
"""`build(reducer=...)`: a built learner, the same in each process"""
CONTROL = "control"
"""Ray's name for the thread in which a learner answers while it works on a call"""


@dataclass(frozen=True)
class Whole:
    """All that another learner needs to continue as this one. Modules may have come and gone since it was built."""

    specs: Mapping[str, RLModuleSpec]
    configs: Mapping[str, TrainingSection]
    """The training options of the modules that have their own."""
    connectors: Mapping[str, ModuleConnectors]
    """The connectors of the modules that were added after the build. The others need not be such as can be pickled:
    each learner builds its own."""
    policies_to_train: TrainedModules
    state: Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """What a call on a learner returned or raised."""

    value: Any = None
    error: BaseException | None = None
    trace: str = ""
    """of the error, as it was in the learner's process"""
    is_own: bool = True
    """the learner's own error, not one that says that another learner failed"""
    is_alive: bool = True
    """is there still a process that answers?"""
    modules: dict[str, bool] = field(default_factory=dict)
    """the learner's modules, and whether each has memory"""


class LearnerWorker(Worker):
    """One remote learner. Its methods answer with an `Answer`: no error is mistaken for a dead process.

    `progress` and `before` are called in the thread `CONTROL`, beside the work, `read` there too where it reads a
    number or two; all others one after another.
    """

    def __init__(self) -> None:
        super().__init__()
        self.learner: Any = None
        """the `Learner`, from `join` on"""
        self._store: Any = None
        self._before: Whole | None = None

    def serve(self, num_learners: int) -> Answer:
        """Open the store where all learners find each other; return its address."""

        def work() -> str:
            from ray.util import get_node_ip_address

            host = get_node_ip_address()
            self._store = serve_store(host, 0, num_learners, wait_for_workers=False)
            return f"tcp://{host}:{self._store.port}"

        return _answer(work)

    def join(self, build: BuildLearner, rank: int, num_learners: int, address: str, options: dict[str, Any]) -> Answer:
        """Become learner `rank`; build the learner if the process is new."""

        def work() -> dict[str, bool]:
            from ray.util import get_node_ip_address

            store = self._store if rank == 0 else address
            reducer: Reducer = LocalReducer()
            if num_learners > 1:
                reducer = DistributedReducer(rank, num_learners, store, host=get_node_ip_address(), **options)
            if self.learner is None:
                self.learner = build(reducer=reducer)
            self.learner.reducer = reducer
            return self.learner.modules_with_memory()

        return _answer(work)

    def update(self, request: UpdateRequest, data: Data) -> Answer:
        """Make the learner's part in an update."""
        return self._try(lambda: run_request(replace(request, data=data), self.learner))

    def apply(self, func: Callable[..., Any], *args: object) -> Answer:
        """Return `func(learner, *args)`, which may change the learner."""
        return self._try(lambda: func(self.learner, *args))

    def read(self, func: Callable[..., Any], *args: object) -> Answer:
        """Return `func(learner, *args)`, which leaves the learner as it is."""
        return _answer(lambda: func(self.learner, *args))

    def accept(self) -> None:
        """Forget what was before the call: all learners have done it."""
        self._before = None

    def set_back(self) -> Answer:
        """Undo a call that was not accepted. The learner must join the others anew."""

        def work() -> None:
            self._leave()
            if self._before is not None:
                become(self.learner, self._before)
                self._before = None

        return _answer(work)

    # -- beside the work ---

    def progress(self) -> tuple[int, bool]:
        """Return how often the learner met the others, and whether it waits for them now."""
        reducer = None if self.learner is None else self.learner.reducer
        return (0, False) if reducer is None else (reducer.num_calls, reducer.is_waiting)

    def before(self) -> Whole | None:
        """Return the learner as it was before the call that it works on."""
        return self._before

    # -- inside ---

    def _try(self, work: Callable[[], Any]) -> Answer:
        """Do the work; after an error leave the others, so that none of them waits for this learner."""

        def kept() -> Any:
            self._before = whole_of(self.learner)
            return work()

        answer = _answer(kept)
        if answer.error is not None:
            self._leave()
            return answer
        return replace(answer, modules=self.learner.modules_with_memory())

    def _leave(self) -> None:
        if self.learner is not None and not isinstance(self.learner.reducer, _Left):
            self.learner.reducer.close()
            self.learner.reducer = _Left()


class _Left(Reducer):
    """The reducer of a learner that left the others; nothing refers to the sockets any more, so they close."""

    world_size, rank = 2, 0

    def sum_(self, tensor: Tensor) -> Any:
        raise LearnerError("this learner left the others after an error")

    def gather(self, value: Tree) -> list[Any]:
        raise LearnerError("this learner left the others after an error")

    def close(self) -> None:
        """Do nothing: nothing is left to close."""


def whole_of(learner: Learner) -> Whole:
    """Return what another learner needs to continue as this one; the state is a copy."""
    connectors = {}
    for module_id, each in learner.connectors.items():
        if each is not learner.built_connectors.get(module_id):
            # What joins the statistics of several learners belongs to this learner; no other process can read it.
            connectors[module_id] = replace(each, join=None, gather=None)
    return Whole(
        specs=learner.module.spec().rl_module_specs,
        configs=dict(learner.module_configs),
        connectors=connectors,
        policies_to_train=learner.policies_to_train,
        state=learner.get_state(),
    )


def become(learner: Learner, like: Whole) -> None:
    """Make a learner equal to the one that `like` describes, with its modules in the same order.

    Learners reduce their gradients optimizer by optimizer, so another order would mix up those of two modules.
    """
    connectors = {**learner.built_connectors, **like.connectors}
    for change in module_changes(list(learner.module), list(like.specs)):
        module_id = change.module_id
        if change.is_added:
            learner.add_module(
                module_id=module_id,
                module_spec=like.specs[module_id],
                config_overrides=like.configs.get(module_id),
                connectors=connectors[module_id],
            )
        else:
            learner.remove_module(module_id)
    learner.policies_to_train = like.policies_to_train
    learner.set_state(like.state)


def _answer(work: Callable[[], Any]) -> Answer:
    try:
        return Answer(work())
    except BaseException as error:
        trace = traceback.format_exc()
        return Answer(error=_sendable_error(error), trace=trace, is_own=not isinstance(error, LearnerError))


def _sendable_error(error: BaseException) -> BaseException:
    """Return `error` without its frames, as a `LearnerError` where another process may not know its class."""
    plain = all(isinstance(arg, str | int | float) for arg in error.args)
    if type(error).__module__ == "builtins" and plain:
        return type(error)(*error.args)
    return LearnerError(f"{type(error).__name__}: {error}")
