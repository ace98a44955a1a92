"""`LearnerProcesses`: the actors of one group of learners: started, joined, asked, watched and ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

from lockstep.cluster.learner_worker import CONTROL, Answer, BuildLearner, LearnerWorker, Whole
from lockstep.learner.config import LearnersSection
from lockstep.learner.reduction import LearnerError

GRACE_S = 5.0
"""seconds that the others have to answer when one learner failed, before they are started again, too"""
PROBE_S = 3.0
"""seconds in which a learner that works must say how far it is"""
ROOM_S = 30.0
"""seconds that the cluster may take to find room"""
START_S = 60.0
"""seconds that a new process may take at least"""
Answers = dict[int, Answer]
"""by rank"""


class LearnerProcesses:
    """One actor for each rank, or None where it is dead.

    A call that learners do not answer in `section.learner_timeout_s` ends those that hang; the others answer then.
    """

    def __init__(self, build: BuildLearner, section: LearnersSection, strategy: str) -> None:
        import ray

        self._ray, self._section, self._strategy = ray, section, strategy
        self._build = ray.put(build)
        self.workers: list[Any] = []
        self.salvaged: Whole | None = None
        """a learner as it was before the last call, where no learner is left that could say"""
        self._group: Any = None
        self._places: dict[int, tuple[int, str]] = {}
        self._times_joined = 0

    def __len__(self) -> int:
        return len(self.workers)

    @property
    def alive(self) -> list[int]:
        """Ranks that have a process."""
        return [rank for rank, worker in enumerate(self.workers) if worker is not None]

    def ids(self) -> list[int]:
        """Process ids, by rank."""
        return [self._places[rank][0] for rank in self.alive]

    # -- start and end ---

    def reserve(self, num_learners: int) -> None:
        """Room for learners in the cluster, none of them started. `LearnerError` where there is none."""
        from ray.util.placement_group import placement_group

        section = self._section
        wanted = {
            "CPU": section.num_cpus_per_learner,
            "GPU": section.num_gpus_per_learner,
            **section.custom_resources_per_learner,
        }
        bundle = {name: amount for name, amount in wanted.items() if amount} or {"CPU": 0.001}
        self._group = placement_group([bundle] * num_learners, strategy=self._strategy)
        self.workers = [None] * num_learners
        if not self._group.wait(min(section.learner_timeout_s, ROOM_S)):
            free = self._ray.available_resources()
            self.stop()
            raise LearnerError(
                f"the cluster has no room for {num_learners} learners with {bundle} each; free are "
                f"{ {name: free.get(name, 0) for name in bundle} }. Take fewer learners, or less for each: "
                "learners(num_learners=, num_cpus_per_learner=, num_gpus_per_learner=)"
            )

    def spawn(self) -> Answers:
        """Starts a process wherever there is none; the failures. `LearnerError` where there is no room any more."""
        lost = [rank for rank, worker in enumerate(self.workers) if worker is None]
        if lost and not self._group.wait(ROOM_S):
            raise LearnerError(f"the cluster has no room for learners {lost}, whose machine is lost")
        for rank in lost:
            self.workers[rank] = self._new_worker(rank)
        answers = self.call("process", lambda rank: (), lost, limit_s=self._start_s)
        self._places |= {rank: answer.value for rank, answer in answers.items() if answer.error is None}
        return failures(answers)

    def join(self) -> Answers:
        """All learners meet in a new process group; the answers (values: modules and whether they have memory)."""
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
            "backend": "nccl" if self._section.num_gpus_per_learner else "gloo",
        }
        limit_s = max(self._start_s, self._meeting_s) + GRACE_S  # who waits for another says so itself, and is kept
        return self.call("join", lambda rank: (self._build, rank, len(self), address, options), limit_s=limit_s)

    def end(self, ranks: Iterable[int]) -> None:
        """Ends processes, whatever they do."""
        here = self._ray.get_runtime_context().get_node_id()
        for rank in ranks:
            worker, self.workers[rank] = self.workers[rank], None
            process_id, node = self._places.pop(rank, (0, ""))
            if worker is None:
                continue
            if node == here and process_id:  # a stopped process would take Ray seconds
                _kill(process_id)
            self._ray.kill(worker)

    def stop(self) -> None:
        """Ends all processes and gives their room back."""
        from ray.util.placement_group import remove_placement_group

        self.end(self.alive)
        self.workers = []
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None

    @property
    def _meeting_s(self) -> float:
        """Seconds that learners wait for one another: so long that who hangs is found before."""
        return self._section.learner_timeout_s + 2 * (PROBE_S + GRACE_S)

    @property
    def _start_s(self) -> float:
        return max(START_S, self._section.learner_timeout_s)

    def _new_worker(self, rank: int) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        section = self._section
        actor: Any = self._ray.remote  # its options are not all in its type hints
        return (
            actor(concurrency_groups={CONTROL: 1})(LearnerWorker)
            .options(
                num_cpus=section.num_cpus_per_learner,
                num_gpus=section.num_gpus_per_learner,
                resources=section.custom_resources_per_learner or None,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, rank),
            )
            .remote()
        )

    # -- calls ---

    def call(
        self,
        method: str,
        arguments: Callable[[int], tuple[Any, ...]],
        ranks: Collection[int] | None = None,
        limit_s: float | None = None,
    ) -> Answers:
        """`method(*arguments(rank))` on learners (None: all that have a process); what each came to.

        A learner that died, or was ended because it did not answer, has an `Answer` with the error that says so.
        """
        chosen = self.alive if ranks is None else ranks
        calls = {rank: getattr(self.workers[rank], method).remote(*arguments(rank)) for rank in chosen}
        limit = self._section.learner_timeout_s if limit_s is None else limit_s
        answers = self._wait(calls, limit)
        waiting = {rank: call for rank, call in calls.items() if rank not in answers}
        if waiting:
            hanging = self._hanging(list(waiting)) if not failures(answers) else list(waiting)
            self._give_up(hanging, answers, limit)
            rest = {rank: call for rank, call in waiting.items() if rank not in answers}
            answers |= self._wait(rest, GRACE_S)
            self._give_up([rank for rank in rest if rank not in answers], answers, limit)
        return {rank: answers[rank] for rank in calls}

    def tell(self, method: str) -> None:
        """Calls `method` on all learners and does not wait."""
        for rank in self.alive:
            getattr(self.workers[rank], method).remote()

    def beside(self, rank: int, method: str, *args: Any) -> Any:
        """What `method` returns beside the work that a learner is at; None where it does not answer."""
        try:
            call = getattr(self.workers[rank], method).options(concurrency_group=CONTROL).remote(*args)
            return self._ray.get(call, timeout=PROBE_S)
        except self._ray.exceptions.RayError:
            return None

    def _wait(self, calls: dict[int, Any], limit_s: float) -> Answers:
        """The answers that come in time; after a failure the others have `GRACE_S`."""
        deadline = time.monotonic() + limit_s
        answers: Answers = {}
        rank_of = {call: rank for rank, call in calls.items()}
        waiting = list(rank_of)
        while waiting and (left := deadline - time.monotonic()) > 0:
            ready, waiting = self._ray.wait(waiting, num_returns=1, timeout=left)
            for call in ready:
                rank = rank_of[call]
                answers[rank] = self._value_of(call, rank)
                if answers[rank].error is not None:
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        return answers

    def _value_of(self, call: Any, rank: int) -> Answer:
        try:
            answer: Answer = self._ray.get(call)
            return answer
        except self._ray.exceptions.RayActorError as error:
            said = f"learner {rank} of {len(self)} died: {' '.join(str(error).split())}"
            return Answer(error=LearnerError(said), trace=said, is_alive=False)
        except self._ray.exceptions.RayError as error:  # e.g. an argument or a result got lost
            said = f"learner {rank} of {len(self)}: {type(error).__name__}: {error}"
            return Answer(error=LearnerError(said), trace=said, is_alive=False)

    def _hanging(self, ranks: list[int]) -> list[int]:
        """Those that the others wait for: they do not answer at all, or are busy with something else than waiting."""
        said = {rank: self.beside(rank, "progress") for rank in ranks}
        return [rank for rank, progress in said.items() if progress is None or not progress[1]]

    def _give_up(self, ranks: list[int], answers: Answers, limit_s: float) -> None:
        """Ends learners that do not answer; keeps one's state where nobody else may be left to tell it."""
        if not ranks:
            return
        others = [rank for rank in self.alive if rank not in ranks and (rank not in answers or answers[rank].is_alive)]
        if not others:
            known = (self.beside(rank, "before") for rank in ranks)
            self.salvaged = next((before for before in known if before is not None), self.salvaged)
        self.end(ranks)
        for rank in ranks:
            said = (
                f"learner {rank} of {len(self)} did not answer (learner_timeout_s={self._section.learner_timeout_s:g}; "
                f"waited for {limit_s:g} s) and was ended; raise learners(learner_timeout_s=...) if it had work to do"
            )
            answers[rank] = Answer(error=LearnerError(said), trace=said, is_alive=False)


def failures(answers: Answers) -> Answers:
    """Those with an error."""
    return {rank: answer for rank, answer in answers.items() if answer.error is not None}


def _kill(process_id: int) -> None:
    try:
        os.kill(process_id, signal.SIGKILL)
    except ProcessLookupError:
        return
