"""How learners share an update, so that n of them do exactly what one does.

`shards_of` cuts episodes and batches into each learner's share. Before an update the learners then agree on what they
train on, so that none waits for one that left: they tell one another how many rows of which module they have; the rows
of all shards are numbered globally (one after another by rank, or as the shard of a whole rollout says), and each
minibatch is a set of global numbers. A learner trains on those that lie in its shard.

A learner that has no row of a module in a minibatch still makes the same calls: on a copy of some real row that weighs
nothing (a *stand-in*). So a loss sees at least one row, and everybody meets in the same sums.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
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
from lockstep.learner.minibatches import Indices, TensorColumns, UpdateOptions, take_rows
from lockstep.state.streams import RandomStreams

Episodes = Sequence[SingleAgentEpisode | MultiAgentEpisode]
Parts = dict[str, Any]
"""by module id: `Trajectories`, or columns as tensors"""


# -- shares ---


@dataclass
class EpisodeParts:
    """The steps of episodes as arrays, or one learner's share of them; `update_from_episodes` takes it for episodes."""

    env_steps: int = 0
    trajectories: dict[str, Trajectories] = field(default_factory=dict)
    """by module id"""
    versions: dict[str, np.ndarray] = field(default_factory=dict)
    """[N] by module id: version of the weights that acted, for the steps where it is known"""


def check_episodes(episodes: object) -> None:
    """Raise `TypeError` for what cannot be a list of episodes."""
    needed = "a list of SingleAgentEpisode or MultiAgentEpisode is needed"
    if isinstance(episodes, SampleBatch | MultiAgentBatch):
        raise TypeError(f"episodes is a {type(episodes).__name__}; {needed}; update_from_batch takes batches")
    wrong = (SingleAgentEpisode, MultiAgentEpisode, int, float, str, bytes, Mapping, Iterator)
    if episodes is None or isinstance(episodes, wrong):
        raise TypeError(f"episodes is a {type(episodes).__name__}; {needed}, such as [episode]")


def parts_of_episodes(
    episodes: Episodes | RolloutEpisodes,
    module_ids: Collection[str],
    choose: Callable[[Collection[str]], Sequence[str]] = list,
) -> EpisodeParts:
    """Return the steps of the modules that `choose` picks of those that have any.

    `episodes`: `SingleAgentEpisode`s (each for its `module_id`, or for the only one of `module_ids`),
    `MultiAgentEpisode`s (each agent's steps for its module; an environment step counts once, however many agents
    acted), or the views on one rollout store, which are read without a copy. Raises `TypeError` for something else,
    `ValueError` where an episode does not say which of several modules it is for.
    """
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
    known = {mid: [found for piece in pieces[mid] if (found := _versions_of(piece)) is not None] for mid in ids}
    return EpisodeParts(
        env_steps,
        {mid: trajectories_from_episodes(pieces[mid]) for mid in ids},
        {mid: np.concatenate(found) for mid, found in known.items() if found},
    )


