"""`LearnerGroup`: one or many learners that act as one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Literal, Self

import numpy as np

from lockstep.data.sample_batch import MultiAgentBatch, SampleBatch
from lockstep.learner.argument_checks import check_batch, check_episodes, checked_names
from lockstep.learner.backend import LearnerBackend, LocalBackend
from lockstep.learner.checkpointing import checkpoint_folders, learner_from_folders, state_to_restore
from lockstep.learner.config import LearnersSection, TrainingSection
from lockstep.learner.learner import Learner
from lockstep.learner.loop import update_options
from lockstep.learner.optimizers import ALL_MODULES
from lockstep.learner.requests import OnFull, RequestQueue, UpdateRequest, num_steps_of
from lockstep.learner.results import Results
from lockstep.modules import MultiRLModuleSpec, RLModule, RLModuleSpec
from lockstep.state.checkpoint import read_checkpoint, write_checkpoint
from lockstep.state.checks import check_flags

Updated = Results | list[Results] | list[list[Results]]
WhoLearns = Collection[str] | Callable[..., bool] | None


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
        if not isinstance(learner, Learner) and not hasattr(learner, "foreach"):
            raise TypeError(f"learner is a {type(learner).__name__}; a Learner or a LearnerBackend is needed")
        self.section.validate()
        if isinstance(learner, Learner) and self.section.num_learners:
            raise ValueError(
                f"num_learners={self.section.num_learners}, but one learner in this process was given; "
                "build_learner_group() of a configuration starts others (lockstep.cluster)"
            )
        self._backend: LearnerBackend = LocalBackend(learner) if isinstance(learner, Learner) else learner
        self._queue = RequestQueue(self._run, self.section.max_requests_in_flight_per_learner)
        self._last_call_id = 0

    @property
    def is_local(self) -> bool:
        """Does the learner run in this process?"""
        return self._backend.is_local

    @property
    def is_remote(self) -> bool:
        """Do learners run in other processes?"""
        return not self.is_local

    def __len__(self) -> int:
        """Number of learners."""
        return len(self._backend)

    @property
    def learner(self) -> Learner:
        """The learner in this process; `RuntimeError` where they are in others."""
        if isinstance(self._backend, LocalBackend):
            return self._backend.learner
        raise RuntimeError("the learners are in other processes; use foreach_learner(func)")

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
        episodes: Sequence[Any],
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
        """Trains on episodes; returns `{module_id: {metric: number}}`, with `reduce_results=False` a list of one such
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
        options = _options(timesteps, num_epochs, minibatch_size, shuffle_batch_per_epoch)
        return self._update("episodes", episodes, options, async_update, return_state, reduce_results, on_full)

    def update_from_batch(
        self,
        batch: SampleBatch | MultiAgentBatch,
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
        """As `update_from_episodes`, on a batch that has the columns the loss needs."""
        options = _options(timesteps, num_epochs, minibatch_size, shuffle_batch_per_epoch)
        return self._update("batch", batch, options, async_update, return_state, reduce_results, on_full)

    def drain(self) -> list[Any]:
        """Waits for all asynchronous updates under way; returns their results that were not yet handed out.

        Raises the first error among them; the other results come with the next call.
        """
        return self._queue.drain()

    def _update(
        self,
        kind: Literal["episodes", "batch"],
        data: Any,
        options: dict[str, Any],
        async_update: bool,
        return_state: bool,
        reduce_results: bool,
        on_full: OnFull,
    ) -> Any:
        if on_full not in ("wait", "drop"):
            raise ValueError(f"on_full={on_full!r}; choose 'wait' or 'drop'")
        check_flags(async_update=async_update, return_state=return_state, reduce_results=reduce_results)
        data = self._backend.fetched(data)
        (check_episodes if kind == "episodes" else check_batch)(data)
        ready = self._queue.take_finished() if async_update else []
        given = self._backend.freeze(data) if async_update else data
        self._last_call_id += 1
        request = UpdateRequest(
            kind, given, options, return_state, reduce_results, self._last_call_id, num_steps_of(data)
        )
        if not async_update:
            return self._queue.run_now(request)
        self._queue.submit(request, on_full)
        return ready

    def _run(self, request: UpdateRequest) -> tuple[Any, bool]:
        """The results of one request, and whether anything was trained."""
        results = self._backend.update(request)
        skipped = bool(results[0].get(ALL_MODULES, {}).get("num_updates_skipped", 0))
        if skipped and self.section.never_skip_update:
            raise ValueError("the update has nothing to train on, and never_skip_update=True does not allow that")
        for part in results:
            part["call_id"] = request.call_id  # type: ignore[assignment]
        return (results[0] if request.reduce_results else results), not skipped

    # -- modules ---

    def add_module(
        self,
        *,
        module_id: str,
        module_spec: RLModuleSpec | RLModule,
        config_overrides: TrainingSection | Mapping[str, Any] | None = None,
        new_should_module_be_updated: WhoLearns = None,
    ) -> MultiRLModuleSpec:
        """Adds a module on every learner; returns the new spec of all modules.

        `ValueError` for an id that exists or is illegal; nothing is changed then.
        """
        with self._queue.between_updates():
            return self._backend.foreach(
                _add_module, module_id, module_spec, config_overrides, new_should_module_be_updated
            )[0]

    def remove_module(self, module_id: str, *, new_should_module_be_updated: WhoLearns = None) -> MultiRLModuleSpec:
        """Removes a module on every learner; returns the new spec of the others.

        `KeyError` with the ids that exist for an unknown one.
        """
        with self._queue.between_updates():
            return self._backend.foreach(_remove_module, module_id, new_should_module_be_updated)[0]

    # -- state ---

    def get_state(
        self,
        components: Collection[str] | str | None = None,
        *,
        not_components: Collection[str] | str | None = None,
        inference_only: bool = False,
    ) -> dict[str, Any]:
        """`{"learner": {...}}`; components by path, e.g. `"learner/rl_module/p0"`.

        `inference_only` leaves out the weights that acting does not need. `KeyError` for an unknown component, with
        those that exist.
        """
        inside, without = _below_learner(components), _below_learner(not_components, "not_components")
        if without is not None and "" in without:
            return {}
        wanted = None if inside is None or "" in inside else inside
        with self._queue.between_updates():
            return {"learner": self._backend.first(_get_state, wanted, without, inference_only)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned, on every learner; all or nothing."""
        if not isinstance(state, Mapping):
            raise TypeError(f"a group's state is a dict {{'learner': ...}}, not {type(state).__name__}")
        if set(state) != {"learner"}:
            raise ValueError(f"a group's state has the one key 'learner', not {sorted(state)}")
        with self._queue.between_updates():
            self._backend.foreach(Learner.set_state, state["learner"])

    def get_weights(
        self, module_ids: Collection[str] | str | None = None, inference_only: bool = False
    ) -> dict[str, dict[str, np.ndarray]]:
        """`{module_id: {name: array}}`; copies. `inference_only`: without what acting does not need."""
        with self._queue.between_updates():
            return self._backend.first(_get_weights, module_ids, inference_only)

    def set_weights(self, weights: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Sets the weights of the given modules on every learner; all or none."""
        if not isinstance(weights, Mapping):
            raise TypeError(f"weights is a {type(weights).__name__}; a dict {{module_id: {{name: array}}}} is needed")
        with self._queue.between_updates():
            self._backend.foreach(Learner.set_state, {"rl_module": dict(weights)})

    def foreach_learner(self, func: Callable[..., Any], *args: Any) -> list[Any]:
        """`[func(learner, *args)]`, in order, between two updates."""
        with self._queue.between_updates():
            return self._backend.foreach(func, *args)

    def first_learner(self, func: Callable[..., Any], *args: Any) -> Any:
        """`func(learner, *args)` of one learner, between two updates: for what is the same on all."""
        with self._queue.between_updates():
            return self._backend.first(func, *args)

    def get_stats(self) -> dict[str, int]:
        """Calls and environment steps by how they ended, what is under way, restarts, skipped updates.

        `num_steps_submitted` = `num_steps_trained` + `num_steps_dropped`, when nothing is under way.
        """
        return {
            "num_in_flight": self._queue.num_in_flight,
            "num_waiting": self._queue.num_waiting,
            "last_call_id": self._last_call_id,
            **asdict(self._queue.counts),
            "num_restarts": self._backend.num_restarts(),
            "num_updates_skipped": self._backend.peek(_num_updates_skipped) or 0,
        }

    # -- checkpoints ---

    def checkpoint_folders(self) -> dict[str, dict[str, Any]]:
        """The folders of the group's checkpoint."""
        with self._queue.between_updates():
            return self._backend.first(checkpoint_folders, "learner")

    def set_checkpoint_folders(self, folders: Mapping[str, dict[str, Any]], component: str | None = None) -> None:
        """Restores from the folders of a checkpoint, all or one component, whatever the number of learners was."""
        inside = _below_learner(component)
        chosen = None if inside is None or "" in inside else inside[0]
        current = {} if chosen is None else self.get_state()["learner"]
        state = state_to_restore(folders, chosen, current)
        with self._queue.between_updates():
            self._backend.foreach(Learner.set_state, state)

    def save_to_path(self, path: str | Path | None = None) -> str:
        """Writes a checkpoint folder, a new temporary one for None; returns its absolute path."""
        self.last_checkpoint = str(write_checkpoint(path, self.checkpoint_folders()))
        return self.last_checkpoint

    def restore_from_path(self, path: str | Path, component: str | None = None) -> None:
        """Restores all, or one component such as `"learner/rl_module/default_policy"`.

        That component may also come from a module's own folder, or from that of a `MultiRLModule`.
        """
        self.set_checkpoint_folders(read_checkpoint(Path(path)), component)
        if component is None:
            self.last_checkpoint = str(Path(path).absolute())

    @classmethod
    def from_checkpoint(cls, path: str | Path, *, section: LearnersSection | None = None, **given: Any) -> Self:
        """A group as the checkpoint describes it, of as many learners as `section` says (None: one in this process),
        however many wrote it; `given` as `Learner.from_checkpoint`."""
        folders, chosen = read_checkpoint(Path(path)), section or LearnersSection()
        build = partial(learner_from_folders, folders, **given)
        group = cls(cls.start_learners(build, chosen) if chosen.num_learners else build(), chosen)
        group.last_checkpoint = str(Path(path).absolute())
        return group

    # -- number of learners, end ---

    def resize(self, num_learners: int) -> None:
        """Another number of learners, when all that was submitted is done. `ValueError` for the learner in this
        process, `LearnerError` where there is no room for them (the group goes on as it was)."""
        with self._queue.when_idle():
            self._backend.resize(num_learners)

    def shutdown(self) -> None:
        """Drops the updates that wait, lets the running one end, ends all threads and processes of the group."""
        self._queue.close()
        self._backend.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()


def _options(
    timesteps: Mapping[str, int] | None, num_epochs: int, minibatch_size: int | None, shuffle: bool
) -> dict[str, Any]:
    given = {
        "timesteps": dict(timesteps) if isinstance(timesteps, Mapping) else timesteps,
        "num_epochs": num_epochs,
        "minibatch_size": minibatch_size,
        "shuffle_batch_per_epoch": shuffle,
    }
    update_options(given)  # type: ignore[arg-type]  # refused in this call, not in that of a thread
    return given


def _below_learner(components: Collection[str] | str | None, name: str = "components") -> list[str] | None:
    """Paths below `"learner"`; `""` for all of it."""
    if components is None:
        return None
    paths = checked_names(name, components) or []
    for path in paths:
        if path.split("/")[0] != "learner":
            raise KeyError(f"no component {path!r}; a group's state has 'learner' and what lies below it")
    return [path.removeprefix("learner").removeprefix("/") for path in paths]


def _get_state(learner: Learner, inside: Any, without: Any, inference_only: bool) -> dict[str, Any]:
    return learner.get_state(inside, not_components=without, inference_only=inference_only)


def _get_weights(learner: Learner, module_ids: Collection[str] | str | None, inference_only: bool) -> dict[str, Any]:
    names = checked_names("module_ids", module_ids)
    ids = list(learner.module) if names is None else names
    unknown = [mid for mid in ids if mid not in learner.module]
    if unknown:
        raise KeyError(f"no modules {unknown}; there are {sorted(learner.module)}")
    return {mid: learner.module[mid].get_state(inference_only=inference_only) for mid in ids}


def _add_module(learner: Learner, module_id: str, spec: Any, overrides: Any, who_learns: Any) -> MultiRLModuleSpec:
    return learner.add_module(
        module_id=module_id,
        module_spec=spec,
        config_overrides=overrides,
        new_should_module_be_updated=who_learns,
    )


def _remove_module(learner: Learner, module_id: str, who_learns: Any) -> MultiRLModuleSpec:
    return learner.remove_module(module_id, new_should_module_be_updated=who_learns)


def _num_updates_skipped(learner: Learner) -> int:
    return learner.lifetime.get("num_updates_skipped", 0)
