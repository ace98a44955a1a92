"""Episodes as time-major columns, and shards of them that together are exactly the whole.

Rows stand in a grid `[T, B]`. The true next observation of row `(t, b)` is the observation of row `(t + 1, b)`, except
at rows listed in `bootstrap_index`, whose true next observation is stored apart (an episode cut by a time limit, or a
piece that ends with the data).

Rows are shared out in one order: column by column, in the order of time. A shard holds its rows and, besides, the rest
of the episodes (or environments) that they are part of, so that whatever looks along an episode - returns, advantages,
running statistics - finds the numbers that the whole has there. `owned` says which rows are the shard's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lockstep.data.columns import Columns, is_state_column
from lockstep.data.episode import NO_EXTRAS, SingleAgentEpisode
from lockstep.data.trees import Tree, leaves, map_tree, rows_of, zip_trees
from lockstep.options.checks import check_whole

_IN_GRID = (
    *("obs", "actions", "rewards", "terminateds", "truncateds", "cuts", "dones", "valid", "starts"),
    *("action_logp", "recorded", "critic_obs"),
)
"""fields of a value for each cell of the grid"""
_APART = {"bootstrap_index": "bootstrap_obs", "state_index": "states", "terminal_index": "terminal_obs"}
"""fields of flat rows of the grid -> what is stored for these rows"""


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
    """[T, B] log-probability of each action under the policy that acted; NaN (or None for all): not known"""
    truncateds: np.ndarray | None = None
    """[T, B] bool: the episode was truncated here (not where only the data end); None: wherever it was cut"""
    recorded: dict[str, Tree] | None = None
    """{name: [T, B, ...]} the other extra model outputs of the episodes, as recorded when acting"""
    terminal_index: np.ndarray | None = None
    """[E] int64 flat rows at which an episode terminated"""
    terminal_obs: Tree = None
    """[E, ...] true next observations of those rows"""
    critic_obs: np.ndarray | None = None
    """[T, B, ...] what a centralised critic sees at each observation; None where there is none"""
    bootstrap_critic_obs: np.ndarray | None = None
    """[K, ...] the same at `bootstrap_obs`"""

    def next_obs(self) -> Tree:
        """Return true next observations `[T * B, ...]`, a copy (zeros after the last row of the data)."""

        def following(leaf: np.ndarray) -> np.ndarray:
            return np.concatenate([leaf[1:], np.zeros_like(leaf[:1])]).reshape(-1, *leaf.shape[2:])

        moved = map_tree(following, self.obs)
        for index, own in ((self.bootstrap_index, self.bootstrap_obs), (self.terminal_index, self.terminal_obs)):
            if index is not None and len(index):
                for leaf, last in zip(leaves(moved), leaves(own)):
                    leaf[index] = last
        return moved

    @property
    def shape(self) -> tuple[int, int]:
        """T and B."""
        return self.rewards.shape[0], self.rewards.shape[1]

    @property
    def num_rows(self) -> int:
        """Number of real transitions to train on."""
        rows = self.rows()
        return self.rewards.size if rows is None else len(rows)

    def rows(self) -> np.ndarray | None:
        """Return the flat indices of the real transitions to train on, `None` for all rows."""
        if self.owned is None:
            return None if self.valid is None else np.flatnonzero(self.valid)
        return np.flatnonzero(self.owned if self.valid is None else self.owned & self.valid)

    def flat_obs(self) -> Tree:
        """Return observations `[T * B, ...]`, a view."""
        return map_tree(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), self.obs)

    def flat_actions(self) -> np.ndarray:
        """Return actions `[T * B, ...]`, a view."""
        return self.actions.reshape(-1, *self.actions.shape[2:])

    def shards(self, num_shards: int, *, cut: bool = True) -> list[Trajectories | None]:
        """Return `num_shards` views that together own every row once, of sizes that differ by at most one row.

        A shard without a transition is None. `cut=False` keeps episodes whole (of several environments: their columns),
        as modules with memory need it; shards are then balanced as far as that goes. `positions` of a shard are the
        numbers of its transitions among those of the whole. `ValueError` for `num_shards < 1`.
        """
        check_whole("num_shards", num_shards, 1)
        if num_shards == 1:
            return [self if self.num_rows else None]
        steps, columns = self.shape
        bounds = [shard * steps * columns // num_shards for shard in range(num_shards + 1)]
        begins = self._piece_begins()
        if not cut:  # a piece belongs to the shard that owns its first row
            bounds = [int(begins[np.searchsorted(begins, bound)]) for bound in bounds]
        numbers = self._numbers()
        shards: list[Trajectories | None] = []
        for start, stop in itertools.pairwise(bounds):
            shard = None if start == stop else self._shard(start, stop, begins, None if not cut else numbers)
            shards.append(shard if shard is not None and shard.num_rows else None)
        return shards

    def _piece_begins(self) -> np.ndarray:
        """Return the rows, counted column by column, before which the grid may be cut; and the number of all rows."""
        steps, columns = self.shape
        if columns > 1:
            return np.arange(columns + 1) * steps
        ends = (self.dones | self.cuts)[:, 0]
        return np.unique(np.concatenate([[0], np.flatnonzero(ends) + 1, [steps]]))

    def _numbers(self) -> np.ndarray:
        """Return [T, B] int64: the number of each transition among all, as one learner counts them."""
        if self.valid is None:
            return np.arange(self.rewards.size).reshape(self.shape)
        return np.cumsum(self.valid.reshape(-1)).reshape(self.shape) - 1

    def _shard(self, start: int, stop: int, begins: np.ndarray, numbers: np.ndarray | None) -> Trajectories:
        """Return the pieces around rows `start` to `stop`, counted column by column; whole without `numbers`."""
        steps, columns = self.shape
        first = int(begins[np.searchsorted(begins, start, side="right") - 1])
        last = int(begins[np.searchsorted(begins, stop)])
        times, envs = (
            (slice(first, last), slice(0, 1))
            if columns == 1
            else (slice(0, steps), slice(first // steps, last // steps))
        )
        shard = self._window(times, envs)
        if numbers is not None:
            cells = np.arange(first, last).reshape(envs.stop - envs.start, -1).T
            shard.owned = (cells >= start) & (cells < stop)
            shard.positions = numbers[times, envs].reshape(-1)[shard.rows()]
        return shard

    def _window(self, times: slice, envs: slice) -> Trajectories:
        grid = {name: rows_of(getattr(self, name), (times, envs)) for name in self._given(_IN_GRID)}
        apart: dict[str, Any] = {}
        for index in self._given(_APART):
            apart[index], kept = self._moved(getattr(self, index), times, envs)
            apart[_APART[index]] = rows_of(getattr(self, _APART[index]), kept)
            if index == "bootstrap_index" and self.bootstrap_critic_obs is not None:
                apart["bootstrap_critic_obs"] = self.bootstrap_critic_obs[kept]
        place = (times.start, envs.start, *self.shape)
        return replace(self, **grid, **apart, owned=None, positions=None, place=place)

    def _given(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if getattr(self, name) is not None]

    def _moved(self, rows: np.ndarray, times: slice, envs: slice) -> tuple[np.ndarray, np.ndarray]:
        """Return those of the flat `rows` that lie in the window, as its flat rows; and which of `rows` they are."""
        t, b = np.divmod(rows, self.shape[1])
        kept = (t >= times.start) & (t < times.stop) & (b >= envs.start) & (b < envs.stop)
        return (t[kept] - times.start) * (envs.stop - envs.start) + b[kept] - envs.start, kept


def trajectories_from_episodes(episodes: Sequence[SingleAgentEpisode]) -> Trajectories:
    """Return episodes one after another as one column of `[T, 1]`; each ends with its own bootstrap observation.

    All episodes of one rollout, in any order, are read as the store's own columns `[T, B]`, without a copy.
    What was recorded when acting is read from the extra outputs (`action_logp` `[T]`, `action_dist_inputs`, ...).
    The recurrent state before the first step is read from the extra output `state_in` `{name: [T, ...]}`, or from
    `custom_data["state_in"]`, `{"t": step, "state": {name: [...]}}`; without one episodes begin with the initial one.
    Raises `ValueError` for an empty list or when no episode has a step.
    """
    pieces = [episode for episode in episodes if len(episode)]
    if not pieces:
        raise ValueError("there is no step to learn from: every given episode is empty; collect at least one step")
    rollout = pieces[0].source
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
    stored = [_state_before(item, piece) for item, piece in zip(data, pieces)]
    kept = [i for i, state in enumerate(stored) if state is not None]
    recorded = _recorded(data)
    last = zip_trees(np.concatenate, [rows_of(item[Columns.NEXT_OBS], slice(-1, None)) for item in data], "")
    is_open = ~terminateds[ends, 0]
    critic_obs = _critic_obs(pieces)
    return Trajectories(
        obs=joined(Columns.OBS),
        actions=joined(Columns.ACTIONS),
        rewards=joined(Columns.REWARDS).astype(np.float32),
        terminateds=terminateds,
        cuts=cuts,
        dones=dones,
        bootstrap_index=ends[is_open].astype(np.int64),
        bootstrap_obs=rows_of(last, is_open),
        starts=starts,
        state_index=np.flatnonzero(starts)[kept] if kept else None,
        states=zip_trees(np.stack, [stored[i] for i in kept], Columns.STATE_IN) if kept else None,
        action_logp=recorded.pop(Columns.ACTION_LOGP, None),
        truncateds=joined(Columns.TRUNCATEDS).astype(bool),
        recorded=recorded,
        terminal_index=ends[~is_open].astype(np.int64),
        terminal_obs=rows_of(last, ~is_open),
        critic_obs=None if critic_obs is None else np.concatenate([rows[:-1] for rows in critic_obs])[:, None],
        bootstrap_critic_obs=None if critic_obs is None else np.stack([rows[-1] for rows in critic_obs])[is_open],
    )


def _critic_obs(pieces: Sequence[SingleAgentEpisode]) -> list[np.ndarray] | None:
    """Return what a centralised critic sees, `[T + 1, ...]` of each piece, from its infos; None where there is none.

    Zeros after the end of an agent that got no last observation. `ValueError` where some pieces have none.
    """
    first = [(piece.get_infos(0) or {}).get(Columns.CRITIC_OBS) for piece in pieces]
    if first[0] is None:
        return None
    nothing, found = np.zeros_like(first[0]), []
    for piece, value in zip(pieces, first):
        if value is None:
            raise ValueError(f"{Columns.CRITIC_OBS!r} is in the infos of some episodes only; give it with all of them")
        found.append(np.stack([(info or {}).get(Columns.CRITIC_OBS, nothing) for info in piece.get_infos()]))
    return found


COMPARED_WITH = (Columns.ACTION_LOGP, Columns.ACTION_DIST_INPUTS, Columns.VF_PREDS)
"""extra model outputs that a loss compares the present ones with"""


def _recorded(data: Sequence[Mapping[str, Any]]) -> dict[str, Tree]:
    """`{name: [T, 1, ...]}` of the extra model outputs that all pieces have; of those that a loss compares with, NaN
    in pieces without one. What cannot be joined, and is compared with nothing, is passed over.
    """
    names = [name for name in dict.fromkeys(name for item in data for name in item) if name not in NO_EXTRAS]
    joined: dict[str, Tree] = {}
    for name in names:
        parts = [item.get(name) for item in data]
        if name in COMPARED_WITH:
            like = np.asarray(next(part for part in parts if part is not None))
            lengths = [len(item[Columns.REWARDS]) for item in data]
            parts = [np.full((n, *like.shape[1:]), np.nan) if p is None else p for n, p in zip(lengths, parts)]
        if is_state_column(name) or any(part is None for part in parts):
            continue
        try:
            joined[name] = zip_trees(lambda leaves_: np.concatenate(leaves_)[:, None], parts, name)
        except ValueError:
            if name in COMPARED_WITH:
                raise
    return joined


def _state_before(data: Mapping[str, Any], piece: SingleAgentEpisode) -> Tree:
    if Columns.STATE_IN in data:
        return map_tree(lambda leaf: np.asarray(leaf)[0], data[Columns.STATE_IN])
    kept = piece.custom_data.get(Columns.STATE_IN)
    return None if kept is None or kept["t"] != piece.t_started else map_tree(np.asarray, kept["state"])
