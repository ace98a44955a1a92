"""What the learners agree on before an update, so that none waits for one that left.

Each learner holds one shard of the rows (maybe none). They tell one another how many rows of which module they have;
the rows of all shards are numbered globally (one after another by rank, or as the shard of a whole rollout says), and
each minibatch is a set of global numbers. A learner trains on those that lie in its shard.

A learner that has no row of a module in a minibatch still makes the same calls: on a copy of some real row that weighs
nothing (a *stand-in*). So a loss sees at least one row, and everybody meets in the same sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lockstep.data.trajectories import Trajectories, num_rows_of
from lockstep.data.trees import map_tree
from lockstep.learner.errors import LearnerError
from lockstep.learner.minibatches import take_rows

if TYPE_CHECKING:
    from lockstep.learner.learner import Learner
    from lockstep.learner.loop import UpdateOptions

Parts = dict[str, Any]
"""by module id: `Trajectories`, or columns as tensors"""


@dataclass
class Agreement:
    """The modules that somebody has rows of, with something to compute on for each of them."""

    parts: Parts
    """in one order for all learners; empty where there is nothing to train on"""
    env_steps: int
    """over all learners"""
    stand_ins: frozenset[str] = frozenset()
    """modules whose part is a copy of another learner's, and weighs nothing"""

    def num_own_rows(self, module_id: str) -> int:
        """Rows of the learner's own; 0 for a stand-in."""
        return 0 if module_id in self.stand_ins else _num_rows(self.parts[module_id])


@dataclass
class UpdatePlan:
    """Global row numbers, and which of them are this learner's."""

    num_rows: dict[str, int]
    """rows of each module, over all learners"""
    num_own_rows: dict[str, int]
    """of this learner, without stand-ins"""
    stand_ins: frozenset[str] = frozenset()
    own: dict[str, np.ndarray] = field(default_factory=dict)
    """by module: the own row of each global row, -1 where another learner has it; empty for one learner"""

    def own_rows(
        self, indices: Mapping[str, np.ndarray | None]
    ) -> tuple[Mapping[str, np.ndarray | None], frozenset[str]]:
        """The own rows among global `indices` (None: all), and the modules whose row is a stand-in."""
        if not self.own:
            return indices, self.stand_ins
        rows: dict[str, np.ndarray | None] = {}
        stand_ins = set(self.stand_ins)
        for module_id, index in indices.items():
            own = None if index is None else self.own[module_id][index]
            if own is not None:
                own = own[own >= 0]
            if module_id in self.stand_ins or (own is not None and len(own) == 0):
                stand_ins.add(module_id)
                own = np.zeros(1, np.int64)
            rows[module_id] = own
        return rows, frozenset(stand_ins)


def agree_on_parts(learner: Learner, read: Callable[[], tuple[Parts, int]], options: UpdateOptions) -> Agreement:
    """What all learners together train on. `read()` gives this learner's parts and environment steps.

    An error in `read` is raised here, and a `LearnerError` that quotes it on all other learners. Raises `ValueError`
    where the learners were called with different options.
    """
    reducer = learner.reducer
    if reducer.world_size == 1:
        return Agreement(*read())
    failure: Exception | None = None
    parts: Parts = {}
    env_steps = 0
    try:
        parts, env_steps = read()
    except Exception as error:
        failure = error
    said = "" if failure is None else f"{type(failure).__name__}: {failure}"
    rows = {module_id: _num_rows(part) for module_id, part in parts.items()}
    heard = reducer.gather({"rows": rows, "env_steps": env_steps, "options": asdict(options), "failure": said})
    if failure is not None:
        raise failure
    refused = [f"learner {rank}: {item['failure']}" for rank, item in enumerate(heard) if item["failure"]]
    if refused:
        raise LearnerError(f"no learner was updated, because of {'; '.join(refused)}")
    for rank, item in enumerate(heard):
        if item["options"] != heard[0]["options"]:
            raise ValueError(
                f"all learners must be called alike; learner 0 has {heard[0]['options']}, learner {rank} "
                f"{item['options']}"
            )
    return _with_stand_ins(learner, parts, heard)


def _with_stand_ins(learner: Learner, parts: Parts, heard: list[Any]) -> Agreement:
    counts = {mid: [item["rows"].get(mid, 0) for item in heard] for mid in learner.module}
    present = [mid for mid, rows in counts.items() if any(rows)]
    donors = {mid: _donor(counts[mid]) for mid in present if not all(counts[mid])}
    given: Parts = {}
    if donors:
        own = {mid: _packed(parts[mid]) for mid, rank in donors.items() if rank == learner.reducer.rank}
        for packed in learner.reducer.gather(own):
            given.update(packed)
    missing = frozenset(mid for mid in present if mid not in parts)
    complete = {mid: _unpacked(learner, given[mid]) if mid in missing else parts[mid] for mid in present}
    return Agreement(complete, sum(item["env_steps"] for item in heard), missing)


def _donor(counts: list[int]) -> int:
    """The learner with the fewest rows, but some."""
    return min((rank for rank, rows in enumerate(counts) if rows), key=counts.__getitem__)


def plan_update(
    learner: Learner, columns: Parts, stand_ins: frozenset[str], trajectories: Mapping[str, Trajectories]
) -> UpdatePlan:
    """Numbers the rows of all learners; `columns` are this learner's, made from `trajectories` (if anything)."""
    own = {mid: 0 if mid in stand_ins else num_rows_of(next(iter(part.values()))) for mid, part in columns.items()}
    reducer = learner.reducer
    if reducer.world_size == 1:
        return UpdatePlan(own, own)
    counts = reducer.gather(own)
    total = {mid: sum(item[mid] for item in counts) for mid in own}
    lookup = {}
    for mid, rows in own.items():
        begin = sum(item[mid] for item in counts[: reducer.rank])
        lookup[mid] = np.full(total[mid], -1, np.int64)
        part = None if mid in stand_ins else trajectories.get(mid)
        given = None if part is None else part.positions
        lookup[mid][slice(begin, begin + rows) if given is None else given] = np.arange(rows)
    return UpdatePlan(total, own, stand_ins, lookup)


def _num_rows(part: Any) -> int:
    return part.num_rows if isinstance(part, Trajectories) else num_rows_of(next(iter(part.values())))


def _packed(part: Any) -> dict[str, Any]:
    """One row of columns; trajectories whole, since their rows belong together."""
    if isinstance(part, Trajectories):
        return {"trajectories": {item.name: getattr(part, item.name) for item in fields(part)}}
    first = torch.zeros(1, dtype=torch.int64)
    return {"columns": take_rows({name: map_tree(torch.Tensor.cpu, value) for name, value in part.items()}, first)}


def _unpacked(learner: Learner, packed: Mapping[str, Any]) -> Any:
    if "trajectories" in packed:
        return Trajectories(**packed["trajectories"])
    return {name: map_tree(learner.to_tensor, value) for name, value in packed["columns"].items()}
