"""`LearnerGroup`: one learner or several that are used as one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from functools import partial
from operator import attrgetter, methodcaller
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, Unpack

import numpy as np

from lockstep.connectors import ModuleConnectors
from lockstep.data.tensor_rollout import TensorRollout
from lockstep.learner.checkpointing import LearnerParts, names_of, state_to_restore
from lockstep.learner.config import LearnersSection, TrainingSection
from lockstep.learner.inputs import TrainedModules
from lockstep.learner.learner import Learner
from lockstep.learner.many.reduction import LocalReducer, Reducer
from lockstep.learner.many.request_queue import (
    Kind,
    OnFull,
    Outcome,
    RequestQueue,
    UpdateRequest,
    frozen_data,
    num_steps_of,
)
from lockstep.learner.many.sharding import shards_of
from lockstep.learner.metrics import Results
from lockstep.learner.optimizers import ALL_MODULES
from lockstep.modules import MultiRLModuleSpec, RLModule, RLModuleSpec
from lockstep.state.checkpoint import read_checkpoint, write_checkpoint
from lockstep.state.trust import FileNames

STATE_AFTER_UPDATE = "_rl_module_state_after_update"
"""Key of the weights in the results of an update with `return_state=True`."""
Data = Any
"""Episodes or a batch. If learners are in other processes, it may be a reference to them."""


class LearnerBackend:
    """Executor of a group's calls on its learners.

    This class has one learner, in this process. Subclasses have several, in other processes. A backend executes one
    call at a time, and a call returns when it has ended on all learners.
    """

    is_local = True
    """Whether the learner runs in this process."""

    def __init__(self, learner: Learner) -> None:
        learner.build()  # not chained: an override may forget to return the learner
        self.learner = learner
        self.last_checkpoint = ""
        """Path of the checkpoint that was saved or restored last; empty before that."""

    def __len__(self) -> int:
        """Return the number of learners."""
        return 1

    def share(self, data: Data) -> Data:
        """Return the part of episodes or a batch that this learner trains on.

        If this process is one of several ranks (a `DistributedReducer`), all of them have the same data, and each takes
        its own shard.
        """
        reducer = self.learner.reducer
        if reducer.world_size == 1 or isinstance(data, TensorRollout):  # each rank has its own rollout
            return data
        return shards_of(data, reducer.world_size, self.learner.modules_with_memory())[reducer.rank]

    def request(
        self,
        kind: Kind,
        data: Data,
        options: Mapping[str, Any],
        *,
        return_state: bool,
        reduce_results: bool,
    ) -> UpdateRequest:
        """Return the checked request for an update. Its data are not yet divided among the learners, see `divided`."""
        return UpdateRequest.checked(kind, data, options, return_state, reduce_results)

    def divided(self, request: UpdateRequest, *, is_async: bool) -> UpdateRequest:
        """Return the request with its data divided among the learners.

        The division depends on the learners and their modules, which earlier calls may change. So a synchronous update
        divides its data when its turn comes. An asynchronous one divides a copy at once, since the caller may change
        the data as soon as the call has returned.
        """
        data = frozen_data(request.data) if is_async else request.data
        return replace(request, data=self.share(data))

    def update(self, request: UpdateRequest) -> list[Results]:
        """Update all learners together, each on its shard; return the results of each learner, in order."""
        return [run_request(request, self.learner)]

    def foreach(self, func: Callable[..., Any], *args: object) -> list[Any]:
        """Return `func(learner, *args)` of each learner, in order.

        If `func` raises an error on all of them, no learner is changed, and the error is raised here.

        If this process is one of several ranks, all of them make this call together. If the result is an array, each
        rank then returns the results of all ranks; otherwise it returns only its own.
        """
        value = func(self.learner, *args)
        return self.learner.reducer.gather(value) if isinstance(value, np.ndarray) else [value]

    def first(self, func: Callable[..., Any], *args: object) -> Any:
        """Return `func(learner, *args)` of one learner.

        `func` must return the same on all learners, and change nothing.
        """
        return func(self.learner, *args)

    def peek(self, func: Callable[..., Any]) -> Any:
        """Return `func(learner)` of one learner, even during an update; None if no learner answers."""
        return func(self.learner)

    def resize(self, num_learners: int) -> None:
        """Continue with another number of learners, which have the same state."""
        if num_learners not in (0, 1):
            raise ValueError(
                f"resize({num_learners}): this group has its one learner in this process; for several, build the group "
                f"with learners(num_learners={num_learners})"
            )

    def num_restarts(self) -> int:
        """Return the number of learners that were started again after a failure."""
        return 0

    def shutdown(self) -> None:
        """End all processes of the learners, and leave the other ranks."""
        self.learner.reducer.close()


def run_request(request: UpdateRequest, learner: Learner) -> Results:
    """Return the results of one learner's part in an update. Backends call it in the process of the learner."""
    update = learner.update_from_episodes if request.kind == "episodes" else learner.update_from_batch
    results: Results = update(request.data, **request.options)
    if request.return_state and learner.reducer.rank == 0:
        results[STATE_AFTER_UPDATE] = learner.get_weights()
    return results


