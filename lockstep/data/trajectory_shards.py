"""Cutting trajectories into shards that together are exactly the whole.

The rows are shared out in one order: column by column, in the order of time. A shard holds its rows and, besides, the
rest of the episodes (or environments) that they are part of, so that whatever looks along an episode - returns,
advantages, running statistics - finds the numbers that the whole has there. `owned` says which rows are the shard's.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from lockstep.data.trajectories import Trajectories
from lockstep.data.trees import map_tree


def shard_trajectories(trajectories: Trajectories, num_shards: int, *, cut: bool = True) -> list[Trajectories | None]:
    """`num_shards` views that together own every row once; their sizes differ by at most one row of the grid.

    A shard without a transition is None. `cut=False` keeps episodes whole (of several environments: their columns),
    as modules with memory need it; shards are then balanced as far as that goes. `positions` of a shard are the
    numbers of its transitions among those of the whole. `ValueError` for `num_shards < 1`.
    """
    if num_shards < 1:
        raise ValueError(f"num_shards={num_shards}; it must be at least 1")
    if num_shards == 1:
        return [trajectories if trajectories.num_rows else None]
    steps, columns = trajectories.shape
    bounds = [shard * steps * columns // num_shards for shard in range(num_shards + 1)]
    begins = _piece_begins(trajectories)
    if not cut:  # a piece belongs to the shard that owns its first row
        bounds = [int(begins[np.searchsorted(begins, bound)]) for bound in bounds]
    numbers = _numbers(trajectories)
    shards: list[Trajectories | None] = []
    for start, stop in itertools.pairwise(bounds):
        shard = None if start == stop else _shard(trajectories, start, stop, begins, None if not cut else numbers)
        shards.append(shard if shard is not None and shard.num_rows else None)
    return shards


def _piece_begins(trajectories: Trajectories) -> np.ndarray:
    """Numbers, column by column, of the rows before which the grid may be cut apart; and the number of all rows."""
    steps, columns = trajectories.shape
    if columns > 1:
        return np.arange(columns + 1) * steps
    ends = (trajectories.dones | trajectories.cuts)[:, 0]
    return np.unique(np.concatenate([[0], np.flatnonzero(ends) + 1, [steps]]))


def _numbers(trajectories: Trajectories) -> np.ndarray:
    """[T, B] int64: the number of each transition among all, as one learner counts them."""
    if trajectories.valid is None:
        return np.arange(trajectories.rewards.size).reshape(trajectories.shape)
    return np.cumsum(trajectories.valid.reshape(-1)).reshape(trajectories.shape) - 1


def _shard(
    trajectories: Trajectories, start: int, stop: int, begins: np.ndarray, numbers: np.ndarray | None
) -> Trajectories:
    """The pieces around rows `start` to `stop`, counted column by column; without `numbers` these are whole."""
    steps, columns = trajectories.shape
    first = int(begins[np.searchsorted(begins, start, side="right") - 1])
    last = int(begins[np.searchsorted(begins, stop)])
    times, envs = (
        (slice(first, last), slice(0, 1)) if columns == 1 else (slice(0, steps), slice(first // steps, last // steps))
    )
    shard = _window(trajectories, times, envs)
    if numbers is not None:
        cells = np.arange(first, last).reshape(envs.stop - envs.start, -1).T
        shard.owned = (cells >= start) & (cells < stop)
        shard.positions = numbers[times, envs].reshape(-1)[shard.rows()]
    return shard


def _window(trajectories: Trajectories, times: slice, envs: slice) -> Trajectories:
    def part(leaf: Any) -> Any:
        return None if leaf is None else leaf[times, envs]

    index, kept = _moved(trajectories, trajectories.bootstrap_index, times, envs)
    terminal_index, terminal_obs = trajectories.terminal_index, trajectories.terminal_obs
    if terminal_index is not None:
        terminal_index, ended = _moved(trajectories, terminal_index, times, envs)
        terminal_obs = map_tree(lambda leaf: leaf[ended], terminal_obs)
    state_index, states = trajectories.state_index, trajectories.states
    if state_index is not None:
        state_index, with_state = _moved(trajectories, state_index, times, envs)
        states = map_tree(lambda leaf: leaf[with_state], states)
    return Trajectories(
        obs=map_tree(part, trajectories.obs),
        actions=part(trajectories.actions),
        rewards=part(trajectories.rewards),
        terminateds=part(trajectories.terminateds),
        cuts=part(trajectories.cuts),
        dones=part(trajectories.dones),
        bootstrap_index=index,
        bootstrap_obs=map_tree(lambda leaf: leaf[kept], trajectories.bootstrap_obs),
        valid=part(trajectories.valid),
        starts=part(trajectories.starts),
        state_index=state_index,
        states=states,
        action_logp=part(trajectories.action_logp),
        truncateds=part(trajectories.truncateds),
        recorded=None if trajectories.recorded is None else map_tree(part, trajectories.recorded),
        terminal_index=terminal_index,
        terminal_obs=terminal_obs,
        place=(times.start, envs.start, *trajectories.shape),
    )


def _moved(trajectories: Trajectories, rows: np.ndarray, times: slice, envs: slice) -> tuple[np.ndarray, np.ndarray]:
    """Those of the flat `rows` that lie in the window, as its flat rows; and which of `rows` they are."""
    t, b = np.divmod(rows, trajectories.shape[1])
    kept = (t >= times.start) & (t < times.stop) & (b >= envs.start) & (b < envs.stop)
    return (t[kept] - times.start) * (envs.stop - envs.start) + b[kept] - envs.start, kept
