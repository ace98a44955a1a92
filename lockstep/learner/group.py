"""`LearnerGroup`: one or many learners that act as one."""

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
Data = Any
"""episodes, a batch, or references to them where learners are in other processes"""


class LearnerBackend:
    """The learner in this process; subclasses have several in others. One call at a time, which ends on all learners
    before it returns.
    """

    is_local = True

    def __init__(self, learner: Learner) -> None:
        learner.build()  # an override need not return anything
        self.learner = learner
        self.last_checkpoint = ""
        """path of what was saved or restored last; empty before that"""

    def __len__(self) -> int:
        """Return the number of learners."""
        return 1

    def share(self, data: Data) -> Data:
        """Return what this learner reads of episodes or a batch: all, or its shard where ranks have the same data."""
        reducer = self.learner.reducer
        if reducer.world_size == 1 or isinstance(data, TensorRollout):  # each rank has its own
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
        """Return the checked request for an update. Its data are not divided among the learners yet, see `divided`."""
        return UpdateRequest.checked(kind, data, options, return_state, reduce_results)

    def divided(self, request: UpdateRequest, *, is_async: bool) -> UpdateRequest:
        """Return a request with the data as the learners read them.

        How data are divided depends on the learners and their modules, so a plain update does it in its turn. An
        asynchronous one does it at once, and holds data of its own, which do not change with the caller's.
        """
        held = frozen_data(request.data) if is_async else request.data
        return replace(request, data=self.share(held))

    def update(self, request: UpdateRequest) -> list[Results]:
        """Update all learners together, each on its shard; return the results of each, in order."""
        return [run_request(request, self.learner)]

    def foreach(self, func: Callable[..., Any], *args: object) -> list[Any]:
        """Return `[func(learner, *args)]`, in order; where all raise, nothing is changed.

        Ranks call this alike, and tell each other arrays.
        """
        value = func(self.learner, *args)
        return self.learner.reducer.gather(value) if isinstance(value, np.ndarray) else [value]

    def first(self, func: Callable[..., Any], *args: object) -> Any:
        """Return `func(learner, *args)` of one learner, for what is the same on all and changes nothing."""
        return func(self.learner, *args)

    def peek(self, func: Callable[..., Any]) -> Any:
        """Return `func(learner)` of one learner, which may be at work on an update; None where none answers."""
        return func(self.learner)

    def resize(self, num_learners: int) -> None:
        """Go on with another number of learners, which have the same state."""
        if num_learners not in (0, 1):
            raise ValueError(
                f"resize({num_learners}): this group has its one learner in this process; for several, build the group "
                f"with learners(num_learners={num_learners})"
            )

    def num_restarts(self) -> int:
        """Return how many learners were started again after a failure."""
        return 0

    def shutdown(self) -> None:
        """End all processes of the learners; leave the other ranks."""
        self.learner.reducer.close()


def run_request(request: UpdateRequest, learner: Learner) -> Results:
    """Return the results of one learner's part in an update; every backend calls it where its learners are."""
    update = learner.update_from_episodes if request.kind == "episodes" else learner.update_from_batch
    results: Results = update(request.data, **request.options)
    if request.return_state and learner.reducer.rank == 0:
        results[STATE_AFTER_UPDATE] = learner.get_weights()
    return results


