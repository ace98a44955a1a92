"""`RayLearnerBackend`: n learners in Ray actors behind a `LearnerGroup`.

Ray starts the processes and transports batches and calls. Gradients are exchanged over `torch.distributed`, directly
between the learners.

A call is executed by all learners or by none: each keeps a snapshot from before the call until all have answered. If a
learner died, hangs, or raised an error that the others did not raise, all roll back to their snapshots, the lost
learners are started again with the state of another one, and the call is repeated, as often as `RestartLimits` allow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lockstep.cluster.learner_worker import (
    CONTROL,
    BuildLearner,
    CallResult,
    LearnerSnapshot,
    LearnerWorker,
    restore_snapshot,
    take_snapshot,
)
from lockstep.cluster.processes import RESERVE_TIMEOUT_S, RayProcesses, start_ray
from lockstep.data.trees import Tree
from lockstep.learner.config import LearnersSection
from lockstep.learner.group import LearnerBackend
from lockstep.learner.many.reduction import LearnerError
from lockstep.learner.many.request_queue import Kind, UpdateRequest
from lockstep.learner.many.sharding import shards_of
from lockstep.learner.metrics import Results
from lockstep.options.restarts import RestartBudget, RestartLimits

USER_ERRORS = (ValueError, TypeError, KeyError)
"""Errors that data or options of the caller cause. A restart of the learner would not help."""
GRACE_S = 5.0
"""Seconds that the other learners have to answer after one has failed, before they are restarted too."""
PROBE_S = 3.0
"""Seconds in which a busy learner must report its progress."""
START_S = 60.0
"""Seconds that a new process may always take to start, even if `learner_timeout_s` is shorter."""
CallResults = dict[int, CallResult]
"""Results of a call by rank."""


class LearnerProcesses(RayProcesses):
    """Processes of the learners, by rank, which form a process group of `torch.distributed`.

    If learners do not answer a call within `section.learner_timeout_s`, those that hang are ended. The others then
    answer, because their reductions fail.
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
        """Reference to the function that builds a learner."""
        self.rescued_snapshot: LearnerSnapshot | None = None
        """Snapshot of a hanging learner from before the last call, if no other learner may be left with the state."""
        self._num_joins = 0

    def spawn(self) -> CallResults:
        """Start a process for every rank without one, and return the failures.

        Raises:
            LearnerError: the cluster does not have the resources.
        """
        missing = [rank for rank, actor in enumerate(self.actors) if actor is None]
        self.start(missing)
        return failures(self.call("location", lambda rank: (), missing, limit_s=self._start_s))

    def join(self) -> CallResults:
        """Connect all learners in a new process group, and return their results, whose values are the modules."""
        self._num_joins += 1
        address = None
        if len(self) > 1:
            served = self.call("serve", lambda rank: (len(self),), [0], limit_s=self._start_s)
            if failures(served):
                return served
            address = served[0].value
        options = {
            "name": f"learners{self._num_joins}",
            "timeout_s": self._reduction_timeout_s,
            "backend": "nccl" if self.section.num_gpus_per_learner else "gloo",
        }
        # A learner that waits in vain for another one must have the time to report it: then only the other is ended.
        limit_s = max(self._start_s, self._reduction_timeout_s) + GRACE_S
        return self.call("join", lambda rank: (self.build, rank, len(self), address, options), limit_s=limit_s)

    @property
    def _reduction_timeout_s(self) -> float:
        """Seconds that learners wait for each other. It is long enough for a hanging learner to be found before."""
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
    ) -> CallResults:
        """Call `method(*arguments(rank))` on learners and return their results.

        The result of a learner that died, or that was ended because it did not answer, contains an error about that.

        Args:
            method: name of the method of `LearnerWorker`.
            arguments: function that returns the arguments for a rank.
            ranks: ranks of the learners. Defaults to all that have a process.
            limit_s: seconds in which the learners must answer. Defaults to `section.learner_timeout_s`.
        """
        called = self.alive if ranks is None else ranks
        calls = {rank: getattr(self.actors[rank], method).remote(*arguments(rank)) for rank in called}
        limit = self.section.learner_timeout_s if limit_s is None else limit_s
        results = self._wait(calls, limit)

        unanswered = {rank: call for rank, call in calls.items() if rank not in results}
        if unanswered:
            # After a failure the others had time to notice it, so all that did not are ended. Without a failure only
            # those are ended that the others wait for.
            hanging = list(unanswered) if failures(results) else self._find_hanging(list(unanswered))
            self._end_hanging(hanging, results, limit)
            pending = {rank: call for rank, call in unanswered.items() if rank not in results}
            results |= self._wait(pending, GRACE_S)
            self._end_hanging([rank for rank in pending if rank not in results], results, limit)
        return {rank: results[rank] for rank in calls}

    def call_control(self, rank: int, method: str, *args: object) -> Any:
        """Call a method in a learner's thread `CONTROL`, and return its value. None if the learner does not answer."""
        try:
            call = getattr(self.actors[rank], method).options(concurrency_group=CONTROL).remote(*args)
            return self.ray.get(call, timeout=PROBE_S)
        except self.ray.exceptions.RayError:
            return None

    def _wait(self, calls: dict[int, Any], limit_s: float) -> CallResults:
        """Return the results that come in time. After a failure the others have `GRACE_S` seconds."""
        deadline = time.monotonic() + limit_s
        results: CallResults = {}
        rank_of = {call: rank for rank, call in calls.items()}
        pending = list(rank_of)
        while pending and (seconds_left := deadline - time.monotonic()) > 0:
            ready, pending = self.ray.wait(pending, num_returns=1, timeout=seconds_left)
            for call in ready:
                rank = rank_of[call]
                results[rank] = self._result_of(call, rank)
                if results[rank].error is not None:
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        return results

    def _result_of(self, call: object, rank: int) -> CallResult:
        try:
            value = self.ray.get(call)
            return value if isinstance(value, CallResult) else CallResult(value)
        except self.ray.exceptions.RayActorError as error:
            return _result_of_ended(f"learner {rank} of {len(self)} died: {' '.join(str(error).split())}")
        except self.ray.exceptions.RayError as error:  # for example, an argument or a result was lost
            return _result_of_ended(f"learner {rank} of {len(self)}: {type(error).__name__}: {error}")

    def _find_hanging(self, ranks: list[int]) -> list[int]:
        """Return the learners that the others wait for: those that do not answer, or are not in a reduction."""
        progress_of = {rank: self.call_control(rank, "progress") for rank in ranks}
        return [rank for rank, progress in progress_of.items() if progress is None or not progress[1]]

    def _end_hanging(self, ranks: list[int], results: CallResults, limit_s: float) -> None:
        """End learners that do not answer, and add their results.

        If no other learner may be left with the state, the snapshot of one of them is rescued before.
        """
        if not ranks:
            return
        others = [rank for rank in self.alive if rank not in ranks and (rank not in results or results[rank].is_alive)]
        if not others:
            snapshots = (self.call_control(rank, "snapshot") for rank in ranks)
            available = (snapshot for snapshot in snapshots if snapshot is not None)
            self.rescued_snapshot = next(available, self.rescued_snapshot)
        self.end(ranks)
        for rank in ranks:
            results[rank] = _result_of_ended(
                f"learner {rank} of {len(self)} did not answer (learner_timeout_s={self.section.learner_timeout_s:g}; "
                f"waited for {limit_s:g} s) and was ended; raise learners(learner_timeout_s=...) if it had work to do"
            )