def shards_of(data: Any, num_learners: int, modules: Mapping[str, bool]) -> list[Any]:
    """Return one shard of `data` (episodes, or a batch) for each learner; the data are not changed. Some may be empty.

    `modules`: the learners' modules, and whether each has memory. Batches are cut into equal shares of rows (or
    sequences), episodes of their steps: what lies between two learners is cut, but both get the rest of that episode
    too, so that advantages are those of the whole. Episodes of a module with memory stay whole.
    """
    if isinstance(data, SampleBatch | MultiAgentBatch):
        return shard_batch(data, num_learners)
    whole = data if isinstance(data, EpisodeParts) else parts_of_episodes(data, modules)
    steps = [rank * whole.env_steps // num_learners for rank in range(num_learners + 1)]
    shards = [EpisodeParts(stop - start) for start, stop in itertools.pairwise(steps)]
    for module_id, trajectories in whole.trajectories.items():
        cut = not modules.get(module_id, False)
        for shard, part in zip(shards, trajectories.shards(num_learners, cut=cut)):
            if part is not None:
                shard.trajectories[module_id] = part
    for module_id, versions in whole.versions.items():
        for shard, numbers in zip(shards, np.array_split(versions, num_learners)):
            if len(numbers):
                shard.versions[module_id] = numbers
    return shards


def _pieces_of(module_ids: Collection[str], episode: object, position: int) -> list[tuple[str, SingleAgentEpisode]]:
    if isinstance(episode, SingleAgentEpisode):
        which = f"the episode at position {position}, which has no module_id"
        return [(episode.module_id or _only(module_ids, which), episode)]
    if isinstance(episode, MultiAgentEpisode):
        return [(episode.module_for(agent), piece) for agent, piece in episode.agent_episodes.items()]
    raise TypeError(
        f"position {position} is a {type(episode).__name__}; a SingleAgentEpisode or MultiAgentEpisode is needed"
    )


def _only(module_ids: Collection[str], described: str) -> str:
    if len(module_ids) != 1:
        raise ValueError(f"this learner has the modules {sorted(module_ids)}; {described} fits one module only")
    return next(iter(module_ids))


# -- agreement ---


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
        """Return the rows of the learner's own; 0 for a stand-in."""
        return 0 if module_id in self.stand_ins else _num_rows(self.parts[module_id])


@dataclass
class UpdatePlan:
    """Global row numbers, and which of them are this learner's."""

    num_rows: dict[str, int]
    """rows of each module, over all learners"""
    num_own_rows: dict[str, int]
    """of this learner, without stand-ins"""
    stand_ins: frozenset[str] = frozenset()
    lookup: dict[str, np.ndarray] = field(default_factory=dict)
    """by module: the own row of each global row, -1 where another learner has it; empty for one learner"""

    def num_rows_in(self, indices: Indices) -> int:
        """Return how many rows global `indices` (None: all) are, of all modules together."""
        return sum(self.num_rows[mid] if index is None else len(index) for mid, index in indices.items())

    def own_sizes(self, rows: Indices, stand_ins: Collection[str]) -> dict[str, int]:
        """Return how many the own `rows` (None: all) of each module are, those of stand-ins left out."""
        real = {mid: index for mid, index in rows.items() if mid not in stand_ins}
        return {mid: self.num_own_rows[mid] if index is None else len(index) for mid, index in real.items()}

    def own_rows(self, indices: Indices) -> tuple[Indices, frozenset[str]]:
        """Return the own rows among global `indices` (None: all), and the modules whose row is a stand-in."""
        if not self.lookup:
            return indices, self.stand_ins
        rows: Indices = {}
        stand_ins = set(self.stand_ins)
        for module_id, index in indices.items():
            chosen = None if index is None else self.lookup[module_id][index]
            if chosen is not None:
                chosen = chosen[chosen >= 0]
            if module_id in self.stand_ins or (chosen is not None and len(chosen) == 0):
                stand_ins.add(module_id)
                chosen = np.zeros(1, np.int64)
            rows[module_id] = chosen
        return rows, frozenset(stand_ins)

    def with_noise(
        self,
        module_id: str,
        columns: TensorColumns,
        widths: Mapping[str, int],
        streams: RandomStreams,
        to_tensor: Callable[[np.ndarray], Tensor],
    ) -> TensorColumns:
        """Return `columns` with standard normal ones `{name: [own rows, width]}`, the same for a row whoever learns
        from it.

        Of sequences of L rows they are `[own sequences, L, width]`. Every learner draws the numbers of all rows and
        keeps those of its own.
        """
        if not widths:
            return columns
        # All numbers of a row side by side: the same whether rows come in one call or in several.
        mask, rng = columns.get(Columns.LOSS_MASK), streams.numpy(f"noise/{module_id}")
        shape = () if mask is None else mask.shape[1:]
        numbers = rng.standard_normal((self.num_rows[module_id], *shape, sum(widths.values())), np.float32)
        if self.lookup:
            lookup, everyone = self.lookup[module_id], numbers
            numbers = np.zeros((max(self.num_own_rows[module_id], 1), *everyone.shape[1:]), np.float32)
            numbers[lookup[lookup >= 0]] = everyone[lookup >= 0]
        drawn = np.split(numbers, list(itertools.accumulate(widths.values())), axis=-1)
        tensors = (to_tensor(np.ascontiguousarray(part)) for part in drawn)
        return {**columns, **dict(zip(widths, tensors))}


def agree_on_parts(
    module_ids: Collection[str],
    read: Callable[[], tuple[Parts, int]],
    options: UpdateOptions,
    to_tensor: Callable[[Tensor], Tensor],
    reducer: Reducer,
) -> Agreement:
    """Return what all learners together train on. `read()` gives this learner's parts and environment steps.

    An error in `read` is raised here, and a `LearnerError` that quotes it on all other learners. Raises `ValueError`
    where the learners were called with different options.
    """
    if reducer.world_size == 1:
        return Agreement(*read())
    parts, heard = _exchanged(read, options, reducer)
    counts = {mid: [item["rows"].get(mid, 0) for item in heard] for mid in module_ids}
    present = [mid for mid, rows_by_rank in counts.items() if any(rows_by_rank)]
    missing = frozenset(mid for mid in present if mid not in parts)
    donors = {mid: _donor(counts[mid]) for mid in present if not all(counts[mid])}
    if donors:
        packed = {mid: _packed(parts[mid]) for mid, rank in donors.items() if rank == reducer.rank}
        for donated in reducer.gather(packed):
            parts |= {mid: _unpacked(part, to_tensor) for mid, part in donated.items() if mid in missing}
    env_steps = sum(item["env_steps"] for item in heard)
    return Agreement({mid: parts[mid] for mid in present}, env_steps, missing)


def _exchanged(
    read: Callable[[], tuple[Parts, int]], options: UpdateOptions, reducer: Reducer
) -> tuple[Parts, list[Any]]:
    """Return the own parts, and what each learner has."""
    failure: Exception | None = None
    parts: Parts = {}
    env_steps = 0
    try:
        parts, env_steps = read()
    except Exception as error:
        failure = error
    message = "" if failure is None else f"{type(failure).__name__}: {failure}"
    rows = {module_id: _num_rows(part) for module_id, part in parts.items()}
    heard = reducer.gather({"rows": rows, "env_steps": env_steps, "options": asdict(options), "failure": message})
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
    return parts, heard


def plan_update(
    columns: Parts, stand_ins: frozenset[str], trajectories: Mapping[str, Trajectories], reducer: Reducer
) -> UpdatePlan:
    """Number the rows of all learners; `columns` are this learner's, made from `trajectories` (if anything)."""
    num_own = {mid: 0 if mid in stand_ins else _num_rows(part) for mid, part in columns.items()}
    if reducer.world_size == 1:
        return UpdatePlan(num_own, num_own)
    counts = reducer.gather(num_own)
    total = {mid: sum(item[mid] for item in counts) for mid in num_own}
    lookup = {}
    for mid, rows in num_own.items():
        begin = sum(item[mid] for item in counts[: reducer.rank])
        lookup[mid] = np.full(total[mid], -1, np.int64)
        part = None if mid in stand_ins else trajectories.get(mid)
        positions = None if part is None else part.positions
        lookup[mid][slice(begin, begin + rows) if positions is None else positions] = np.arange(rows)
    return UpdatePlan(total, num_own, stand_ins, lookup)


def _donor(counts: list[int]) -> int:
    """Return the learner with the fewest rows, but some."""
    return min((rank for rank, rows in enumerate(counts) if rows), key=counts.__getitem__)


def _num_rows(part: Trajectories | Mapping[str, Any]) -> int:
    return part.num_rows if isinstance(part, Trajectories) else num_items(next(iter(part.values())))


def _packed(part: Trajectories | Mapping[str, Any]) -> dict[str, Any]:
    """Return one row of columns; trajectories whole, since their rows belong together."""
    if isinstance(part, Trajectories):
        return {"trajectories": {item.name: getattr(part, item.name) for item in fields(part)}}
    first = torch.zeros(1, dtype=torch.int64)
    return {"columns": take_rows({name: map_tree(torch.Tensor.cpu, value) for name, value in part.items()}, first)}


def _unpacked(packed: Mapping[str, Any], to_tensor: Callable[[Tensor], Tensor]) -> Trajectories | dict[str, Any]:
    if "trajectories" in packed:
        return Trajectories(**packed["trajectories"])
    return {name: map_tree(to_tensor, value) for name, value in packed["columns"].items()}


def _versions_of(piece: SingleAgentEpisode) -> np.ndarray | None:
    try:
        return np.asarray(piece.get_extra_model_outputs(Columns.WEIGHTS_SEQ_NO))
    except KeyError:
        return None
