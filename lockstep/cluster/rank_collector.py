"""`RankCollector`: one collector over the env runners of all ranks.

Its state has the form of a collector in one process, so a run can continue on another number of ranks.
"""

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

PER_ENV_KEYS = (
    *("returns", "lengths", "env", "obs", "memory", "exploring"),
    *("begun", "agent_returns", "states", "remembered"),
)
"""Keys in a collector's state whose values have one entry per environment. Those in the second line are of collectors
with several agents."""
FRAGMENTS: dict[str, Any] = {"Fragment": Fragment, "AgentFragment": AgentFragment}
"""Classes whose objects are sent to other ranks as their state."""
ENVS = "RunnersEnv"
"""Name of the class that describes the environments of a runner. It is not sent, because all ranks have the same."""


@dataclass(eq=False)
class _RankCall:
    """Call on the runner of one rank."""

    index: int
    """Index of the runner, which is its rank."""
    make: Callable[[], Any]
    """Function that makes the call on the runner of this process."""
    value: Any = None
    """Value that the call returned."""
    error: str = ""
    """Error of the call in another rank."""


class RankRunners:
    """Backend of an `EnvRunnerGroup` with one runner in each rank.

    Every rank has such a group, and all ranks make the same calls. Each rank executes the calls on its own runner and
    sends the results to the others.
    """

    is_local = True
    """The rank's own runner is in this process and is never replaced."""

    def __init__(self, build: BuildRunner, reducer: Reducer) -> None:
        self.runner: EnvRunner = build(index=reducer.rank, num_runners=reducer.world_size, generation=0)
        self._reducer = reducer

    def __len__(self) -> int:
        return self._reducer.world_size

    def put(self, value: object) -> Any:
        """Return the value itself. It needs no copy, because the next call uses it at once."""
        return value

    def call(self, index: int, func: Callable[..., Any], *args: object, **options: object) -> _RankCall:
        """Prepare a call. `wait` executes it."""
        return _RankCall(index, partial(func, self.runner, *args, **options))

    def wait(self, calls: Sequence[_RankCall], timeout_s: float) -> list[_RankCall]:
        """Execute the calls on this rank's runner, and return all calls when every rank has executed its own."""
        values: list[Any] = []
        error_text = ""
        own_error = None
        try:
            values = [call.make() for call in calls if call.index == self._reducer.rank]
        except Exception as error:  # raised after the others have heard of it: they wait in `gather`
            own_error = error
            error_text = f"{type(error).__name__}: {error}"
        parts = self._reducer.gather({"values": [_pack(value) for value in values], "failure": error_text})
        if own_error is not None:
            raise own_error

        for rank, part in enumerate(parts):
            packed_values = iter(part["values"])
            for call in calls:
                if call.index == rank:
                    call.error = part["failure"]
                    call.value = None if call.error else self._unpack(next(packed_values))
        return list(calls)

    def _unpack(self, packed: Mapping[str, Any]) -> Any:
        """Return the value from which `_pack` made a tree."""
        (kind, value), *_ = packed.items()
        if kind in FRAGMENTS:
            return FRAGMENTS[kind].from_state(value)
        return self.runner.describe() if kind == ENVS else value

    def result(self, call: _RankCall) -> Any:
        """Return the value of a call.

        Raises:
            EnvRunnerError: the call failed in another rank.
        """
        if call.error:
            raise EnvRunnerError(f"rank {call.index}: {call.error}")
        return call.value

    def replace(self, index: int, generation: int) -> None:
        """Do nothing: the loss of a rank ends the run, and torchrun restarts all ranks."""

    def process_ids(self) -> list[int]:
        """Return an empty list: this process has started no other."""
        return []

    def shutdown(self) -> None:
        """Close the environments of this rank."""
        self.runner.close()


