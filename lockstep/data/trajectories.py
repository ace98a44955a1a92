"""`Trajectories`: what an on-policy learner reads, whatever the steps came from.

Rows stand in time-major columns `[T, B]`. Each column of the `[T, B]` grid is a chain: the true next observation of
row `(t, b)` is the observation of row `(t + 1, b)`, except at rows listed in `bootstrap_index`, whose true next
observation is given apart (an episode cut by a time limit, or a piece that ends with the data).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.data.columns import Columns
from lockstep.data.episode import SingleAgentEpisode
from lockstep.data.trees import leaves, map_tree, zip_trees

Tree = Any


@dataclass(slots=True)
class Trajectories:
    """Time-major columns; every array may be a view on a rollout store."""

    obs: Tree
    """[T, B, ...]"""
    actions: np.ndarray
    """[T, B, ...]"""
    rewards: np.ndarray
    """[T, B] float32"""
    terminateds: np.ndarray
    """[T, B] bool: the episode ended for good, nothing is bootstrapped"""
    cuts: np.ndarray
    """[T, B] bool: truncated, or the last row of a piece; the value of its own next observation is bootstrapped"""
    dones: np.ndarray
    """[T, B] bool: what follows in this column belongs to another episode (not set where only the data ends)"""
    bootstrap_index: np.ndarray
    """[K] int64 indices into the flat [T * B] rows"""
    bootstrap_obs: Tree
    """[K, ...] true next observations of those rows"""
    valid: np.ndarray | None = None
    """[T, B] bool, or None where every row is a transition"""
    starts: np.ndarray | None = None
    """[T, B] bool: rows before which a recurrent policy forgot; None where nobody remembered"""
    state_index: np.ndarray | None = None
    """[P] int64 indices into the flat rows: pieces that begin with a stored recurrent state"""
    states: Tree = None
    """{name: [P, ...]} those states, as they were before the rows"""
    owned: np.ndarray | None = None
    """[T, B] bool: the rows to train on, where the others only complete their episodes; None for all"""
    positions: np.ndarray | None = None
    """[N] int64: the numbers of the own transitions in the whole that they are a shard of; None: one after another"""
    place: tuple[int, int, int, int] | None = None
    """(first step, first column, all steps, all columns): where a shard lies in the grid; None: it is the whole"""
    action_logp: np.ndarray | None = None
    """[T, B] log-probability of each action under the policy that acted; NaN (or None for all): the one that learns"""

    @property
    def shape(self) -> tuple[int, int]:
        """(T, B)"""
        return self.rewards.shape[0], self.rewards.shape[1]

    @property
    def num_rows(self) -> int:
        """Number of real transitions to train on."""
        rows = self.rows()
        return self.rewards.size if rows is None else len(rows)

    def rows(self) -> np.ndarray | None:
        """Flat indices of the real transitions to train on, `None` for all rows."""
        if self.owned is None:
            return None if self.valid is None else np.flatnonzero(self.valid)
        return np.flatnonzero(self.owned if self.valid is None else self.owned & self.valid)

    def flat_obs(self) -> Tree:
        """Observations `[T * B, ...]`, a view."""
        return map_tree(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), self.obs)

    def flat_actions(self) -> np.ndarray:
        """Actions `[T * B, ...]`, a view."""
        return self.actions.reshape(-1, *self.actions.shape[2:])


def trajectories_from_episodes(episodes: Sequence[SingleAgentEpisode]) -> Trajectories:
    """Episodes one after another as one column of `[T, 1]`; each ends with its own bootstrap observation.

    All episodes of one rollout, in any order, are read as the store's own columns `[T, B]`, without a copy.
    What the policy that acted gave its actions is read from the extra output `action_logp` `[T]`, where there is one.
    The recurrent state before the first step is read from the extra output `state_in` `{name: [T, ...]}`, or from
    `custom_data["state_in"]`, `{"t": step, "state": {name: [...]}}`; without one episodes begin with the initial one.
    Raises `ValueError` for an empty list or when no episode has a step.
    """
    pieces = [episode for episode in episodes if len(episode)]
    if not pieces:
        raise ValueError("there is no step to learn from: every given episode is empty; collect at least one step")
    rollout = pieces[0]._source
    if rollout is not None and rollout.is_whole(pieces):
        return rollout.trajectories()
    data = [piece.get_data_dict() for piece in pieces]
    ends = np.cumsum([len(piece) for piece in pieces]) - 1

    def joined(column: str) -> Any:
        return zip_trees(lambda parts: np.concatenate(parts)[:, None], [item[column] for item in data], column)

    terminateds = joined(Columns.TERMINATEDS).astype(bool)
    dones = np.zeros_like(terminateds)
    dones[ends, 0] = True
    cuts = dones & ~terminateds
    starts = np.zeros_like(terminateds)
    starts[ends - [len(piece) - 1 for piece in pieces], 0] = True
    stored = [_state_before(piece, item) for piece, item in zip(pieces, data)]
    kept = [i for i, state in enumerate(stored) if state is not None]
    open_ends = [i for i, end in enumerate(ends) if not terminateds[end, 0]]
    if open_ends:
        last = [map_tree(lambda leaf: leaf[-1:], data[i][Columns.NEXT_OBS]) for i in open_ends]
        bootstrap_obs = zip_trees(lambda parts: np.concatenate(parts), last, Columns.NEXT_OBS)
    else:
        bootstrap_obs = map_tree(lambda leaf: leaf[:0], data[0][Columns.NEXT_OBS])
    return Trajectories(
        obs=joined(Columns.OBS),
        actions=joined(Columns.ACTIONS),
        rewards=joined(Columns.REWARDS).astype(np.float32),
        terminateds=terminateds,
        cuts=cuts,
        dones=dones,
        bootstrap_index=ends[open_ends].astype(np.int64),
        bootstrap_obs=bootstrap_obs,
        starts=starts,
        state_index=np.flatnonzero(starts)[kept] if kept else None,
        states=zip_trees(np.stack, [stored[i] for i in kept], Columns.STATE_IN) if kept else None,
        action_logp=_action_logp(data),
    )


def _action_logp(data: Sequence[Mapping[str, Any]]) -> np.ndarray | None:
    """[T, 1], NaN in pieces without one; None where no piece has one."""
    if not any(Columns.ACTION_LOGP in item for item in data):
        return None
    lengths = [len(item[Columns.REWARDS]) for item in data]
    parts = [np.asarray(item.get(Columns.ACTION_LOGP, np.full(n, np.nan))) for item, n in zip(data, lengths)]
    return np.concatenate(parts)[:, None]


def _state_before(piece: SingleAgentEpisode, data: Mapping[str, Any]) -> Tree:
    if Columns.STATE_IN in data:
        return map_tree(lambda leaf: np.asarray(leaf)[0], data[Columns.STATE_IN])
    kept = piece.custom_data.get(Columns.STATE_IN)
    return None if kept is None or kept["t"] != piece.t_started else map_tree(np.asarray, kept["state"])


def num_rows_of(tree: Tree) -> int:
    """Rows of a column that may be nested."""
    shape = getattr(tree, "shape", None)  # an array or a tensor; asked for each gradient step
    return int(next(iter(leaves(tree))).shape[0] if shape is None else shape[0])
