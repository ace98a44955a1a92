"""Division of an update among learners, so that n of them do exactly what one does.

`shards_of` divides episodes and batches into one shard for each learner. Before an update the learners exchange how
many rows of which module each of them has, and agree on the modules to train. Otherwise a learner without data could
skip the update, and the others would wait for it. The rows of all shards are then numbered globally. Shards of one
rollout keep the numbers that their rows have in the rollout; other shards are numbered one after the other, by rank.
Each minibatch is a set of global numbers, and a learner trains on the rows among them that are in its shard.

A learner without any row of a module in a minibatch still makes the same calls. It trains on a *stand-in*, a copy of
some real row that has no weight. So a loss always sees at least one row, and all learners take part in the same sums.

A *part* is the data of one module, and the *pieces* of a module are the agents' episodes that its part is made of.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.data.columns import Columns
from lockstep.data.episode import SingleAgentEpisode
from lockstep.data.minibatch import shard_batch
from lockstep.data.multi_agent_episode import MultiAgentEpisode
from lockstep.data.rollout import RolloutEpisodes
from lockstep.data.sample_batch import MultiAgentBatch, SampleBatch
from lockstep.data.trajectories import Trajectories, trajectories_from_episodes
from lockstep.data.trees import map_tree, num_items
from lockstep.learner.many.reduction import LearnerError, Reducer
from lockstep.learner.minibatches import RowIndices, TensorColumns, UpdateOptions, take_rows
from lockstep.state.streams import RandomStreams

Episodes = Sequence[SingleAgentEpisode | MultiAgentEpisode]
Parts = dict[str, Any]
"""Data of an update by module id: `Trajectories`, or columns of tensors."""


# -- shares ---


@dataclass
class EpisodeParts:
    """Steps of episodes as arrays, or one learner's share of them. `update_from_episodes` accepts it like episodes."""

    env_steps: int = 0
    """Number of environment steps."""
    trajectories: dict[str, Trajectories] = field(default_factory=dict)
    """Steps by module id."""
    versions: dict[str, np.ndarray] = field(default_factory=dict)
    """By module id: versions `[N]` of the weights that acted, for the steps that have recorded it."""

    def contiguous(self) -> EpisodeParts:
        """Return the same steps in contiguous arrays, which other processes can read in place from shared memory."""
        parts = {}
        for module_id, part in self.trajectories.items():
            arrays: dict[str, Any] = {}
            for item in fields(part):
                value = getattr(part, item.name)
                if item.name != "place":
                    arrays[item.name] = None if value is None else map_tree(np.ascontiguousarray, value)
            parts[module_id] = Trajectories(**arrays, place=part.place)
        return replace(self, trajectories=parts)


def check_episodes(episodes: object) -> None:
    """Check that `episodes` may be a list of episodes; `TypeError` otherwise."""
    needed = "a list of SingleAgentEpisode or MultiAgentEpisode is needed"
    if isinstance(episodes, SampleBatch | MultiAgentBatch):
        raise TypeError(f"episodes is a {type(episodes).__name__}; {needed}; update_from_batch takes batches")
    wrong = (SingleAgentEpisode, MultiAgentEpisode, int, float, str, bytes, Mapping, Iterator)
    if episodes is None or isinstance(episodes, wrong):
        raise TypeError(f"episodes is a {type(episodes).__name__}; {needed}, such as [episode]")


def parts_of_episodes(
    episodes: Episodes | RolloutEpisodes | EpisodeParts,
    module_ids: Collection[str],
    choose: Callable[[Collection[str]], Sequence[str]] = list,
) -> EpisodeParts:
    """Return the steps of episodes as arrays, by module.

    Args:
        episodes: `SingleAgentEpisode`s, each for its `module_id` or the only module; or `MultiAgentEpisode`s, each
            agent's steps for its module. An environment step counts once, however many agents acted. The views on one
            rollout store are read without a copy. `EpisodeParts` are returned as they are.
        module_ids: Ids of all modules.
        choose: Function that takes the ids of the modules with steps, and returns those to keep.

    Raises:
        TypeError: `episodes` is something else.
        ValueError: an episode does not say for which of several modules it is.
    """
    if isinstance(episodes, EpisodeParts):
        return episodes
    if isinstance(episodes, RolloutEpisodes):
        steps = episodes.env_steps()
        ids = choose([_only(module_ids, "episodes of a rollout store")]) if steps else []
        versions = {mid: episodes.store.sampler_versions() for mid in ids}
        return EpisodeParts(steps, {mid: episodes.trajectories() for mid in ids}, versions)
    check_episodes(episodes)
    pieces: dict[str, list[SingleAgentEpisode]] = {}
    env_steps = 0
    for position, episode in enumerate(episodes):
        for module_id, piece in _pieces_of(module_ids, episode, position):
            if len(piece):
                pieces.setdefault(module_id, []).append(piece)
        env_steps += episode.env_steps()
    ids = choose(pieces)
    versions = {}
    for mid in ids:
        versions_of_pieces = [version for version in map(_versions_of, pieces[mid]) if version is not None]
        if versions_of_pieces:
            versions[mid] = np.concatenate(versions_of_pieces)
    return EpisodeParts(env_steps, {mid: trajectories_from_episodes(pieces[mid]) for mid in ids}, versions)