class RankCollector(GroupCollector):
    """Collector with one env runner in each rank.

    Each runner steps its share of the environments, and every rank gets the steps of all. The state is that of a
    collector of all environments in one process. If the state of environments or connectors cannot be split by
    environment, it is that of a group of env runners.
    """

    takes_state_of_one = True

    def __init__(
        self, policy: LearningPolicy, build: BuildRunner, reducer: Reducer, section: EnvRunnersSection
    ) -> None:
        super().__init__(policy, EnvRunnerGroup(RankRunners(build, reducer), section))
        self.env = replace(self.env, backend=f"{self.group.envs.backend} in {len(self.group)} ranks")

    def get_state(self) -> dict[str, Any]:
        state = super().get_state()
        return _merge_runners(state) or state

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state if "group" in state else _split_by_runner(state, len(self.group)))


def _pack(value: Any) -> dict[str, Any]:
    """Return a runner's return value as a tree with its kind as key, so that it can be sent."""
    kind = type(value).__name__
    if kind in FRAGMENTS:
        return {kind: value.get_state()}
    return {kind: None if kind == ENVS else value}


def _is_splittable(state: Mapping[str, Any]) -> bool:
    """Return whether the state of a collector can be split by environment."""
    env = state["env"]
    num_envs = len(state["lengths"])
    env_states = env if isinstance(env, list) or env is None else env.get("envs", ())
    has_one_each = env_states is None or len(env_states) == num_envs
    return has_one_each and state.get("recorded") is None and not {"episodes", "events"} & set(state)


def _merge_runners(state: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the state of one collector with the environments of all runners, or None if that is not possible."""
    runners = state["group"]["runners"]
    parts = [runner["collector"] for runner in runners]
    if not all(map(_is_splittable, parts)) or any(runner["callbacks"] for runner in runners):
        return None

    merged = dict(parts[0])
    for name in merged:
        if name in PER_ENV_KEYS:
            merged[name] = _concatenate([part[name] for part in parts])

    # Each environment has random streams of its own, by name.
    streams = dict(merged["streams"])
    for kind in ("numpy", "torch", "children"):
        streams[kind] = {}
        for part in parts:
            streams[kind] |= part["streams"][kind]
    merged["streams"] = streams

    if state["group"]["renew"]:  # the next collect begins new episodes
        merged |= {"env": None, "returns": 0 * merged["returns"], "lengths": 0 * merged["lengths"]}
    return {**merged, "counters": state["counters"], "buffer": state["buffer"]}


def _split_by_runner(state: Mapping[str, Any], num_runners: int) -> dict[str, Any]:
    """Return the state of a group of runners that share the environments of one collector."""
    envs_per_runner = len(state["lengths"]) // num_runners
    is_splittable = _is_splittable(state)
    runners = []
    for rank in range(num_runners):
        rows = slice(rank * envs_per_runner, (rank + 1) * envs_per_runner)
        part = {name: _take_envs(value, rows) if name in PER_ENV_KEYS else value for name, value in state.items()}
        if not is_splittable:
            part["env"] = None  # the running episodes are abandoned
        runners.append({"collector": {**part, "buffer": None}, "callbacks": ()})
    group = {"runners": runners, "generations": [0] * num_runners, "renew": []}
    return {"group": group, "counters": state["counters"], "buffer": state.get("buffer")}


def _concatenate(parts: Sequence[Tree]) -> Tree:
    """Return the entries of all environments from the entries of each runner. None if one of them is None."""

    def concatenate_leaves(leaves: list[Any]) -> Any:
        if any(leaf is None for leaf in leaves):
            return None
        if isinstance(leaves[0], np.ndarray):
            return np.concatenate(leaves)
        return list(chain.from_iterable(leaves))

    if any(part is None for part in parts):
        return None
    return zip_trees(concatenate_leaves, parts, "the state of collectors")


def _take_envs(value: Tree, rows: slice) -> Tree:
    """Return the entries of some environments. None stays None."""
    return map_tree(lambda leaf: None if leaf is None else leaf[rows], value)
