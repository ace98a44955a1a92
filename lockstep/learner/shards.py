"""The steps of episodes by module, and each learner's share of an update: n learners do exactly what one does."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lockstep.data.columns import Columns
from lockstep.data.episode import SingleAgentEpisode
from lockstep.data.minibatch import shard_batch
from lockstep.data.multi_agent_episode import MultiAgentEpisode
from lockstep.data.rollout import RolloutEpisodes
from lockstep.data.sample_batch import MultiAgentBatch, SampleBatch
from lockstep.data.trajectories import Trajectories, shard_trajectories, trajectories_from_episodes
from lockstep.learner.argument_checks import check_episodes


@dataclass
class EpisodeParts:
    """The steps of episodes as arrays, or one learner's share of them; `update_from_episodes` takes it for episodes."""

    env_steps: int = 0
    trajectories: dict[str, Trajectories] = field(default_factory=dict)
    """by module id"""
    versions: dict[str, np.ndarray] = field(default_factory=dict)
    """[N] by module id: version of the weights that acted, for the steps where it is known"""


def parts_of_episodes(
    episodes: Sequence[Any],
    module_ids: Collection[str],
    chosen: Callable[[Collection[str]], Sequence[str]] = list,
) -> EpisodeParts:
    """The steps of the modules that `chosen` picks of those that have any.

    `episodes`: `SingleAgentEpisode`s (each for its `module_id`, or for the only one of `module_ids`),
    `MultiAgentEpisode`s (each agent's steps for its module; an environment step counts once, however many agents
    acted), or the views on one rollout store, which are read without a copy. Raises `TypeError` for something else,
    `ValueError` where an episode does not say which of several modules it is for.
    """
    check_episodes(episodes)
    if isinstance(episodes, RolloutEpisodes):
        steps = episodes.num_steps()
        ids = chosen([_only(module_ids, "episodes of a rollout store")]) if steps else []
        versions = {mid: episodes.store.sampler_versions() for mid in ids}
        return EpisodeParts(steps, {mid: episodes.trajectories() for mid in ids}, versions)
    pieces: dict[str, list[SingleAgentEpisode]] = {}
    env_steps = 0
    for position, episode in enumerate(episodes):
        for module_id, piece in _pieces_of(module_ids, episode, position):
            if len(piece):
                pieces.setdefault(module_id, []).append(piece)
        env_steps += episode.env_steps()
    ids = chosen(pieces)
    known = {mid: [own for piece in pieces[mid] if (own := _versions_of(piece)) is not None] for mid in ids}
    return EpisodeParts(
        env_steps,
        {mid: trajectories_from_episodes(pieces[mid]) for mid in ids},
        {mid: np.concatenate(versions) for mid, versions in known.items() if versions},
    )


def shards_of(data: Any, num_learners: int, modules: Mapping[str, bool]) -> list[Any]:
    """One shard of `data` (episodes, or a batch) for each learner; the data are not changed. Some may be empty.

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
        for shard, part in zip(shards, shard_trajectories(trajectories, num_learners, cut=cut)):
            if part is not None:
                shard.trajectories[module_id] = part
    for module_id, versions in whole.versions.items():
        for shard, numbers in zip(shards, np.array_split(versions, num_learners)):
            if len(numbers):
                shard.versions[module_id] = numbers
    return shards


def _pieces_of(module_ids: Collection[str], episode: Any, position: int) -> list[tuple[str, SingleAgentEpisode]]:
    if isinstance(episode, SingleAgentEpisode):
        which = f"the episode at position {position}, which has no module_id"
        return [(episode.module_id or _only(module_ids, which), episode)]
    if isinstance(episode, MultiAgentEpisode):
        return [(episode.module_for(agent), piece) for agent, piece in episode.agent_episodes.items()]
    raise TypeError(
        f"position {position} is a {type(episode).__name__}; a SingleAgentEpisode or MultiAgentEpisode is needed"
    )


def _only(module_ids: Collection[str], what: str) -> str:
    if len(module_ids) != 1:
        raise ValueError(f"this learner has the modules {sorted(module_ids)}; {what} fits one module only")
    return next(iter(module_ids))


def _versions_of(piece: SingleAgentEpisode) -> np.ndarray | None:
    try:
        return np.asarray(piece.get_extra_model_outputs(Columns.WEIGHTS_SEQ_NO))
    except KeyError:
        return None