class LearnerGroup:
    """Group of learners that is used as one. All methods work alike with one learner in this process and with several.

    Updates run one after another, and every other call waits for the running update. The group is a context manager;
    after `shutdown()` no process and no thread is left.

    Args:
        learner: Learner in this process, or a `LearnerBackend` with several.
        section: Options of the learners.
    """

    start_learners: ClassVar[Callable[..., LearnerBackend]]
    """Function `(build, section)` that starts learners in other processes. `lockstep.cluster`, which this folder must
    not import, sets it."""

    def __init__(self, learner: Learner | LearnerBackend, section: LearnersSection | None = None) -> None:
        self.section = LearnersSection() if section is None else section
        if not isinstance(self.section, LearnersSection):
            raise TypeError(f"section is a {type(section).__name__}; a LearnersSection is needed, or None")
        if not isinstance(learner, Learner | LearnerBackend):
            raise TypeError(f"learner is a {type(learner).__name__}; a Learner or a LearnerBackend is needed")
        self.section.validate()
        self._learner: Learner | None = None
        if isinstance(learner, LearnerBackend):
            self._backend = learner
        else:
            if self.section.num_learners:
                raise ValueError(
                    f"num_learners={self.section.num_learners}, but one learner in this process was given; "
                    "build_learner_group() of a configuration starts others (lockstep.cluster)"
                )
            self._backend = LearnerBackend(learner)
            self._learner = learner
        self._queue = RequestQueue(self._run, self.section.max_requests_in_flight_per_learner)
        self._last_call_id = 0

    @property
    def is_local(self) -> bool:
        """Whether the learner runs in this process."""
        return self._backend.is_local

    @property
    def is_remote(self) -> bool:
        """Whether learners run in other processes."""
        return not self.is_local

    @property
    def reducer(self) -> Reducer:
        """Communication of the learner in this process with those of other ranks."""
        return LocalReducer() if self._learner is None else self._learner.reducer

    @property
    def is_alone(self) -> bool:
        """Whether the only learner is the one in this process."""
        return self.is_local and self.reducer.world_size == 1

    def __len__(self) -> int:
        """Return the number of learners."""
        return len(self._backend)

    @property
    def learner(self) -> Learner:
        """Learner in this process; `RuntimeError` if the learners are in other processes."""
        if self._learner is None:
            raise RuntimeError("the learners are in other processes; use foreach_learner(func)")
        return self._learner

    @property
    def last_checkpoint(self) -> str:
        """Path of the checkpoint that was saved or restored last (empty before that). A `LearnerError` names it.

        Code that saves a group as a part of a larger checkpoint sets it.
        """
        return self._backend.last_checkpoint

    @last_checkpoint.setter
    def last_checkpoint(self, path: str) -> None:
        self._backend.last_checkpoint = path

    @property
    def num_in_flight(self) -> int:
        """Number of asynchronous updates that wait or run."""
        return self._queue.num_in_flight

    # -- updates ---

    def update_from_episodes(
        self,
        episodes: Data,
        *,
        timesteps: Mapping[str, int] | None = None,
        async_update: bool = False,
        return_state: bool = False,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        shuffle_batch_per_epoch: bool = False,
        reduce_results: bool = True,
        on_full: OnFull = "wait",
    ) -> Any:
        """Train on episodes, and return the results `{module_id: {metric: number}}`.

        An asynchronous update copies the episodes and leaves the update to a thread. It returns a list with the results
        of *earlier* asynchronous calls that have become ready, in call order, each with its `"call_id"`. An error of an
        earlier call is raised here (or by `drain`), before new data are accepted.

        Args:
            episodes: List of `SingleAgentEpisode` or `MultiAgentEpisode`, or the episodes of a `RolloutStore`. The
                latter are read without a copy. An empty list is counted as a skipped update; with
                `never_skip_update=True` it raises `ValueError`.
            timesteps: Present time for schedules, e.g. `{"num_env_steps_sampled_lifetime": 40_000}`.
            async_update: Train asynchronously.
            return_state: Add the weights after the update, under `"_rl_module_state_after_update"`.
            num_epochs: Number of passes over the train batch.
            minibatch_size: Number of rows in one gradient step, so that a pass has `len(batch) // minibatch_size`
                steps. None takes the whole batch.
            shuffle_batch_per_epoch: Shuffle the rows again before each pass.
            reduce_results: Return one dict of results. False returns a list with one dict for each learner.
            on_full: Action if `max_requests_in_flight_per_learner` asynchronous updates wait or run already: "wait", or
                "drop" the oldest update that waits.
        """
        options: dict[str, Any] = {
            "timesteps": timesteps,
            "num_epochs": num_epochs,
            "minibatch_size": minibatch_size,
            "shuffle_batch_per_epoch": shuffle_batch_per_epoch,
        }
        # Three ways: in the thread, at once in other processes, or at once here.
        if async_update:
            return self._submit("episodes", episodes, options, return_state, reduce_results, on_full)
        if self._learner is None:
            return self._run_now("episodes", episodes, options, return_state, reduce_results)

        # The learner of this process checks the arguments itself, so this path needs no `UpdateRequest`.
        num_steps = num_steps_of(episodes)
        with self._queue.turn(num_steps) as outcome:
            data = self._backend.share(episodes)
            results = self._learner.update_from_episodes(data, **options)
            return self._complete(outcome, results, return_state, reduce_results)

    def update_from_batch(
        self,
        batch: Data,
        *,
        timesteps: Mapping[str, int] | None = None,
        async_update: bool = False,
        return_state: bool = False,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        shuffle_batch_per_epoch: bool = False,
        reduce_results: bool = True,
        on_full: OnFull = "wait",
    ) -> Any:
        """Train on a `SampleBatch` or `MultiAgentBatch` with the columns that the loss needs.

        Arguments and results are those of `update_from_episodes`.
        """
        options: dict[str, Any] = {
            "timesteps": timesteps,
            "num_epochs": num_epochs,
            "minibatch_size": minibatch_size,
            "shuffle_batch_per_epoch": shuffle_batch_per_epoch,
        }
        if async_update:
            return self._submit("batch", batch, options, return_state, reduce_results, on_full)
        if self._learner is None:
            return self._run_now("batch", batch, options, return_state, reduce_results)

        # See `update_from_episodes`.
        num_steps = num_steps_of(batch)
        with self._queue.turn(num_steps) as outcome:
            data = self._backend.share(batch)
            results = self._learner.update_from_batch(data, **options)
            return self._complete(outcome, results, return_state, reduce_results)

    def drain(self) -> list[Any]:
        """Wait for all asynchronous updates, and return their results that no call has returned yet.

        Raises the first error among them. The next call returns the other results.
        """
        return self._queue.drain()

    def _complete(self, outcome: Outcome, results: Results, return_state: bool, reduce_results: bool) -> Any:
        """Return the results of a synchronous update of the learner in this process, with the number of the call."""
        self._last_call_id += 1
        if return_state and self._learner is not None:
            results[STATE_AFTER_UPDATE] = self._learner.get_weights()
        value, outcome.has_trained = self._results_and_has_trained([results], self._last_call_id, reduce_results)
        return value

    def _submit(
        self,
        kind: Kind,
        data: Data,
        options: Mapping[str, Any],
        return_state: bool,
        reduce_results: bool,
        on_full: OnFull,
    ) -> list[Any]:
        """Hand an update to the thread, and return the results that have become ready."""
        if on_full not in ("wait", "drop"):
            raise ValueError(f"on_full={on_full!r}; choose 'wait' or 'drop'")
        self._queue.check_open()
        request = self._backend.request(kind, data, options, return_state=return_state, reduce_results=reduce_results)
        request = self._backend.divided(request, is_async=True)

        # An error of an earlier call is raised here, so it comes before the request is submitted.
        ready = self._queue.take_finished()
        self._last_call_id += 1
        self._queue.submit(replace(request, call_id=self._last_call_id), on_full)
        return ready

    def _run_now(
        self, kind: Kind, data: Data, options: Mapping[str, Any], return_state: bool, reduce_results: bool
    ) -> Any:
        """Return the results of a synchronous update of learners in other processes."""
        self._queue.check_open()
        request = self._backend.request(kind, data, options, return_state=return_state, reduce_results=reduce_results)
        with self._queue.turn(request.num_steps) as outcome:
            request = self._backend.divided(request, is_async=False)
            self._last_call_id += 1
            value, outcome.has_trained = self._run(replace(request, call_id=self._last_call_id))
            return value

    def _run(self, request: UpdateRequest) -> tuple[Any, bool]:
        """Return the results of one request, and whether anything was trained."""
        return self._results_and_has_trained(self._backend.update(request), request.call_id, request.reduce_results)

    def _results_and_has_trained(self, results: list[Results], call_id: int, reduce_results: bool) -> tuple[Any, bool]:
        """Return the results with the number of their call, and whether anything was trained."""
        skipped = bool(results[0].get(ALL_MODULES, {}).get("num_updates_skipped", 0))
        if skipped and self.section.never_skip_update:
            raise ValueError("the update has nothing to train on, and never_skip_update=True does not allow that")
        for part in results:
            part["call_id"] = call_id  # type: ignore[assignment]
        return (results[0] if reduce_results else results), not skipped

    # -- modules ---

    def add_module(
        self,
        *,
        module_id: str,
        module_spec: RLModuleSpec | RLModule,
        config_overrides: TrainingSection | Mapping[str, Any] | None = None,
        connectors: ModuleConnectors | None = None,
        new_should_module_be_updated: TrainedModules = None,
    ) -> MultiRLModuleSpec:
        """Add a module on every learner, see `Learner.add_module`; return the new spec of all modules.

        `ValueError` for an id that exists or is illegal; nothing is changed then.
        """
        with self._queue.between_updates():
            add = methodcaller(
                "add_module",
                module_id=module_id,
                module_spec=module_spec,
                config_overrides=config_overrides,
                connectors=connectors,
                new_should_module_be_updated=new_should_module_be_updated,
            )
            return self._backend.foreach(add)[0]

    def remove_module(
        self, module_id: str, *, new_should_module_be_updated: TrainedModules = None
    ) -> MultiRLModuleSpec:
        """Remove a module on every learner; return the new spec of the others.

        `KeyError` with the ids that exist for an unknown one.
        """
        with self._queue.between_updates():
            remove = methodcaller("remove_module", module_id, new_should_module_be_updated=new_should_module_be_updated)
            return self._backend.foreach(remove)[0]

    # -- state ---

    def get_state(
        self,
        components: Collection[str] | str | None = None,
        *,
        not_components: Collection[str] | str | None = None,
        inference_only: bool = False,
    ) -> dict[str, Any]:
        """Return `{"learner": {...}}`; components by path, e.g. `"learner/rl_module/p0"`.

        `inference_only` leaves out the weights that acting does not need. `KeyError` for an unknown component, with
        those that exist.
        """
        included = _below_learner(components)  # a path "" is the whole learner
        excluded = _below_learner(not_components)
        if excluded is not None and "" in excluded:
            return {}
        wanted = None if included is None or "" in included else included
        with self._queue.between_updates():
            read = methodcaller("get_state", wanted, not_components=excluded, inference_only=inference_only)
            return {"learner": self._backend.first(read)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state` on every learner, all or nothing."""
        if not isinstance(state, Mapping):
            raise TypeError(f"a group's state is a dict {{'learner': ...}}, not {type(state).__name__}")
        if set(state) != {"learner"}:
            raise ValueError(f"a group's state has the one key 'learner', not {sorted(state)}")
        with self._queue.between_updates():
            self._backend.foreach(Learner.set_state, state["learner"])

    def get_weights(
        self, module_ids: Collection[str] | str | None = None, inference_only: bool = False
    ) -> dict[str, dict[str, np.ndarray]]:
        """Return copies of weights, `{module_id: {name: array}}`.

        With `inference_only` they are those that acting needs.
        """
        with self._queue.between_updates():
            return self._backend.first(methodcaller("get_weights", module_ids, inference_only))

    def set_weights(self, weights: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Set weights by module id on every learner, all or none."""
        with self._queue.between_updates():
            self._backend.foreach(Learner.set_state, {"rl_module": weights})

    def foreach_learner(self, func: Callable[..., Any], *args: object) -> list[Any]:
        """Return `func(learner, *args)` of each learner, in order. It runs between two updates."""
        with self._queue.between_updates():
            return self._backend.foreach(func, *args)

    def first_learner(self, func: Callable[..., Any], *args: object) -> Any:
        """Return `func(learner, *args)` of one learner, called between two updates.

        `func` must return the same on all learners.
        """
        with self._queue.between_updates():
            return self._backend.first(func, *args)

    def get_stats(self) -> dict[str, int]:
        """Return numbers of calls and environment steps by their outcome, of restarts and of skipped updates.

        If no update waits or runs, `num_steps_submitted` = `num_steps_trained` + `num_steps_dropped`.
        """
        return {
            "num_in_flight": self._queue.num_in_flight,
            "num_waiting": self._queue.num_waiting,
            "last_call_id": self._last_call_id,
            **asdict(self._queue.counts),
            "num_restarts": self._backend.num_restarts(),
            "num_updates_skipped": (self._backend.peek(attrgetter("lifetime")) or {}).get("num_updates_skipped", 0),
        }

    # -- checkpoints ---

    def checkpoint_folders(self) -> dict[str, dict[str, Any]]:
        """Return the folders of the group's checkpoint."""
        with self._queue.between_updates():
            return self._backend.first(methodcaller("checkpoint_folders"))

    def set_checkpoint_folders(self, folders: Mapping[str, dict[str, Any]], component: str | None = None) -> None:
        """Restore all of a checkpoint's folders, or one component. Any number of learners may have written them."""
        included = _below_learner(component)
        learner_component = None if included is None or "" in included else included[0]
        current = {} if learner_component is None else self.get_state()["learner"]
        state = state_to_restore(folders, learner_component, current)
        with self._queue.between_updates():
            self._backend.foreach(Learner.set_state, state)

    def save_to_path(self, path: str | Path | None = None) -> str:
        """Write a checkpoint folder, and return its absolute path. `path=None` makes a temporary folder."""
        self.last_checkpoint = str(write_checkpoint(path, self.checkpoint_folders()))
        return self.last_checkpoint

    def restore_from_path(self, path: str | Path, component: str | None = None) -> None:
        """Restore all of a checkpoint, or one component such as `"learner/rl_module/default_policy"`.

        That component may also be read from the folder of a module or of a `MultiRLModule`.
        """
        self.set_checkpoint_folders(read_checkpoint(Path(path)), component)
        if component is None:
            self.last_checkpoint = str(Path(path).absolute())

    @classmethod
    def from_checkpoint(
        cls,
        path: str | Path,
        *,
        section: LearnersSection | None = None,
        trust: bool = False,
        **parts: Unpack[LearnerParts],
    ) -> Self:
        """Return the group in a checkpoint, which any number of learners may have written.

        Args:
            path: Folder of the checkpoint.
            section: Options of the learners, such as their number. None: one learner in this process.
            trust: See `Learner.from_checkpoint`.
            **parts: See `Learner.from_checkpoint`.
        """
        folders = read_checkpoint(Path(path))
        section = section or LearnersSection()
        build = partial(Learner.from_folders, folders, names=FileNames(path, {}, trust), **parts)
        learner: Learner | LearnerBackend
        learner = cls.start_learners(build, section) if section.num_learners else build()
        group = cls(learner, section)
        group.last_checkpoint = str(Path(path).absolute())
        return group

    # -- number of learners, end ---

    def resize(self, num_learners: int) -> None:
        """Continue with another number of learners, after all submitted updates have ended.

        Raises `ValueError` for a learner in this process, and `LearnerError` if the cluster has no room; the group then
        continues as it was.
        """
        with self._queue.when_idle():
            self._backend.resize(num_learners)

    def shutdown(self) -> None:
        """Drop waiting updates, wait for the running one, and end all threads and processes of the group."""
        self._queue.close()
        self._backend.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()


def _below_learner(components: Collection[str] | str | None) -> list[str] | None:
    """Return the paths of components below `"learner"`; `""` for the whole learner."""
    if components is None:
        return None
    paths = names_of(components) or []
    for path in paths:
        if path.split("/")[0] != "learner":
            raise KeyError(f"no component {path!r}; a group's state has 'learner' and what lies below it")
    return [path.removeprefix("learner").removeprefix("/") for path in paths]
