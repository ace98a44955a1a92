"""`RayLearnerBackend`: n learners in Ray actors behind a `LearnerGroup`.

Ray starts the processes and carries batches and calls; gradients go over `torch.distributed`, between the learners.

A call is made on all learners or on none: each keeps what it was before until all have answered. Where one died, hangs
or raised what the others did not, all go back to that, the lost ones are started again with the state of another, and
the call is made anew, as often as `RestartLimits` allow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from lockstep.cluster.learner_processes import Answers, LearnerProcesses, failures
from lockstep.cluster.learner_worker import Answer, BuildLearner, become, whole_of
from lockstep.cluster.start import start_ray
from lockstep.data.trajectories import Trajectories
from lockstep.data.trees import map_tree
from lockstep.learner.config import LearnersSection
from lockstep.learner.metrics import Results
from lockstep.learner.reduction import LearnerError
from lockstep.learner.request_queue import UpdateRequest
from lockstep.learner.sharding import EpisodeParts, shards_of
from lockstep.state.restarts import RestartBudget, RestartLimits

MISTAKES = (ValueError, TypeError, KeyError)
"""what data or options of the caller lead to; starting a learner again would not help"""


@dataclass(frozen=True)
class StoredShards:
    """References to the learners' shards in Ray's object store, by rank."""

    shards: list[Any]


class RayLearnerBackend:
    """`section.num_learners` learners, each `build(reducer=...)` in an actor of its own.

    Starts Ray on this machine where it does not run yet. `LearnerError` where the cluster has no room, when no learner
    is left that knows the state, beyond the limit of restarts (the learners that are left can still be read and saved),
    and where the object store is full; it names the rank, the traceback and `last_checkpoint`.
    """

    is_local = False

    def __init__(
        self,
        build: BuildLearner,
        section: LearnersSection,
        *,
        strategy: str = "PACK",
        limits: RestartLimits | None = None,
        start_ray: Callable[[], bool] = start_ray,
    ) -> None:
        import ray

        if section.num_learners < 1:
            raise ValueError(f"num_learners={section.num_learners}; learners in other processes are at least 1")
        self._ray, self.last_checkpoint = ray, ""
        self._restarts = 0
        self._budget = RestartBudget(limits or RestartLimits())
        self._modules: dict[str, bool] = {}
        self._stateless: set[int] = set()
        """ranks of learners that were started and know nothing yet"""
        self._is_whole = False
        """are all learners there, and joined?"""
        self._failed: Answers = {}
        self._lost: LearnerError | None = None
        self._owns_ray = start_ray()
        try:
            self._processes = LearnerProcesses(build, section, strategy)
            self._start(section.num_learners)
        except BaseException:
            self.shutdown()
            raise

    def __len__(self) -> int:
        return len(self._processes)

    # -- calls ---

    def fetched(self, data: Any) -> Any:
        """`data`; where it is, or has, references to what lies in Ray's object store, what they refer to."""
        is_reference = isinstance(data, self._ray.ObjectRef)
        if not is_reference and not (
            isinstance(data, list | tuple) and any(isinstance(item, self._ray.ObjectRef) for item in data)
        ):
            return data
        if is_reference:
            return self._ray.get(data)
        episodes: list[Any] = []
        for item in data:
            found = self._ray.get(item) if isinstance(item, self._ray.ObjectRef) else item
            episodes += found if isinstance(found, list | tuple) else [found]
        return episodes

    def freeze(self, data: Any) -> StoredShards:
        """Episodes or a batch in the object store, each learner's shard once."""
        shards = shards_of(data, len(self), self._modules)
        return StoredShards([self._put(_contiguous(shard)) for shard in shards])

    def update(self, request: UpdateRequest) -> list[Results]:
        """One update on all learners, or on none; the results of each."""
        data = request.data if isinstance(request.data, StoredShards) else self.freeze(request.data)
        order = replace(request, data=None)
        answers = self._on_all("update", lambda rank: (order, data.shards[rank]))
        return [answer.value for answer in answers.values()]

    def foreach(self, func: Callable[..., Any], *args: Any) -> list[Any]:
        """`[func(learner, *args)]`, in order; raises what all learners raise, and then nothing is changed."""
        given = [self._put(arg) for arg in args]
        answers = self._on_all("apply", lambda rank: (func, *given))
        return [_own_copy(answer.value) for answer in answers.values()]

    def first(self, func: Callable[..., Any], *args: Any) -> Any:
        """`func(learner, *args)` of one learner, for what is the same on all and changes nothing."""
        while True:
            if self._lost is not None:
                raise self._lost
            rank = next((rank for rank in self._processes.alive if rank not in self._stateless), None)
            if rank is None:
                raise self._error(self._failed, " no learner is left that could answer;")
            answer = self._processes.call("read", lambda _: (func, *args), [rank])[rank]
            if answer.error is None:
                return _own_copy(answer.value)
            if answer.is_alive:
                answer.error.add_note(f"in learner {rank} of {len(self)}:\n{answer.trace}")
                raise answer.error
            self._set_back([rank])
            self._heal({rank: answer})

    def peek(self, func: Callable[..., Any]) -> Any:
        """`func(learner)` of one learner, beside the update that runs; None where none answers."""
        answer = next((self._processes.beside(rank, "peek", func) for rank in self._processes.alive[:1]), None)
        return None if answer is None else answer.value

    def resize(self, num_learners: int) -> None:
        """Ends all learners and starts `num_learners` with their state; without room for them all stays as it was."""
        if num_learners < 1:
            raise ValueError(f"resize({num_learners}): learners in other processes are at least 1")
        before = len(self)
        if num_learners == before:
            return
        like = self._put(self.first(whole_of))
        self._is_whole = False
        try:
            self._start(num_learners, like)
        except Exception as error:
            try:
                self._start(before, like)
            except Exception as second:
                self._lost = LearnerError(
                    f"resize({num_learners}) failed ({error}), and so did the start of {before} learners again "
                    f"({second}); build the group again"
                )
                raise self._lost from error
            raise LearnerError(f"resize({num_learners}): {error}. The group goes on with {before} learners") from error

    def num_restarts(self) -> int:
        """Learners that were started again."""
        return self._restarts

    def process_ids(self) -> list[int]:
        """Of the learners, in order."""
        return self._processes.ids()

    def shutdown(self) -> None:
        """Ends all actors, and Ray if it was started here."""
        if not self._ray.is_initialized():
            return
        if hasattr(self, "_processes"):
            self._processes.stop()
        if self._owns_ray:
            self._ray.shutdown()

    # -- failures ---

    def _on_all(self, method: str, arguments: Callable[[int], tuple[Any, ...]]) -> Answers:
        """A call that changes learners: on all of them, or on none."""
        if self._lost is not None:
            raise self._lost
        if not self._is_whole:
            self._heal(self._failed)
        while True:
            answers = self._processes.call(method, arguments)
            failed = failures(answers)
            if not failed:
                self._processes.tell("accept")
                self._modules = answers[0].modules
                return answers
            self._recover(failed)

    def _recover(self, failed: Answers) -> None:
        """All learners as before the call, and ready for another. Raises what is not to be tried again."""
        own = {rank: answer for rank, answer in failed.items() if answer.is_own}
        alike = len(own) == len(self) and len({type(answer.error) for answer in own.values()}) == 1
        mistaken = bool(own) and all(isinstance(answer.error, MISTAKES) for answer in own.values())
        if not (alike or mistaken) or not all(answer.is_alive for answer in own.values()):
            raising = list(own)
            if len(raising) == len(self):  # somebody must know the state
                raising = [rank for rank, answer in own.items() if not answer.is_alive]
            self._set_back(raising)
            self._heal(failed)
            return
        self._set_back([])
        if self._restart():
            self._heal(failed)
        rank, answer = next(iter(own.items()))
        if alike and answer.error is not None:
            answer.error.add_note(f"in learner {rank} of {len(self)}:\n{answer.trace}")
            raise answer.error
        raise self._error(failed)

    def _set_back(self, lost: list[int]) -> None:
        """Ends the processes of `lost`; the others undo what was not accepted, and leave one another."""
        self._is_whole = False
        self._end(lost)
        self._end(failures(self._processes.call("set_back", lambda _: ())))

    def _heal(self, failed: Answers) -> None:
        """Starts lost learners again, all with the state of one that was left; within the limit, else raises."""
        self._failed = failed
        while True:
            lost = [f"learner {rank}" for rank in range(len(self)) if rank not in self._processes.alive]
            for which in lost or ["the group"]:
                refused = self._budget.take(which)
                if refused is not None:
                    raise self._error(failed, f" {which} is not started again: {refused} (fault_tolerance);")
            try:
                bad = self._restart()
            except LearnerError as error:
                raise error if error is self._lost else self._error(failed, f" {error};") from error
            if not bad:
                return

    def _restart(self) -> Answers:
        """One attempt to start what is lost and to join all; the failures."""
        knowing = [rank for rank in range(len(self)) if rank not in self._stateless]
        if not knowing and self._processes.salvaged is None:
            self._lost = self._error(self._failed, " No learner is left that knows the state; build the group again.")
            raise self._lost
        started = [rank for rank in range(len(self)) if rank not in self._processes.alive]
        bad = self._processes.spawn() or failures(self._processes.join())
        if not bad and self._stateless:
            like = self._processes.salvaged
            if knowing:
                answers = self._processes.call("read", lambda _: (whole_of,), knowing[:1])
                bad, like = failures(answers), answers[knowing[0]].value
            bad = bad or self._make_equal(self._put(like))
        self._end(rank for rank, answer in bad.items() if not answer.is_alive)
        if not bad:
            self._restarts += len(started)
            self._is_whole, self._processes.salvaged = True, None
        return bad

    def _make_equal(self, like: Any) -> Answers:
        """The learners that know nothing become as `like`; the failures."""
        bad = failures(self._processes.call("read", lambda _: (become, like), sorted(self._stateless)))
        if not bad:
            self._stateless.clear()
        return bad

    def _start(self, num_learners: int, like: Any = None) -> None:
        """Ends all learners and starts new ones, as their configuration says or as `like`."""
        self._processes.stop()
        self._processes.reserve(num_learners)
        self._stateless = set(range(num_learners))
        answers = self._processes.spawn() or self._processes.join()
        bad = failures(answers)
        if not bad:
            self._modules = answers[0].value
            bad = {} if like is None else self._make_equal(like)
        if bad:
            self._processes.stop()
            self._raise_start(bad)
        self._stateless.clear()
        self._is_whole, self._lost = True, None

    def _raise_start(self, bad: Answers) -> None:
        own = {rank: answer for rank, answer in bad.items() if answer.is_own}
        rank, answer = next(iter((own or bad).items()))
        if answer.is_alive and answer.error is not None and answer.is_own:
            answer.error.add_note(f"in learner {rank}:\n{answer.trace}")
            raise answer.error
        raise LearnerError(f"learner {rank} could not be started:\n{answer.trace}") from answer.error

    def _end(self, ranks: Iterable[int]) -> None:
        ended = list(ranks)
        self._processes.end(ended)
        self._stateless.update(ended)

    def _error(self, failed: Answers, more: str = "") -> LearnerError:
        """With the first traceback, the rank and the last checkpoint."""
        own = {rank: answer for rank, answer in failed.items() if answer.is_own}
        rank, answer = next(iter((own or failed).items()), (0, Answer()))
        saved = f"the last checkpoint is {self.last_checkpoint}" if self.last_checkpoint else "no checkpoint was saved"
        error = LearnerError(
            f"learner {rank} of {len(self)} failed, and no learner was updated;{more} {saved}.\n{answer.trace}"
        )
        error.__cause__ = answer.error
        return error

    def _put(self, value: Any) -> Any:
        exceptions = self._ray.exceptions
        try:
            return self._ray.put(value)
        except (exceptions.ObjectStoreFullError, exceptions.OutOfDiskError) as error:
            raise LearnerError(
                "Ray's object store has no room for the data of this call, and no learner was updated; give it less at "
                "once, let fewer asynchronous updates wait (max_requests_in_flight_per_learner), or start Ray with "
                f"ray.init(object_store_memory=...). Ray says: {error}"
            ) from error


def _contiguous(shard: Any) -> Any:
    """`shard` with arrays that Ray stores as they are, so that learners read them where they lie."""
    if not isinstance(shard, EpisodeParts):
        return shard
    parts = {}
    for module_id, part in shard.trajectories.items():
        columns = {item.name: getattr(part, item.name) for item in fields(Trajectories) if item.name != "place"}
        stored: dict[str, Any] = {
            name: None if value is None else map_tree(_in_rows, value) for name, value in columns.items()
        }
        parts[module_id] = Trajectories(**stored, place=part.place)
    return replace(shard, trajectories=parts)


def _in_rows(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array)


def _own_copy(value: Any) -> Any:
    """Arrays in dicts and lists as copies that the caller may write to, not views of Ray's object store."""
    if isinstance(value, np.ndarray):
        return value if value.flags.writeable else value.copy()
    if type(value) is dict:
        return {key: _own_copy(part) for key, part in value.items()}
    return [_own_copy(part) for part in value] if type(value) is list else value
