"""`RayLearnerBackend`: n learners in Ray actors behind a `LearnerGroup`.

Ray starts the processes and carries batches and calls; gradients go over `torch.distributed`, between the learners.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.cluster.learner_worker import Answer, BuildLearner, LearnerWorker
from lockstep.learner.backend import modules_with_memory
from lockstep.learner.config import LearnersSection
from lockstep.learner.errors import LearnerError
from lockstep.learner.learner import Learner
from lockstep.learner.requests import UpdateRequest
from lockstep.learner.results import Results
from lockstep.learner.shards import shards_of
from lockstep.state.restarts import RestartBudget, RestartLimits

GRACE_S = 5.0
"""seconds that the others have to answer when one learner failed, before they are ended"""
DEFAULT_LIMITS = RestartLimits()


class RayLearnerBackend:
    """`section.num_learners` learners, each `build(reducer=...)` in an actor of its own.

    Starts Ray on this machine where it does not run yet. A learner that dies during an update is started again with
    the state of another one, and the update is repeated: on all learners or on none. `LearnerError` where the cluster
    has no room, when no learner is left, beyond `limits` of restarts, and for a call that takes longer than
    `section.learner_timeout_s`.
    """

    is_local = False

    def __init__(
        self,
        build: BuildLearner,
        section: LearnersSection,
        *,
        strategy: str = "PACK",
        limits: RestartLimits = DEFAULT_LIMITS,
    ) -> None:
        import ray

        if section.num_learners < 1:
            raise ValueError(f"num_learners={section.num_learners}; learners in other processes are at least 1")
        self._ray, self._build, self._section, self._strategy = ray, build, section, strategy
        self._workers: list[Any] = []
        self._group: Any = None
        self._times_joined, self._restarts = 0, RestartBudget(limits)
        self._modules: dict[str, bool] | None = None
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray:
            ray.init(include_dashboard=False, log_to_driver=False)
        try:
            self._start(section.num_learners)
        except BaseException:
            self.shutdown()
            raise

    def __len__(self) -> int:
        return len(self._workers)

    # -- calls ---

    def update(self, request: UpdateRequest) -> list[Results]:
        """One update on all learners, or on none; the results of each."""
        if self._modules is None:
            self._modules = self.first(modules_with_memory)
        shards = [self._ray.put(shard) for shard in shards_of(request.data, len(self), self._modules)]
        order = replace(request, data=None)
        while True:
            calls = [worker.update.remote(order, shard) for worker, shard in zip(self._workers, shards)]
            answers = self._wait(calls)
            errors = {rank: answer for rank, answer in enumerate(answers) if answer is None or answer.error is not None}
            if not errors:
                for worker in self._workers:
                    worker.accept.remote()
                return [answer.value for answer in answers if answer is not None]
            dead = [rank for rank, answer in errors.items() if answer is None]
            self._heal()
            if not dead:
                _raise_first(errors, len(self))

    def foreach(self, func: Callable[..., Any], *args: Any) -> list[Any]:
        """`[func(learner, *args)]`, in order; raises what a learner raises."""
        self._modules = None
        given = [self._ray.put(arg) for arg in args]
        return self._values([worker.apply.remote(func, *given) for worker in self._workers])

    def first(self, func: Callable[..., Any], *args: Any) -> Any:
        """`func(learner, *args)` of the first learner."""
        return self._values([self._workers[0].apply.remote(func, *args)])[0]

    def resize(self, num_learners: int) -> None:
        """Ends all learners and starts `num_learners` with their state."""
        if num_learners < 1:
            raise ValueError(f"resize({num_learners}): learners in other processes are at least 1")
        if num_learners == len(self):
            return
        like = self.first(_whole)
        self._stop()
        self._start(num_learners)
        self.foreach(_become, like)

    def num_restarts(self) -> int:
        """Learners that were started again."""
        return self._restarts.num_restarts

    def process_ids(self) -> list[int]:
        """Of the learners, in order."""
        ids: list[int] = self._ray.get([worker.process_id.remote() for worker in self._workers])
        return ids

    def shutdown(self) -> None:
        """Ends all actors, and Ray if it was started here."""
        if not self._ray.is_initialized():
            return
        self._stop()
        if self._owns_ray:
            self._ray.shutdown()

    # -- processes ---

    def _start(self, num_learners: int) -> None:
        from ray.util.placement_group import placement_group

        section, limit = self._section, self._section.learner_timeout_s
        wanted = {
            "CPU": section.num_cpus_per_learner,
            "GPU": section.num_gpus_per_learner,
            **section.custom_resources_per_learner,
        }
        bundle = {name: amount for name, amount in wanted.items() if amount} or {"CPU": 0.001}
        self._group = placement_group([bundle] * num_learners, strategy=self._strategy)
        if not self._group.wait(min(limit, 30.0)):
            free = self._ray.available_resources()
            raise LearnerError(
                f"the cluster has no room for {num_learners} learners with {bundle} each; free are "
                f"{ {name: free.get(name, 0) for name in bundle} }"
            )
        self._workers = [self._new_worker(rank) for rank in range(num_learners)]
        self._join()

    def _new_worker(self, rank: int) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        section = self._section
        return (
            self._ray.remote(LearnerWorker)
            .options(
                num_cpus=section.num_cpus_per_learner,
                num_gpus=section.num_gpus_per_learner,
                resources=section.custom_resources_per_learner or None,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, rank),
            )
            .remote()
        )

    def _join(self) -> None:
        """All learners meet in a new process group; those that have a state go back to that before a failed update."""
        self._times_joined += 1
        address = self._values([self._workers[0].serve.remote(len(self))])[0]
        options = {
            "name": f"learners{self._times_joined}",
            "timeout_s": self._section.learner_timeout_s,
            "backend": "nccl" if self._section.num_gpus_per_learner else "gloo",
        }
        build = self._ray.put(self._build)
        self._values(
            [worker.join.remote(build, rank, len(self), address, options) for rank, worker in enumerate(self._workers)]
        )

    def _heal(self) -> None:
        """Starts dead learners again; afterwards all have the state that a survivor had before the update."""
        alive = self._wait([worker.is_built.remote() for worker in self._workers])
        survivors = [rank for rank, built in enumerate(alive) if built]
        if not survivors:
            raise LearnerError("all learners died; restore the last checkpoint with a new group")
        lost = [rank for rank in range(len(self)) if rank not in survivors]
        for rank in lost:
            refused = self._restarts.take(rank)
            if refused is not None:
                raise LearnerError(
                    f"learner {rank} of {len(self)} died and is not started again: {refused} (fault_tolerance); the "
                    "update is not applied. Restore the last checkpoint with a new group"
                )
        for rank in lost:
            self._ray.kill(self._workers[rank])
            self._workers[rank] = self._new_worker(rank)
        self._join()
        if lost:
            like = self._ray.put(self._values([self._workers[survivors[0]].apply.remote(_whole)])[0])
            self._values([self._workers[rank].apply.remote(_become, like) for rank in lost])

    def _stop(self) -> None:
        from ray.util.placement_group import remove_placement_group

        for worker in self._workers:
            self._ray.kill(worker)
        self._workers = []
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None

    # -- waiting ---

    def _wait(self, calls: list[Any]) -> list[Any]:
        """What each call returned; None for a learner that is dead, or was ended because it did not answer."""
        deadline = time.monotonic() + self._section.learner_timeout_s
        values: dict[Any, Any] = {}
        waiting = list(calls)
        while waiting and (left := deadline - time.monotonic()) > 0:
            ready, waiting = self._ray.wait(waiting, num_returns=1, timeout=left)
            for call in ready:
                values[call] = self._value_of(call)
                value = values[call]
                if value is None or (isinstance(value, Answer) and value.error is not None):
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        for call in waiting:
            self._ray.kill(self._workers[calls.index(call)])
        return [values.get(call) for call in calls]

    def _value_of(self, call: Any) -> Any:
        try:
            return self._ray.get(call)
        except self._ray.exceptions.RayActorError:
            return None

    def _values(self, calls: list[Any]) -> list[Any]:
        try:
            answers: list[Answer] = self._ray.get(calls, timeout=self._section.learner_timeout_s)
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.GetTimeoutError) as error:
            raise LearnerError(f"a learner died or hangs: {type(error).__name__}: {error}") from error
        errors = {rank: answer for rank, answer in enumerate(answers) if answer.error is not None}
        if errors:
            _raise_first(errors, len(answers))
        return [_own_copy(answer.value) for answer in answers]


def _own_copy(value: Any) -> Any:
    """Arrays in dicts and lists as copies that the caller may write to, not views of Ray's object store."""
    if isinstance(value, np.ndarray):
        return value if value.flags.writeable else value.copy()
    if type(value) is dict:
        return {key: _own_copy(part) for key, part in value.items()}
    return [_own_copy(part) for part in value] if type(value) is list else value


