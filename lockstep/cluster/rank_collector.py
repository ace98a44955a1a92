"""`RankCollector`: the env runners of all ranks as one collector, whose state is that of one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from lockstep.data.trees import Tree, map_tree, zip_trees
from lockstep.learner.many.reduction import Reducer
from lockstep.rollout.config import EnvRunnersSection
from lockstep.rollout.env_runner import EnvRunner
from lockstep.rollout.errors import EnvRunnerError
from lockstep.rollout.fragments import AgentFragment, Fragment
from lockstep.rollout.group_collector import GroupCollector
from lockstep.rollout.protocols import LearningPolicy
from lockstep.rollout.runner_group import BuildRunner, EnvRunnerGroup

BY_ENV = (
    *("returns", "lengths", "env", "obs", "memory", "exploring"),
    *("begun", "agent_returns", "states", "remembered"),
)
"""parts of a collector's state that have one entry for each environment; the last ones of several agents"""
FRAGMENTS: dict[str, Any] = {"Fragment": Fragment, "AgentFragment": AgentFragment}
ENVS = "RunnersEnv"


@dataclass(eq=False)
class _Call:
    index: int
    """of the runner, which is that of its rank"""
    make: Callable[[], Any]
    value: Any = None
    error: str = ""


class RankRunners:
    """The runners of all ranks, one in each, behind an `EnvRunnerGroup` that every rank has.

    All ranks make the same calls. Each makes those of its own runner, and tells the others what they returned.
    """

    is_local = True
    """the own runner is in this process, and is not replaced"""

    def __init__(self, build: BuildRunner, reducer: Reducer) -> None:
        self.runner: EnvRunner = build(index=reducer.rank, num_runners=reducer.world_size, generation=0)
        self._reducer = reducer

    def __len__(self) -> int:
        return self._reducer.world_size

    def put(self, value: object) -> Any:
        """Return the value itself, which the sample that follows at once takes over."""
        return value

    def call(self, index: int, func: Callable[..., Any], *args: object, **options: object) -> _Call:
        """Keep the call."""
        return _Call(index, partial(func, self.runner, *args, **options))

    def wait(self, calls: Sequence[_Call], timeout_s: float) -> list[_Call]:
        """Make the calls of the own runner; return all calls when each rank has made its own."""
        values: list[Any] = []
        failure, error = "", None
        try:
            values = [call.make() for call in calls if call.index == self._reducer.rank]
        except Exception as raised:
            error, failure = raised, f"{type(raised).__name__}: {raised}"
        heard = self._reducer.gather({"values": [_packed(value) for value in values], "failure": failure})
        if error is not None:
            raise error
        for rank, part in enumerate(heard):
            found = iter(part["values"])
            for call in (call for call in calls if call.index == rank):
                call.error = part["failure"]
                call.value = None if call.error else self._unpacked(next(found))
        return list(calls)

    def _unpacked(self, packed: Mapping[str, Any]) -> Any:
        (kind, value), *_ = packed.items()
        if kind in FRAGMENTS:
            return FRAGMENTS[kind].from_state(value)
        return self.runner.describe() if kind == ENVS else value  # all ranks have the same kind of environments

    def result(self, call: _Call) -> Any:
        """Return what the call returned; `EnvRunnerError` where it raised in another rank."""
        if call.error:
            raise EnvRunnerError(f"rank {call.index}: {call.error}")
        return call.value

    def replace(self, index: int, generation: int) -> None:
        """Do nothing: a rank that is lost ends the run, and torchrun starts all ranks again."""

    def process_ids(self) -> list[int]:
        """Return none: the other processes are not of this one."""
        return []

    def shutdown(self) -> None:
        """Close the own environments."""
        self.runner.close()


class RankCollector(GroupCollector):
    """Collects with the runner of each rank, which has its share of the environments; every rank gets all steps.

    Its state is that of a collector of all environments in one process, and it takes such a one; where environments or
    connectors have what cannot be shared out, it is that of as many env runners.
    """

    takes_state_of_one = True

    def __init__(
        self, policy: LearningPolicy, build: BuildRunner, reducer: Reducer, section: EnvRunnersSection
    ) -> None:
        super().__init__(policy, EnvRunnerGroup(RankRunners(build, reducer), section))
        self.env = replace(self.env, backend=f"{self.group.envs.backend} in {len(self.group)} ranks")

    def get_state(self) -> dict[str, Any]:
        state = super().get_state()
        return _state_of_one(state) or state

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state if "group" in state else _state_of_runners(state, len(self.group)))


def _packed(value: Any) -> dict[str, Any]:
    """Return what a runner has returned as a tree, by its kind."""
    kind = type(value).__name__
    return {kind: value.get_state() if kind in FRAGMENTS else None if kind == ENVS else value}


def _can_be_shared(state: Mapping[str, Any]) -> bool:
    """Return whether the state of a collector tells what is whose environment's."""
    env, number = state["env"], len(state["lengths"])
    has_one_each = env is None or len(env if isinstance(env, list) else env.get("envs", ())) == number
    return has_one_each and state.get("recorded") is None and not {"episodes", "events"} & set(state)


def _state_of_one(state: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the state of one collector that has the environments of all runners; None where it cannot be told."""
    runners = state["group"]["runners"]
    parts = [runner["collector"] for runner in runners]
    if not all(map(_can_be_shared, parts)) or any(runner["callbacks"] for runner in runners):
        return None
    joined = {name: _joined([part[name] for part in parts]) if name in BY_ENV else parts[0][name] for name in parts[0]}
    streams = [part["streams"] for part in parts]
    for kind in ("numpy", "torch", "children"):
        joined["streams"] = {
            **joined["streams"],
            kind: {name: each for part in streams for name, each in part[kind].items()},
        }
    if state["group"]["renew"]:  # new episodes begin with the next collect
        joined |= {"env": None, "returns": 0 * joined["returns"], "lengths": 0 * joined["lengths"]}
    return {**joined, "counters": state["counters"], "buffer": state["buffer"]}


def _state_of_runners(state: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the state of `number` runners that share out the environments of one collector."""
    each, is_shared = len(state["lengths"]) // number, _can_be_shared(state)
    runners = []
    for rank in range(number):
        rows = slice(rank * each, (rank + 1) * each)
        part = {name: _rows_of(value, rows) if name in BY_ENV else value for name, value in state.items()}
        if not is_shared:
            part["env"] = None  # the episodes under way are left
        runners.append({"collector": {**part, "buffer": None}, "callbacks": ()})
    group = {"runners": runners, "generations": [0] * number, "renew": []}
    return {"group": group, "counters": state["counters"], "buffer": state.get("buffer")}


def _joined(parts: Sequence[Tree]) -> Tree:
    """Return the entries of all environments from those of each runner; None where one of them has none."""

    def join(leaves: list[Any]) -> Any:
        if any(leaf is None for leaf in leaves):
            return None
        if isinstance(leaves[0], np.ndarray):
            return np.concatenate(leaves)
        return list(chain.from_iterable(leaves))

    if any(part is None for part in parts):
        return None
    return zip_trees(join, parts, "the state of collectors")


def _rows_of(value: Tree, rows: slice) -> Tree:
    """Return the entries of these environments; None where there are none."""
    return map_tree(lambda leaf: None if leaf is None else leaf[rows], value)