class LearnerGroup:
    """Coordinates the learners; every method means the same for one learner in process and for many.

    `learner`: the one in this process, or a `LearnerBackend`. Updates run one after another; everything else waits for
    the update that runs. A context manager; `shutdown()` leaves no process and no thread behind.
    """

    start_learners: ClassVar[Callable[..., LearnerBackend]]
    """`(build, section)` -> learners in other processes; an upper floor puts it here, as it does with trainers"""

    def __init__(self, learner: Learner | LearnerBackend, section: LearnersSection | None = None) -> None:
        self.section = LearnersSection() if section is None else section
        if not isinstance(self.section, LearnersSection):
            raise TypeError(f"section is a {type(section).__name__}; a LearnersSection is needed, or None")
        if not isinstance(learner, Learner | LearnerBackend):
            raise TypeError(f"learner is a {type(learner).__name__}; a Learner or a LearnerBackend is needed")
        self.section.validate()
        if isinstance(learner, Learner) and self.section.num_learners:
            raise ValueError(
                f"num_learners={self.section.num_learners}, but one learner in this process was given; "
                "build_learner_group() of a configuration starts others (lockstep.cluster)"
            )
        self._backend = LearnerBackend(learner) if isinstance(learner, Learner) else learner
        self._learner = learner if isinstance(learner, Learner) else None
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
        """What joins the learner in this process with those of other ranks; where there are none, of one alone."""
        return LocalReducer() if self._learner is None else self._learner.reducer

    @property
    def is_alone(self) -> bool:
        """Whether there is one learner, in this process."""
        return self.is_local and self.reducer.world_size == 1

    def __len__(self) -> int:
        """Return the number of learners."""
        return len(self._backend)

    @property
    def learner(self) -> Learner:
        """The learner in this process; `RuntimeError` where they are in others."""
        if self._learner is None:
            raise RuntimeError("the learners are in other processes; use foreach_learner(func)")
        return self._learner

    @property
    def last_checkpoint(self) -> str:
        """Path of the checkpoint that was saved or restored last (empty before that); a `LearnerError` names it.

        Who saves a group as a part of something larger sets it.
        """
        return self._backend.last_checkpoint

    @last_checkpoint.setter
    def last_checkpoint(self, path: str) -> None:
        self._backend.last_checkpoint = path

    @property
    def num_in_flight(self) -> int:
        """Asynchronous updates that wait or run."""
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
        """Train on episodes; return `{module_id: {metric: number}}`, or with `reduce_results=False` a list of one such
        dict for each learner.

        `episodes`: a list of `SingleAgentEpisode` or `MultiAgentEpisode`, or what `RolloutStore.episodes()` returns
        (read without a copy). `num_epochs` passes over the train batch, each in `len(batch) // minibatch_size` gradient
        steps. `return_state=True` adds the weights under `"_rl_module_state_after_update"`. An empty list is a counted
        no-op, or a `ValueError` with `never_skip_update=True`.

        `async_update=True` copies the episodes, leaves the update to a thread, and returns a list with the results of
        *earlier* asynchronous calls that have become ready, in call order, each with its `"call_id"`. An error of an
        earlier call is raised here (or by `drain`), before anything new is accepted. At most
        `max_requests_in_flight_per_learner` calls are under way; then `on_full="wait"` waits, and `"drop"` drops the
        oldest that waits.
        """
        options: dict[str, Any] = {
            "timesteps": timesteps,
            "num_epochs": num_epochs,
            "minibatch_size": minibatch_size,
            "shuffle_batch_per_epoch": shuffle_batch_per_epoch,
        }
        if async_update:
            return self._submit("episodes", episodes, options, return_state, reduce_results, on_full)
        if self._learner is None:
            return self._run_now("episodes", episodes, options, return_state, reduce_results)
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
        """Train as `update_from_episodes`, on a `SampleBatch` or `MultiAgentBatch` with the columns the loss needs."""
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
        num_steps = num_steps_of(batch)
        with self._queue.turn(num_steps) as outcome:
            data = self._backend.share(batch)
            results = self._learner.update_from_batch(data, **options)
            return self._complete(outcome, results, return_state, reduce_results)

    def drain(self) -> list[Any]:
        """Wait for all asynchronous updates under way; return their results that were not yet handed out.

        Raises the first error among them; the other results come with the next call.
        """
        return self._queue.drain()

    def _complete(self, outcome: Outcome, results: Results, return_state: bool, reduce_results: bool) -> Any:
        """Return the results of the learner in this process, which a plain call has updated."""
        self._last_call_id += 1
        if return_state and self._learner is not None:
            results[STATE_AFTER_UPDATE] = self._learner.get_weights()
        value, outcome.has_trained = self._numbered([results], self._last_call_id, reduce_results)
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
        """Leave an update to the thread; return the results that have become ready."""
        if on_full not in ("wait", "drop"):
            raise ValueError(f"on_full={on_full!r}; choose 'wait' or 'drop'")
        self._queue.check_open()
        request = self._backend.request(kind, data, options, return_state=return_state, reduce_results=reduce_results)
        request = self._backend.divided(request, is_async=True)
        ready = self._queue.take_finished()
        self._last_call_id += 1
        self._queue.submit(replace(request, call_id=self._last_call_id), on_full)
        return ready

    def _run_now(
        self, kind: Kind, data: Data, options: Mapping[str, Any], return_state: bool, reduce_results: bool
    ) -> Any:
        """Return the results of an update on learners in other processes, when its turn has come."""
        self._queue.check_open()
        request = self._backend.request(kind, data, options, return_state=return_state, reduce_results=reduce_results)
        with self._queue.turn(request.num_steps) as outcome:
            request = self._backend.divided(request, is_async=False)
            self._last_call_id += 1
            value, outcome.has_trained = self._run(replace(request, call_id=self._last_call_id))
            return value

    def _run(self, request: UpdateRequest) -> tuple[Any, bool]:
        """Return the results of one request, and whether anything was trained."""
        return self._numbered(self._backend.update(request), request.call_id, request.reduce_results)

    def _numbered(self, results: list[Results], call_id: int, reduce_results: bool) -> tuple[Any, bool]:
        """Return results with the number of the call, and whether anything was trained."""
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
        inside, without = _below_learner(components), _below_learner(not_components)
        if without is not None and "" in without:
            return {}
        wanted = None if inside is None or "" in inside else inside
        with self._queue.between_updates():
            read = methodcaller("get_state", wanted, not_components=without, inference_only=inference_only)
            return {"learner": self._backend.first(read)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned, on every learner; all or nothing."""
        if not isinstance(state, Mapping):
            raise TypeError(f"a group's state is a dict {{'learner': ...}}, not {type(state).__name__}")
        if set(state) != {"learner"}:
            raise ValueError(f"a group's state has the one key 'learner', not {sorted(state)}")
        with self._queue.between_updates():
            self._backend.foreach(Learner.set_state, state["learner"])

    def get_weights(
        self, module_ids: Collection[str] | str | None = None, inference_only: bool = False
    ) -> dict[str, dict[str, np.ndarray]]:
        """Return `{module_id: {name: array}}`, copies. `inference_only`: without what acting does not need."""
        with self._queue.between_updates():
            return self._backend.first(methodcaller("get_weights", module_ids, inference_only))

    def set_weights(self, weights: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Set the weights of the modules named on every learner; all or none."""
        with self._queue.between_updates():
            self._backend.foreach(Learner.set_state, {"rl_module": weights})

    def foreach_learner(self, func: Callable[..., Any], *args: object) -> list[Any]:
        """Return `[func(learner, *args)]`, in order, between two updates."""
        with self._queue.between_updates():
            return self._backend.foreach(func, *args)

    def first_learner(self, func: Callable[..., Any], *args: object) -> Any:
        """Return `func(learner, *args)` of one learner, between two updates: for what is the same on all."""
        with self._queue.between_updates():
            return self._backend.first(func, *args)

    def get_stats(self) -> dict[str, int]:
        """Return calls and environment steps by how they ended, what is under way, restarts, skipped updates.

        `num_steps_submitted` = `num_steps_trained` + `num_steps_dropped`, when nothing is under way.
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
        """Restore from the folders of a checkpoint, all or one component, whatever the number of learners was."""
        inside = _below_learner(component)
        chosen = None if inside is None or "" in inside else inside[0]
        current = {} if chosen is None else self.get_state()["learner"]
        state = state_to_restore(folders, chosen, current)
        with self._queue.between_updates():
            self._backend.foreach(Learner.set_state, state)

    def save_to_path(self, path: str | Path | None = None) -> str:
        """Write a checkpoint folder, a new temporary one for None; return its absolute path."""
        self.last_checkpoint = str(write_checkpoint(path, self.checkpoint_folders()))
        return self.last_checkpoint

    def restore_from_path(self, path: str | Path, component: str | None = None) -> None:
        """Restore all, or one component such as `"learner/rl_module/default_policy"`.

        That component may also come from a module's own folder, or from that of a `MultiRLModule`.
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
        """Return a group as the checkpoint describes it, however many learners wrote it.

        `section` says how many there are now (None: one in this process); `trust` and `parts` as
        `Learner.from_checkpoint`.
        """
        folders, chosen = read_checkpoint(Path(path)), section or LearnersSection()
        build = partial(Learner.from_folders, folders, names=FileNames(path, {}, trust), **parts)
        group = cls(cls.start_learners(build, chosen) if chosen.num_learners else build(), chosen)
        group.last_checkpoint = str(Path(path).absolute())
        return group

    # -- number of learners, end ---

    def resize(self, num_learners: int) -> None:
        """Go on with another number of learners, when all that was submitted is done.

        `ValueError` for the learner in this process, `LearnerError` where there is no room for them (the group goes
        on as it was).
        """
        with self._queue.when_idle():
            self._backend.resize(num_learners)

    def shutdown(self) -> None:
        """Drop the updates that wait, let the running one end, end all threads and processes of the group."""
        self._queue.close()
        self._backend.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()


def _below_learner(components: Collection[str] | str | None) -> list[str] | None:
    """Return paths below `"learner"`; `""` for all of it."""
    if components is None:
        return None
    paths = names_of(components) or []
    for path in paths:
        if path.split("/")[0] != "learner":
            raise KeyError(f"no component {path!r}; a group's state has 'learner' and what lies below it")
    return [path.removeprefix("learner").removeprefix("/") for path in paths]