def failures(results: CallResults) -> CallResults:
    """Return the results with an error."""
    return {rank: result for rank, result in results.items() if result.error is not None}


def _result_of_ended(reason: str) -> CallResult:
    """Return the result of a call on a learner whose process has ended."""
    return CallResult(error=LearnerError(reason), trace=reason, is_alive=False)


@dataclass(frozen=True)
class StoredShards:
    """References to the learners' shards in Ray's object store."""

    shards: list[Any]
    """References, by rank."""


class RayLearnerBackend(LearnerBackend):
    """Backend with `section.num_learners` learners, each of which is built by `build(reducer=...)` in its own actor.

    If Ray is not running, it is started on this machine.

    Raises:
        LearnerError: the cluster does not have the resources, the object store is full, no learner with the state is
            left, or the limit of restarts is reached. In the last case the remaining learners can still be read and
            saved. The message contains the rank, the traceback and `last_checkpoint`.
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
        """Ids of the modules, each with whether it has a memory."""
        self._stateless: set[int] = set()
        """Ranks of learners that have not got the state of the others yet."""
        self._is_complete = False
        """Whether all learners are running and connected."""
        self._last_failures: CallResults = {}
        self._fatal_error: LearnerError | None = None
        """Error of every further call, after the state was lost."""
        self._processes = LearnerProcesses(build, section, strategy, start_ray, num_standby)
        self._ray = self._processes.ray
        # An error or Ctrl-C during the start must not leave processes behind.
        with ExitStack() as cleanup:
            cleanup.callback(self.shutdown)
            self._start(section.num_learners)
            cleanup.pop_all()

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
        return UpdateRequest.checked(kind, self._fetch(data), options, return_state, reduce_results)

    def divided(self, request: UpdateRequest, *, is_async: bool) -> UpdateRequest:
        """Return the request with references to each learner's shard, which is copied into Ray's object store."""
        shards = shards_of(request.data, len(self), self._modules)
        if request.kind == "episodes":
            # Ray stores contiguous arrays without a copy, and learners read them in place.
            shards = [shard.contiguous() for shard in shards]
        return replace(request, data=StoredShards([self._processes.store(shard) for shard in shards]))

    def _fetch(self, data: object) -> Any:
        """Return the data with references to Ray's object store replaced by their values."""
        reference_class = self._ray.ObjectRef
        if isinstance(data, reference_class):
            return self._ray.get(data)
        if not isinstance(data, list | tuple) or not any(isinstance(item, reference_class) for item in data):
            return data
        episodes: list[Any] = []
        for item in data:
            value = self._ray.get(item) if isinstance(item, reference_class) else item
            episodes += value if isinstance(value, list | tuple) else [value]
        return episodes

    def update(self, request: UpdateRequest) -> list[Results]:
        """Execute one update on all learners, or on none, and return the results of each."""
        stored: StoredShards = request.data
        request_without_data = replace(request, data=None)
        results = self._call_all("update", lambda rank: (request_without_data, stored.shards[rank]))
        return [result.value for result in results.values()]

    def foreach(self, func: Callable[..., Any], *args: object) -> list[Any]:
        """Return `[func(learner, *args)]` by rank. An error that all learners raise is raised; nothing changes then."""
        references = [self._processes.store(arg) for arg in args]
        results = self._call_all("apply", lambda rank: (func, *references))
        return [_writable(result.value) for result in results.values()]

    def first(self, func: Callable[..., Any], *args: object) -> Any:
        """Return `func(learner, *args)` of one learner. `func` must not change it, and must be equal for all."""
        while True:
            if self._fatal_error is not None:
                raise self._fatal_error
            rank = next((rank for rank in self._processes.alive if rank not in self._stateless), None)
            if rank is None:
                raise self._failure_error(self._last_failures, " no learner is left that could answer;")
            result = self._processes.call("read", lambda _: (func, *args), [rank])[rank]
            if result.error is None:
                return _writable(result.value)
            if result.is_alive:
                result.error.add_note(f"in learner {rank} of {len(self)}:\n{result.trace}")
                raise result.error
            self._roll_back([rank])
            self._restart_lost({rank: result})

    def peek(self, func: Callable[..., Any]) -> Any:
        """Return `func(learner)` of one learner during an update. None if it does not answer."""
        results = (self._processes.call_control(rank, "read", func) for rank in self._processes.alive[:1])
        result = next(results, None)
        return None if result is None else result.value

    def resize(self, num_learners: int) -> None:
        """Replace all learners by another number of learners with the same state.

        Raises:
            LearnerError: there are no resources for them. The group continues as it was.
        """
        if num_learners < 1:
            raise ValueError(f"resize({num_learners}): learners in other processes are at least 1")
        old_number = len(self)
        if num_learners == old_number:
            return
        snapshot = self._processes.store(self.first(take_snapshot))
        self._is_complete = False
        try:
            self._start(num_learners, snapshot)
        except Exception as error:
            try:
                self._start(old_number, snapshot)
            except Exception as second:
                self._fatal_error = LearnerError(
                    f"resize({num_learners}) failed ({error}), and so did the start of {old_number} learners again "
                    f"({second}); build the group again"
                )
                raise self._fatal_error from error
            raise LearnerError(
                f"resize({num_learners}): {error}. The group continues with {old_number} learners"
            ) from error

    def num_restarts(self) -> int:
        """Return the number of learners that were started again."""
        return self._restarts

    def process_ids(self) -> list[int]:
        """Return the process ids of the learners, by rank."""
        return self._processes.process_ids()

    def shutdown(self) -> None:
        """End all actors, and Ray if this group has started it."""
        self._processes.shutdown()

    # -- failures ---

    def _call_all(self, method: str, arguments: Callable[[int], tuple[Any, ...]]) -> CallResults:
        """Execute a call that changes learners: on all of them, or on none."""
        if self._fatal_error is not None:
            raise self._fatal_error
        if not self._is_complete:
            self._restart_lost(self._last_failures)
        while True:
            results = self._processes.call(method, arguments)
            failed = failures(results)
            if not failed:
                for actor in self._processes.actors:
                    actor.commit.remote()
                self._modules = results[0].modules
                return results
            self._recover(failed)

    def _recover(self, failed: CallResults) -> None:
        """Undo a failed call on all learners, and make the group ready to repeat it.

        Raises the error if the call must not be repeated: an error that all learners share, or an error of the caller.
        """
        own = {rank: result for rank, result in failed.items() if result.is_own}
        # If all learners raise the same kind of error, or one blames the caller's data, no machine is at fault: the
        # call would fail again.
        is_shared = len(own) == len(self) and len({type(result.error) for result in own.values()}) == 1
        is_of_user = bool(own) and all(isinstance(result.error, USER_ERRORS) for result in own.values())
        all_alive = all(result.is_alive for result in own.values())

        if not (is_shared or is_of_user) or not all_alive:
            # The learners that raised are replaced, unless none would be left with the state.
            replaced = list(own)
            if len(replaced) == len(self):
                replaced = [rank for rank, result in own.items() if not result.is_alive]
            self._roll_back(replaced)
            self._restart_lost(failed)
            return

        # The group stays usable: all learners roll back and connect again before the error is raised.
        self._roll_back([])
        if self._try_restart():
            self._restart_lost(failed)
        rank, result = next(iter(own.items()))
        if is_shared and result.error is not None:
            result.error.add_note(f"in learner {rank} of {len(self)}:\n{result.trace}")
            raise result.error
        raise self._failure_error(failed)

    def _roll_back(self, lost: list[int]) -> None:
        """End the processes of `lost`, and let the others undo the call that was not committed."""
        self._is_complete = False
        self._end(lost)
        self._end(failures(self._processes.call("roll_back", lambda _: ())))

    def _restart_lost(self, failed: CallResults) -> None:
        """Restart lost learners with the state of a remaining one, until the group is complete.

        Raises:
            LearnerError: the limits of restarts are reached, or a restart failed.
        """
        self._last_failures = failed
        while True:
            lost = [f"learner {rank}" for rank in range(len(self)) if rank not in self._processes.alive]
            for name in lost or ["the group"]:  # connecting again counts as a restart too
                refusal = self._budget.take(name)
                if refusal is not None:
                    raise self._failure_error(failed, f" {name} is not started again: {refusal} (fault_tolerance);")
            try:
                failed_restarts = self._try_restart()
            except LearnerError as error:
                raise error if error is self._fatal_error else self._failure_error(failed, f" {error};") from error
            if not failed_restarts:
                return

    def _try_restart(self) -> CallResults:
        """Try once to start the lost learners and to connect all. Return the failures."""
        with_state = [rank for rank in range(len(self)) if rank not in self._stateless]
        rescued_snapshot = self._processes.rescued_snapshot
        if not with_state and rescued_snapshot is None:
            self._fatal_error = self._failure_error(
                self._last_failures, " No learner is left that knows the state; build the group again."
            )
            raise self._fatal_error

        started = [rank for rank in range(len(self)) if rank not in self._processes.alive]
        failed = self._processes.spawn() or failures(self._processes.join())
        if not failed and self._stateless:
            snapshot = rescued_snapshot
            if with_state:
                results = self._processes.call("read", lambda _: (take_snapshot,), with_state[:1])
                failed = failures(results)
                snapshot = results[with_state[0]].value
            failed = failed or self._restore_stateless(self._processes.store(snapshot))
        self._end(rank for rank, result in failed.items() if not result.is_alive)
        if not failed:
            self._restarts += len(started)
            self._is_complete = True
            self._processes.rescued_snapshot = None
        return failed

    def _restore_stateless(self, snapshot: Any) -> CallResults:
        """Give the learners without state the one of a stored snapshot. Return the failures."""
        results = self._processes.call("read", lambda _: (restore_snapshot, snapshot), sorted(self._stateless))
        failed = failures(results)
        if not failed:
            self._stateless.clear()
        return failed

    def _start(self, num_learners: int, snapshot: Any = None) -> None:
        """End all learners and start new ones, with the state of a stored snapshot or as their configuration says."""
        self._processes.stop()
        self._processes.reserve(num_learners, min(self._processes.section.learner_timeout_s, RESERVE_TIMEOUT_S))
        self._stateless = set(range(num_learners))
        results = self._processes.spawn() or self._processes.join()
        failed = failures(results)
        if not failed:
            self._modules = results[0].value
            if snapshot is not None:
                failed = self._restore_stateless(snapshot)
        if failed:
            self._processes.stop()
            self._raise_start_error(failed)
        self._stateless.clear()
        self._is_complete = True
        self._fatal_error = None

    def _raise_start_error(self, failed: CallResults) -> None:
        """Raise a learner's own error if there is one, else a `LearnerError` with the first traceback."""
        own = {rank: result for rank, result in failed.items() if result.is_own}
        rank, result = next(iter((own or failed).items()))
        if result.is_alive and result.error is not None and result.is_own:
            result.error.add_note(f"in learner {rank}:\n{result.trace}")
            raise result.error
        raise LearnerError(f"learner {rank} could not be started:\n{result.trace}") from result.error

    def _end(self, ranks: Iterable[int]) -> None:
        """End learners, whose state is lost with them."""
        ended = list(ranks)
        self._processes.end(ended)
        self._stateless.update(ended)

    def _failure_error(self, failed: CallResults, more: str = "") -> LearnerError:
        """Return the error for failed calls, with the rank, the first traceback and the last checkpoint."""
        own = {rank: result for rank, result in failed.items() if result.is_own}
        rank, result = next(iter((own or failed).items()), (0, CallResult()))
        saved = f"the last checkpoint is {self.last_checkpoint}" if self.last_checkpoint else "no checkpoint was saved"
        error = LearnerError(
            f"learner {rank} of {len(self)} failed, and no learner was updated;{more} {saved}.\n{result.trace}"
        )
        error.__cause__ = result.error
        return error


def _writable(value: Tree) -> Any:
    """Return a tree whose arrays the caller may write to: read-only views of Ray's object store are copied."""
    if isinstance(value, np.ndarray):
        return value if value.flags.writeable else value.copy()
    if type(value) is dict:
        return {key: _writable(part) for key, part in value.items()}
    return [_writable(part) for part in value] if type(value) is list else value