def shards_of(data: Any, num_learners: int, modules: Mapping[str, bool]) -> list[Any]:
    """Return one shard of `data` (episodes, or a batch) for each learner. Some may be empty. `data` are not changed.

    `modules` says for each module id whether the module has memory. A batch is divided into equal numbers of rows (or
    sequences). Episodes are divided into equal numbers of steps. An episode that would lie in two shards is cut, and
    each of the two learners trains on its part only. But both get the whole episode, because advantages depend on all
    later steps. Episodes of a module with memory are not cut.
    """
    if isinstance(data, SampleBatch | MultiAgentBatch):
        return shard_batch(data, num_learners)
    whole = parts_of_episodes(data, modules)
    steps = [rank * whole.env_steps // num_learners for rank in range(num_learners + 1)]
    shards = [EpisodeParts(stop - start) for start, stop in itertools.pairwise(steps)]
    for module_id, trajectories in whole.trajectories.items():
        cut = not modules.get(module_id, False)
        for shard, part in zip(shards, trajectories.shards(num_learners, cut=cut)):
            if part is not None:
                shard.trajectories[module_id] = part
    # Equal numbers of versions, which need not belong to the steps of the shard: only metrics and a warning use them.
    for module_id, versions in whole.versions.items():
        for shard, numbers in zip(shards, np.array_split(versions, num_learners)):
            if len(numbers):
                shard.versions[module_id] = numbers
    return shards


def _pieces_of(module_ids: Collection[str], episode: object, position: int) -> list[tuple[str, SingleAgentEpisode]]:
    """Return the episode of each agent with the id of its module. `position` is that in the list, for messages."""
    if isinstance(episode, SingleAgentEpisode):
        which = f"the episode at position {position}, which has no module_id"
        return [(episode.module_id or _only(module_ids, which), episode)]
    if isinstance(episode, MultiAgentEpisode):
        return [(episode.module_for(agent), piece) for agent, piece in episode.agent_episodes.items()]
    raise TypeError(
        f"position {position} is a {type(episode).__name__}; a SingleAgentEpisode or MultiAgentEpisode is needed"
    )


def _only(module_ids: Collection[str], description: str) -> str:
    """Return the only module id; `ValueError` with the description of the data if there are several."""
    if len(module_ids) != 1:
        raise ValueError(f"this learner has the modules {sorted(module_ids)}; {description} fits one module only")
    return next(iter(module_ids))


# -- agreement ---


@dataclass
class Agreement:
    """Agreement of all learners on an update: the modules to train, and data of each of them on every learner."""

    parts: Parts
    """Data by module id, in the same order on all learners; empty if there is nothing to train."""
    env_steps: int
    """Number of environment steps over all learners."""
    stand_ins: frozenset[str] = frozenset()
    """Ids of the modules whose data are copied from another learner, and have no weight."""

    def num_own_rows(self, module_id: str) -> int:
        """Return the number of this learner's own rows of a module; 0 for a stand-in."""
        return 0 if module_id in self.stand_ins else _num_rows(self.parts[module_id])


@dataclass
class UpdatePlan:
    """Global numbering of the rows of an update, and the rows that this learner has."""

    num_rows: dict[str, int]
    """Number of rows over all learners, by module id."""
    num_own_rows: dict[str, int]
    """Number of rows of this learner, by module id, without stand-ins."""
    stand_ins: frozenset[str] = frozenset()
    """Ids of the modules of which this learner has a stand-in only."""
    lookup: dict[str, np.ndarray] = field(default_factory=dict)
    """By module id: this learner's row for each global row, -1 if another learner has it. Empty if there is one
    learner."""

    def num_rows_in(self, indices: RowIndices) -> int:
        """Return the number of global `indices` (None for all rows), of all modules together."""
        return sum(self.num_rows[mid] if index is None else len(index) for mid, index in indices.items())

    def own_sizes(self, rows: RowIndices, stand_ins: Collection[str]) -> dict[str, int]:
        """Return the number of own `rows` (None for all) by module id, without the modules in `stand_ins`."""
        without_stand_ins = {mid: index for mid, index in rows.items() if mid not in stand_ins}
        return {
            mid: self.num_own_rows[mid] if index is None else len(index) for mid, index in without_stand_ins.items()
        }

    def own_rows(self, indices: RowIndices) -> tuple[RowIndices, frozenset[str]]:
        """Return the own rows among global `indices` (None for all), and the ids of the modules with a stand-in."""
        if not self.lookup:
            return indices, self.stand_ins
        rows: RowIndices = {}
        stand_ins = set(self.stand_ins)
        for module_id, index in indices.items():
            own = None
            if index is not None:
                own = self.lookup[module_id][index]
                own = own[own >= 0]
            if module_id in self.stand_ins or (own is not None and len(own) == 0):
                stand_ins.add(module_id)
                own = np.zeros(1, np.int64)  # any row will do, since it has no weight
            rows[module_id] = own
        return rows, frozenset(stand_ins)

    def with_noise(
        self,
        module_id: str,
        columns: TensorColumns,
        widths: Mapping[str, int],
        streams: RandomStreams,
        to_tensor: Callable[[np.ndarray], Tensor],
    ) -> TensorColumns:
        """Return `columns` together with columns of standard normal numbers, `[N, width]` for each name in `widths`.

        For sequences of L rows they are `[S, L, width]`. A row gets the same numbers whichever learner has it: every
        learner draws the numbers of all rows, and keeps those of its own rows.
        """
        if not widths:
            return columns
        # All numbers of a row are drawn together, before those of the next row. So each row gets the same numbers
        # whether the rows come in one call or in several.
        mask = columns.get(Columns.LOSS_MASK)
        rng = streams.numpy(f"noise/{module_id}")
        shape = () if mask is None else mask.shape[1:]
        numbers = rng.standard_normal((self.num_rows[module_id], *shape, sum(widths.values())), np.float32)
        if self.lookup:
            lookup = self.lookup[module_id]
            all_numbers = numbers
            numbers = np.zeros((max(self.num_own_rows[module_id], 1), *all_numbers.shape[1:]), np.float32)
            numbers[lookup[lookup >= 0]] = all_numbers[lookup >= 0]
        parts = np.split(numbers, list(itertools.accumulate(widths.values())), axis=-1)
        tensors = (to_tensor(np.ascontiguousarray(part)) for part in parts)
        return {**columns, **dict(zip(widths, tensors))}


def agree_on_parts(
    module_ids: Collection[str],
    read: Callable[[], tuple[Parts, int]],
    options: UpdateOptions,
    to_tensor: Callable[[Tensor], Tensor],
    reducer: Reducer,
) -> Agreement:
    """Return the agreement of all learners on the data of an update.

    `read()` returns this learner's data and number of environment steps. An error in `read` is raised on this learner,
    and on all others a `LearnerError` that quotes it. Raises `ValueError` if learners were called with different
    options.
    """
    if reducer.world_size == 1:
        return Agreement(*read())
    parts, reports = _exchange_reports(read, options, reducer)
    # Number of rows of each learner, by module id.
    counts = {mid: [report["rows"].get(mid, 0) for report in reports] for mid in module_ids}
    present = [mid for mid, rows_by_rank in counts.items() if any(rows_by_rank)]
    missing = frozenset(mid for mid in present if mid not in parts)

    # For a module that some learner has no rows of, one learner sends a row to all. Every learner has the same counts,
    # so all of them know whether there is such an exchange, and who sends.
    donors = {mid: _donor(counts[mid]) for mid in present if not all(counts[mid])}
    if donors:
        packed = {mid: _pack(parts[mid]) for mid, rank in donors.items() if rank == reducer.rank}
        for donated in reducer.gather(packed):
            parts |= {mid: _unpack(part, to_tensor) for mid, part in donated.items() if mid in missing}
    env_steps = sum(report["env_steps"] for report in reports)
    return Agreement({mid: parts[mid] for mid in present}, env_steps, missing)


def _exchange_reports(
    read: Callable[[], tuple[Parts, int]], options: UpdateOptions, reducer: Reducer
) -> tuple[Parts, list[Any]]:
    """Return this learner's data, and the report of each learner: its rows, environment steps, options and failure.

    An error in `read` is raised only after the exchange, since the other learners wait for it.
    """
    failure: Exception | None = None
    parts: Parts = {}
    env_steps = 0
    try:
        parts, env_steps = read()
    except Exception as error:
        failure = error
    message = "" if failure is None else f"{type(failure).__name__}: {failure}"
    rows = {module_id: _num_rows(part) for module_id, part in parts.items()}
    reports = reducer.gather({"rows": rows, "env_steps": env_steps, "options": asdict(options), "failure": message})
    if failure is not None:
        raise failure
    failures = [f"learner {rank}: {report['failure']}" for rank, report in enumerate(reports) if report["failure"]]
    if failures:
        raise LearnerError(f"no learner was updated, because of {'; '.join(failures)}")
    for rank, report in enumerate(reports):
        if report["options"] != reports[0]["options"]:
            raise ValueError(
                f"all learners must be called alike; learner 0 has {reports[0]['options']}, learner {rank} "
                f"{report['options']}"
            )
    return parts, reports


def plan_update(
    columns: Parts, stand_ins: frozenset[str], trajectories: Mapping[str, Trajectories], reducer: Reducer
) -> UpdatePlan:
    """Return the global numbering of the rows of all learners.

    `columns` are this learner's train columns by module id. `trajectories` are the episodes that they were made from;
    empty if they come from a batch.
    """
    num_own = {mid: 0 if mid in stand_ins else _num_rows(part) for mid, part in columns.items()}
    if reducer.world_size == 1:
        return UpdatePlan(num_own, num_own)
    counts = reducer.gather(num_own)
    total = {mid: sum(rows_by_module[mid] for rows_by_module in counts) for mid in num_own}
    lookup = {}
    for mid, rows in num_own.items():
        begin = sum(rows_by_module[mid] for rows_by_module in counts[: reducer.rank])
        lookup[mid] = np.full(total[mid], -1, np.int64)
        part = None if mid in stand_ins else trajectories.get(mid)
        # Shards of a whole rollout know the positions of their rows there.
        if part is None or part.positions is None:
            lookup[mid][begin : begin + rows] = np.arange(rows)
        else:
            lookup[mid][part.positions] = np.arange(rows)
    return UpdatePlan(total, num_own, stand_ins, lookup)


def _donor(counts: list[int]) -> int:
    """Return the rank of the learner that has the fewest rows, but at least one.

    Trajectories are sent whole, so this is the least to send.
    """
    return min((rank for rank, rows in enumerate(counts) if rows), key=counts.__getitem__)


def _num_rows(part: Trajectories | Mapping[str, Any]) -> int:
    return num_items(next(iter(part.values()))) if isinstance(part, Mapping) else part.num_rows


def _pack(part: Trajectories | Mapping[str, Any]) -> dict[str, Any]:
    """Return one row of columns, in a form that can be sent.

    Trajectories are sent whole, since their rows belong together.
    """
    if not isinstance(part, Mapping):
        return {"trajectories": {item.name: getattr(part, item.name) for item in fields(part)}}
    first = torch.zeros(1, dtype=torch.int64)
    return {"columns": take_rows({name: map_tree(torch.Tensor.cpu, value) for name, value in part.items()}, first)}


def _unpack(packed: Mapping[str, Any], to_tensor: Callable[[Tensor], Tensor]) -> Trajectories | dict[str, Any]:
    """Return the data that `_pack` has made, on this learner's device."""
    if "trajectories" in packed:
        return Trajectories(**packed["trajectories"])
    return {name: map_tree(to_tensor, value) for name, value in packed["columns"].items()}


def _versions_of(piece: SingleAgentEpisode) -> np.ndarray | None:
    """Return the versions `[N]` of the weights that acted in an episode; None if it has not recorded them."""
    try:
        return np.asarray(piece.get_extra_model_outputs(Columns.WEIGHTS_SEQ_NO))
    except KeyError:
        return None