def _whole(learner: Learner) -> dict[str, Any]:
    """All that another learner needs to go on as this one: modules (they may have been added since), and state."""
    return {
        "specs": learner.module.spec().rl_module_specs,
        "configs": learner.module_configs,
        "policies_to_train": learner.policies_to_train,
        "state": learner.get_state(),
    }


def _become(learner: Learner, like: dict[str, Any]) -> None:
    """Makes a new learner equal to the one that `_whole` describes."""
    for module_id, spec in like["specs"].items():
        if module_id not in learner.module:
            learner.add_module(module_id=module_id, module_spec=spec, config_overrides=like["configs"].get(module_id))
    for module_id in list(learner.module):
        if module_id not in like["specs"]:
            learner.remove_module(module_id)
    learner.policies_to_train = like["policies_to_train"]
    learner.set_state(like["state"])


def _raise_first(errors: dict[int, Any], num_learners: int) -> None:
    """What all learners refuse alike is the caller's mistake, raised as it is; another error is a `LearnerError`."""
    own = {rank: answer for rank, answer in errors.items() if answer.is_own}
    rank, answer = next(iter((own or errors).items()))
    error = answer.error
    if len(own) == num_learners and len({type(each.error) for each in own.values()}) == 1:
        error.add_note(f"in learner {rank} of {num_learners}:\n{answer.trace}")
        raise error
    raise LearnerError(
        f"learner {rank} of {num_learners} failed, and no learner was updated:\n{answer.trace}"
    ) from error
