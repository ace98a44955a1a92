"""`RayLearnerBackend`: n learners in Ray actors behind a `LearnerGroup`.

Ray starts the processes and carries batches and calls; gradients go over `torch.distributed`, between the learners.

A call is made on all learners or on none: each keeps what it was before until all have answered. Where one died, hangs
or raised what the others did not, all go back to that, the lost ones are started again with the state of another, and
the call is made anew, as often as `RestartLimits` allow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from lockstep.cluster.learner_worker import CONTROL, Answer, BuildLearner, LearnerWorker, Whole, become, whole_of
from lockstep.cluster.processes import ROOM_S, RayProcesses, start_ray
from lockstep.data.trajectories import Trajectories
from lockstep.data.trees import Tree, map_tree
from lockstep.learner.config import LearnersSection
from lockstep.learner.group import LearnerBackend
from lockstep.learner.many.reduction import LearnerError
from lockstep.learner.many.request_queue import Kind, UpdateRequest
from lockstep.learner.many.sharding import EpisodeParts, shards_of
from lockstep.learner.metrics import Results
from lockstep.options.restarts import RestartBudget, RestartLimits

MISTAKES = (ValueError, TypeError, KeyError)
"""what data or options of the caller lead to; starting a learner again would not help"""
GRACE_S = 5.0
"""seconds that the others have to answer when one learner failed, before they are started again, too"""
PROBE_S = 3.0
"""seconds in which a learner that works must say how far it is"""
START_S = 60.0
"""seconds that a new process may take at least"""
Answers = dict[int, Answer]
"""by rank"""


class LearnerProcesses(RayProcesses):
    """The processes of the learners, by rank; they meet in a process group of `torch.distributed`.

    A call that learners do not answer in `section.learner_timeout_s` ends those that hang; the others answer then.
    """

    def __init__(
        self,
        build: BuildLearner,
        section: LearnersSection,
        strategy: str,
        start_ray: Callable[[], bool],
        num_standby: int = 0,
    ) -> None:
        super().__init__(
            LearnerWorker,
            kind="learner",
            resources={
                "CPU": section.num_cpus_per_learner,
                "GPU": section.num_gpus_per_learner,
                **section.custom_resources_per_learner,
            },
            strategy=strategy,
            error=LearnerError,
            start_ray=start_ray,
            worker_options={"concurrency_groups": {CONTROL: 1}},
            num_standby=num_standby,
        )
        self.section = section
        self.build = self.ray.put(build)
        """reference to the function that builds a learner"""
        self.salvaged: Whole | None = None
        """a learner as it was before the last call, where no learner is left that could say"""
        self._times_joined = 0

    def spawn(self) -> Answers:
        """Start a process wherever there is none; return the failures. `LearnerError` where there is no room."""
        lost = [rank for rank, actor in enumerate(self.actors) if actor is None]
        self.start(lost)
        return failures(self.call("where", lambda rank: (), lost, limit_s=self._start_s))

    def join(self) -> Answers:
        """Let all learners meet in a new process group; return the answers, with their modules as values."""
        self._times_joined += 1
        address = None
        if len(self) > 1:
            served = self.call("serve", lambda rank: (len(self),), [0], limit_s=self._start_s)
            if failures(served):
                return served
            address = served[0].value
        options = {
            "name": f"learners{self._times_joined}",
            "timeout_s": self._meeting_s,
            "backend": "nccl" if self.section.num_gpus_per_learner else "gloo",
        }
        limit_s = max(self._start_s, self._meeting_s) + GRACE_S  # who waits for another says so itself, and is kept
        return self.call("join", lambda rank: (self.build, rank, len(self), address, options), limit_s=limit_s)

    @property
    def _meeting_s(self) -> float:
        """Seconds that learners wait for one another: so long that who hangs is found before."""
        return self.section.learner_timeout_s + 2 * (PROBE_S + GRACE_S)

    @property
    def _start_s(self) -> float:
        return max(START_S, self.section.learner_timeout_s)

    # -- calls ---

    def call(
        self,
        method: str,
        arguments: Callable[[int], tuple[Any, ...]],
        ranks: Collection[int] | None = None,
        limit_s: float | None = None,
    ) -> Answers:
        """Call `method(*arguments(rank))` on learners (None: all that have a process); return their answers.

        A learner that died, or was ended because it did not answer, has an `Answer` with the error that says so.
        """
        chosen = self.alive if ranks is None else ranks
        calls = {rank: getattr(self.actors[rank], method).remote(*arguments(rank)) for rank in chosen}
        limit = self.section.learner_timeout_s if limit_s is None else limit_s
        answers = self._wait(calls, limit)
        waiting = {rank: call for rank, call in calls.items() if rank not in answers}
        if waiting:
            hanging = self._hanging(list(waiting)) if not failures(answers) else list(waiting)
            self._give_up(hanging, answers, limit)
            rest = {rank: call for rank, call in waiting.items() if rank not in answers}
            answers |= self._wait(rest, GRACE_S)
            self._give_up([rank for rank in rest if rank not in answers], answers, limit)
        return {rank: answers[rank] for rank in calls}

    def beside(self, rank: int, method: str, *args: object) -> Any:
        """Return what `method` returns beside the work that a learner is at; None where it does not answer."""
        try:
            call = getattr(self.actors[rank], method).options(concurrency_group=CONTROL).remote(*args)
            return self.ray.get(call, timeout=PROBE_S)
        except self.ray.exceptions.RayError:
            return None

    def _wait(self, calls: dict[int, Any], limit_s: float) -> Answers:
        """Return the answers that come in time; after a failure the others have `GRACE_S`."""
        deadline = time.monotonic() + limit_s
        answers: Answers = {}
        rank_of = {call: rank for rank, call in calls.items()}
        waiting = list(rank_of)
        while waiting and (left := deadline - time.monotonic()) > 0:
            ready, waiting = self.ray.wait(waiting, num_returns=1, timeout=left)
            for call in ready:
                rank = rank_of[call]
                answers[rank] = self._value_of(call, rank)
                if answers[rank].error is not None:
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        return answers

    def _value_of(self, call: object, rank: int) -> Answer:
        try:
            value = self.ray.get(call)
            return value if isinstance(value, Answer) else Answer(value)
        except self.ray.exceptions.RayActorError as error:
            return _ended(f"learner {rank} of {len(self)} died: {' '.join(str(error).split())}")
        except self.ray.exceptions.RayError as error:  # e.g. an argument or a result got lost
            return _ended(f"learner {rank} of {len(self)}: {type(error).__name__}: {error}")

    def _hanging(self, ranks: list[int]) -> list[int]:
        """Return those that the others wait for: they do not answer at all, or are busy with something else."""
        said = {rank: self.beside(rank, "progress") for rank in ranks}
        return [rank for rank, progress in said.items() if progress is None or not progress[1]]

    def _give_up(self, ranks: list[int], answers: Answers, limit_s: float) -> None:
        """End learners that do not answer; keep the state of one where nobody else may be left to tell it."""
        if not ranks:
            return
        others = [rank for rank in self.alive if rank not in ranks and (rank not in answers or answers[rank].is_alive)]
        if not others:
            known = (self.beside(rank, "before") for rank in ranks)
            self.salvaged = next((before for before in known if before is not None), self.salvaged)
        self.end(ranks)
        for rank in ranks:
            answers[rank] = _ended(
                f"learner {rank} of {len(self)} did not answer (learner_timeout_s={self.section.learner_timeout_s:g}; "
                f"waited for {limit_s:g} s) and was ended; raise learners(learner_timeout_s=...) if it had work to do"
            )


def failures(answers: Answers) -> Answers:
    """Return those with an error."""
    return {rank: answer for rank, answer in answers.items() if answer.error is not None}


def _ended(reason: str) -> Answer:
    """Return the answer of a learner whose process is gone."""
    return Answer(error=LearnerError(reason), trace=reason, is_alive=False)


@dataclass(frozen=True)
class StoredShards:
    """References to the learners' shards in Ray's object store, by rank."""

    shards: list[Any]


class RayLearnerBackend(LearnerBackend):
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
        num_standby: int = 0,
    ) -> None:
        self.last_checkpoint = ""
        self._restarts = 0
        self._budget = RestartBudget(limits or RestartLimits())
        self._modules: dict[str, bool] = {}
        self._stateless: set[int] = set()
        """ranks of learners that were started and know nothing yet"""
        self._is_whole = False
        """are all learners there, and joined?"""
        self._failed: Answers = {}
        self._lost: LearnerError | None = None
        self._processes = LearnerProcesses(build, section, strategy, start_ray, num_standby)
        self._ray = self._processes.ray
        try:
            self._start(section.num_learners)
        except BaseException:
            self.shutdown()
            raise

    def __len__(self) -> int:
        return len(self._processes)

    # -- calls ---

    def request(
        self,
        kind: Kind,
        data: object,
        options: Mapping[str, Any],
        *,
        return_state: bool,
        reduce_results: bool,
    ) -> UpdateRequest:
        """Return the checked request for an update. `data` may be references to Ray's object store."""
        return UpdateRequest.checked(kind, self._fetched(data), options, return_state, reduce_results)

    def divided(self, request: UpdateRequest, *, is_async: bool) -> UpdateRequest:
        """Return a request with references to each learner's shard in Ray's object store, which is a copy."""
        shards = shards_of(request.data, len(self), self._modules)
        return replace(request, data=StoredShards([self._processes.store(_contiguous(shard)) for shard in shards]))

    def _fetched(self, data: object) -> Any:
        """Return `data`, with references to Ray's object store replaced by what they refer to."""
        reference = self._ray.ObjectRef
        if isinstance(data, reference):
            return self._ray.get(data)
        if not isinstance(data, list | tuple) or not any(isinstance(item, reference) for item in data):
            return data
        episodes: list[Any] = []
        for item in data:
            found = self._ray.get(item) if isinstance(item, reference) else item
            episodes += found if isinstance(found, list | tuple) else [found]
        return episodes

    def update(self, request: UpdateRequest) -> list[Results]:
        """Make one update on all learners, or on none; return the results of each."""
        stored: StoredShards = request.data
        order = replace(request, data=None)
        answers = self._on_all("update", lambda rank: (order, stored.shards[rank]))
        return [answer.value for answer in answers.values()]

    def foreach(self, func: Callable[..., Any], *args: object) -> list[Any]:
        """Return `[func(learner, *args)]`, in order; raise what all learners raise, and then nothing is changed."""
        references = [self._processes.store(arg) for arg in args]
        answers = self._on_all("apply", lambda rank: (func, *references))
        return [_writable(answer.value) for answer in answers.values()]

    def first(self, func: Callable[..., Any], *args: object) -> Any:
        """Return `func(learner, *args)` of one learner, for what is the same on all and changes nothing."""
        while True:
            if self._lost is not None:
                raise self._lost
            rank = next((rank for rank in self._processes.alive if rank not in self._stateless), None)
            if rank is None:
                raise self._error(self._failed, " no learner is left that could answer;")
            answer = self._processes.call("read", lambda _: (func, *args), [rank])[rank]
            if answer.error is None:
                return _writable(answer.value)
            if answer.is_alive:
                answer.error.add_note(f"in learner {rank} of {len(self)}:\n{answer.trace}")
                raise answer.error
            self._set_back([rank])
            self._heal({rank: answer})

    def peek(self, func: Callable[..., Any]) -> Any:
        """Return `func(learner)` of one learner, beside the update that runs; None where none answers."""
        answer = next((self._processes.beside(rank, "read", func) for rank in self._processes.alive[:1]), None)
        return None if answer is None else answer.value

    def resize(self, num_learners: int) -> None:
        """End all learners and start `num_learners` with their state; without room for them all stays as it was."""
        if num_learners < 1:
            raise ValueError(f"resize({num_learners}): learners in other processes are at least 1")
        before = len(self)
        if num_learners == before:
            return
        like = self._processes.store(self.first(whole_of))
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
        """Return how many learners were started again."""
        return self._restarts

    def process_ids(self) -> list[int]:
        """Return the processes of the learners, in order."""
        return self._processes.process_ids()

    def shutdown(self) -> None:
        """End all actors, and Ray if it was started here."""
        self._processes.shutdown()

    # -- failures ---

    def _on_all(self, method: str, arguments: Callable[[int], tuple[Any, ...]]) -> Answers:
        """Make a call that changes learners: on all of them, or on none."""
        if self._lost is not None:
            raise self._lost
        if not self._is_whole:
            self._heal(self._failed)
        while True:
            answers = self._processes.call(method, arguments)
            failed = failures(answers)
            if not failed:
                for actor in self._processes.actors:
                    actor.accept.remote()
                self._modules = answers[0].modules
                return answers
            self._recover(failed)

    def _recover(self, failed: Answers) -> None:
        """Make all learners as before the call, and ready for another. Raise what is not to be tried again."""
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
        """End the processes of `lost`; the others undo what was not accepted, and leave one another."""
        self._is_whole = False
        self._end(lost)
        self._end(failures(self._processes.call("set_back", lambda _: ())))

    def _heal(self, failed: Answers) -> None:
        """Start lost learners again, all with the state of one that was left; raise where the limits forbid it."""
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
        """Try once to start what is lost and to join all; return the failures."""
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
            bad = bad or self._make_equal(self._processes.store(like))
        self._end(rank for rank, answer in bad.items() if not answer.is_alive)
        if not bad:
            self._restarts += len(started)
            self._is_whole, self._processes.salvaged = True, None
        return bad

    def _make_equal(self, like: Any) -> Answers:
        """Make the learners that know nothing equal to `like`; return the failures."""
        bad = failures(self._processes.call("read", lambda _: (become, like), sorted(self._stateless)))
        if not bad:
            self._stateless.clear()
        return bad

    def _start(self, num_learners: int, like: Any = None) -> None:
        """End all learners and start new ones, as their configuration says or equal to `like`."""
        self._processes.stop()
        self._processes.reserve(num_learners, min(self._processes.section.learner_timeout_s, ROOM_S))
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
        """Return the error to raise, with the first traceback, the rank and the last checkpoint."""
        own = {rank: answer for rank, answer in failed.items() if answer.is_own}
        rank, answer = next(iter((own or failed).items()), (0, Answer()))
        saved = f"the last checkpoint is {self.last_checkpoint}" if self.last_checkpoint else "no checkpoint was saved"
        error = LearnerError(
            f"learner {rank} of {len(self)} failed, and no learner was updated;{more} {saved}.\n{answer.trace}"
        )
        error.__cause__ = answer.error
        return error


def _contiguous(shard: Tree) -> Any:
    """Return `shard` with arrays that Ray stores as they are, so that learners read them where they lie."""
    if not isinstance(shard, EpisodeParts):
        return shard
    parts = {}
    for module_id, part in shard.trajectories.items():
        columns = {item.name: getattr(part, item.name) for item in fields(Trajectories) if item.name != "place"}
        stored: dict[str, Any] = {
            name: None if value is None else map_tree(np.ascontiguousarray, value) for name, value in columns.items()
        }
        parts[module_id] = Trajectories(**stored, place=part.place)
    return replace(shard, trajectories=parts)


def _writable(value: Tree) -> Any:
    """Return arrays in dicts and lists as copies that the caller may write to, not views of Ray's object store."""
    if isinstance(value, np.ndarray):
        return value if value.flags.writeable else value.copy()
    if type(value) is dict:
        return {key: _writable(part) for key, part in value.items()}
    return [_writable(part) for part in value] if type(value) is list else value
