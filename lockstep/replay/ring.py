"""`Ring`: which row a transition gets, what comes before and after it, and where episodes end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from lockstep.data.trees import to_numpy_leaf

TERMINATED, TRUNCATED, CUT, LOST = 1, 2, 4, 8
"""how a row ends its episode; CUT: left in the middle by a reset; LOST: the next row had a predecessor that is gone"""


class Placed(Sequence[np.ndarray]):
    """What `ReplayBuffer.add` returns: `(indices, episode_return, episode_length, episode_start)`, entries in the order
    of the rows added.
    """

    __slots__ = ("_numbers", "place")

    def __init__(self, numbers: np.ndarray, follow: bool) -> None:
        self._numbers = numbers  # int64 [3 + agents, n] as the kernel fills it
        self.place: slice | np.ndarray = numbers[0]
        """`indices`, as a slice where the rows `follow` one another in memory: writing there takes less time"""
        if follow and numbers.shape[1]:
            first = int(numbers[0, 0])
            self.place = slice(first, first + numbers.shape[1])

    @property
    def indices(self) -> np.ndarray:
        """int64 [n], where each row was written"""
        return self._numbers[0]

    @property
    def episode_return(self) -> np.ndarray:
        """float64 [n], or [n, agents]: sum of rewards of an episode that ended here, else 0"""
        returns = self._numbers[3:].view(np.float64)
        return returns[0] if len(returns) == 1 else returns.T

    @property
    def episode_length(self) -> np.ndarray:
        """int64 [n], steps of an episode that ended here, else 0"""
        return self._numbers[1]

    @property
    def episode_start(self) -> np.ndarray:
        """int64 [n], index of the first row of the row's episode; -1 where the episode has overwritten it"""
        return self._numbers[2]

    def __len__(self) -> int:
        return 4

    def __repr__(self) -> str:
        names = ("indices", "episode_return", "episode_length", "episode_start")
        return f"Placed({', '.join(f'{name}={value}' for name, value in zip(names, self))})"

    def __getitem__(self, position: SupportsIndex | slice) -> Any:
        return (self.indices, self.episode_return, self.episode_length, self.episode_start)[position]


class Ring:
    """`size` positions for each of `num_buffers` sub-buffers; row `position * num_buffers + b`.

    A vector step of all sub-buffers is thereby one stretch of memory. Knows nothing of what is stored.
    """

    def __init__(self, size: int, num_buffers: int) -> None:
        from lockstep.replay import _kernels

        self.kernels = _kernels
        self.size, self.num_buffers = size, num_buffers
        self.num_rows = size * num_buffers
        self.flags = np.zeros(self.num_rows, np.uint8)
        self.marks = np.zeros((8, num_buffers), np.int64)
        self.newest, self.oldest, self.count, self.inherits, self.written, self.lengths, self.starts, _ = self.marks
        """views, [num_buffers] each: the newest and the oldest row, -1 where there is none; number of rows stored; 1
        where the oldest (of an empty one: the first that comes) goes on with an episode whose earlier rows are gone;
        rows ever written; of the episode under way its length and its first row, -1 where that
        is overwritten. Of the last line the first entry is the number of all rows stored."""
        self.returns = np.zeros((num_buffers, 1), np.float64)
        """[num_buffers, agents], of the episodes under way"""
        self.generation = 0
        """counts the times when all rows were given up or replaced"""
        self.newest[:] = self.oldest[:] = self.starts[:] = -1

    @property
    def stored(self) -> int:
        """Rows that hold a transition."""
        return int(self.marks[7, 0])

    def clear(self, keep_statistics: bool) -> None:
        """Forget all rows; with `keep_statistics` the running episodes go on: returns, lengths, lost frames."""
        self.generation += 1
        self.inherits[:] = self.go_on() if keep_statistics else 0
        self.flags[:] = 0
        self.newest[:] = self.oldest[:] = self.starts[:] = -1
        self.count[:] = self.marks[7] = 0
        if not keep_statistics:
            self.returns[:] = 0.0
            self.lengths[:] = 0

    def place(
        self, ids: np.ndarray, rewards: np.ndarray, terminateds: np.ndarray, truncateds: np.ndarray, cuts: np.ndarray
    ) -> Placed:
        """Give new transitions (`rewards` [n] or [n, agents]) their rows, one after another.

        `cuts` uint8 [n]: further flags: CUT where an episode that goes on is left after the row, LOST.
        """
        flat, agents = rewards, 1
        if rewards.ndim > 1:
            flat, agents = rewards.reshape(-1), rewards.shape[1]
        if agents != self.returns.shape[1]:
            self.returns = np.zeros((self.num_buffers, agents), np.float64)
        numbers = np.empty((3 + agents, len(ids)), np.int64)
        follow = self.kernels.place(
            ids, flat, terminateds, truncateds, cuts, self.flags, self.marks, self.returns, numbers
        )
        return Placed(numbers, follow)

    def go_on(self) -> np.ndarray:
        """Return bool [num_buffers]: does the next row go on with an episode of which rows are stored or lost?"""
        flags = self.flags[self.newest]
        return np.where(self.count > 0, (flags == 0) | (flags >= LOST), self.inherits != 0)

    def cut(self, ids: np.ndarray, goes_on: bool = False) -> None:
        """Leave the episodes under way in these sub-buffers; with `goes_on` the next rows are of episodes whose rows in
        between are lost.
        """
        newest = self.newest[ids]
        stored = newest[newest >= 0]
        self.flags[stored[self.flags[stored] == 0]] = CUT
        self.flags[stored] = self.flags[stored] & ~np.uint8(LOST) | np.uint8(LOST * goes_on)
        self.inherits[ids[newest < 0]] = goes_on
        self.returns[ids] = 0.0
        self.lengths[ids] = 0

    def next(self, rows: np.ndarray) -> np.ndarray:
        """Return the row after each in its episode; itself at the episode's end and for the newest."""
        out = np.empty_like(rows)
        self.kernels.following(rows, self.flags, self.newest, out)
        return out

    def prev(self, rows: np.ndarray) -> np.ndarray:
        """Return the row before each in its episode; itself at the episode's start and for the oldest."""
        out = np.empty_like(rows)
        self.kernels.preceding(rows, self.flags, self.oldest, out)
        return out

    def ends(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return two bool [N]: which rows are terminated, and which are truncated."""
        out = np.empty((2, len(rows)), np.bool_)
        self.kernels.ends(rows, self.flags, out)
        return out[0], out[1]

    def begins_lost(self, rows: np.ndarray) -> np.ndarray:
        """Return bool [N]: does the row begin what is left of an episode whose earlier rows are gone?"""
        buffers = rows % self.num_buffers
        is_oldest = rows == self.oldest[buffers]
        return np.where(is_oldest, self.inherits[buffers] != 0, self.flags[rows - self.num_buffers] >= LOST)

    def stacked(self, rows: np.ndarray, num_frames: int) -> np.ndarray:
        """Return the rows of each row's frames, int64 [N, num_frames], oldest first."""
        out = np.empty((len(rows), num_frames), np.int64)
        self.kernels.stacked(rows, self.flags, self.oldest, out)
        return out

    def can_be_stacked(self, rows: np.ndarray, num_frames: int, need_all: bool) -> np.ndarray:
        """Return bool [N]: are the frames of each row's stack stored (with `need_all` as different rows)?"""
        out = np.empty(len(rows), np.bool_)
        self.kernels.can_be_stacked(rows, self.flags, self.oldest, self.inherits, num_frames, need_all, out)
        return out

    def n_step(self, rows: np.ndarray, rewards: np.ndarray, gamma: float, n: int) -> tuple[np.ndarray, ...]:
        """Return the last row [N], sum of rewards [N, agents] and discount [N] of up to `n` steps from each row."""
        last, discounts = np.empty_like(rows), np.empty(len(rows), np.float32)
        totals = np.empty((len(rows), rewards.shape[1]), np.float64)
        self.kernels.n_step(rows, rewards, self.flags, self.newest, gamma, n, last, totals, discounts)
        return last, totals, discounts

    def sequences(self, rows: np.ndarray, length: int, burn_in: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the sequence that holds each row: its rows `[M]`, one sequence after another, how many it has `[N]`,
        and how many of them are burn-in `[N]`.

        Episodes are cut into sequences of `length` rows, from their first stored row; the last one may be shorter. Up
        to `burn_in` rows of the episode come before each.
        """
        first, before, total = np.empty((3, len(rows)), np.int64)
        self.kernels.sequences(rows, self.flags, self.newest, self.oldest, length, burn_in, first, before, total)
        ends = np.cumsum(total)
        steps = np.arange(ends[-1]) - np.repeat(ends - total, total)
        return (np.repeat(first, total) + steps * self.num_buffers) % self.num_rows, total, before

    def window(self, rows: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the up to `n` rows from each row on, [N, n], and how many there are, [N]."""
        out, lengths = np.empty((len(rows), n), np.int64), np.empty(len(rows), np.int64)
        self.kernels.window(rows, self.flags, self.newest, out, lengths)
        return out, lengths

    def checked(self, indices: npt.ArrayLike) -> np.ndarray:
        """Return `indices` as int64 [N]; `IndexError` unless they are rows that hold a transition.

        Negative ones count back from the end of the rows in use, as in an array.
        """
        rows = np.asarray(to_numpy_leaf(indices))
        if rows.ndim > 1 or (rows.dtype.kind not in "iu" and rows.size):
            raise IndexError(f"indices must be whole numbers [N], got shape {rows.shape} of {rows.dtype}")
        rows = np.ascontiguousarray(rows, np.int64)  # of one number [1]
        position = self.kernels.first_absent(rows, self.marks, self.num_rows)
        if position >= 0 and rows.min() < 0:
            used = self.used()
            if rows.min() < -used:
                raise IndexError(f"index {rows.min()} is out of range: {used} rows hold transitions")
            rows = np.where(rows < 0, rows + used, rows)
            position = self.kernels.first_absent(rows, self.marks, self.num_rows)
        if position < 0:
            return rows
        absent = rows[position]
        if not 0 <= absent < self.num_rows:
            raise IndexError(f"indices must lie in 0 .. {self.num_rows - 1}, got {absent}")
        raise IndexError(f"there is no transition at {absent} yet")

    def checked_ids(self, buffer_ids: npt.ArrayLike) -> np.ndarray:
        """Return sub-buffers as int64 [n]; `ValueError` for those that there are not, and for one named twice."""
        ids = np.atleast_1d(np.asarray(buffer_ids))
        if ids.dtype.kind not in "iu" or ids.ndim != 1 or len(set(ids.tolist())) != len(ids):
            raise ValueError(f"buffer_ids must be different whole numbers, got {ids.tolist()}")
        if len(ids) and (ids.min() < 0 or ids.max() >= self.num_buffers):
            raise ValueError(f"buffer_ids={ids.tolist()}: there are {self.num_buffers} sub-buffers, counted from 0")
        return ids.astype(np.int64)

    def episode_bounds(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first and the last stored row of each row's episode, [N] each."""
        first, last = np.empty_like(rows), np.empty_like(rows)
        self.kernels.episode_bounds(rows, self.flags, self.newest, self.oldest, first, last)
        return first, last

    def draw(self, uniforms: np.ndarray) -> np.ndarray:
        """Return stored rows for numbers in [0, 1), each equally likely."""
        out = np.empty(len(uniforms), np.int64)
        self.kernels.draw_uniform(uniforms, self.count, out)
        return out

    def in_order(self) -> np.ndarray:
        """Return all stored rows, sub-buffer after sub-buffer, oldest first; int64 [len]."""
        out = np.empty(self.stored, np.int64)
        self.kernels.in_order(self.count, self.oldest, self.num_rows, out)
        return out

    def newest_rows(self, numbers: np.ndarray) -> list[np.ndarray]:
        """Return the `numbers` `[num_buffers]` rows written last in each sub-buffer, as far as they are stored, oldest
        first.
        """
        back = [np.arange(min(int(n), int(count)) - 1, -1, -1) for n, count in zip(numbers, self.count)]
        return [(row - self.num_buffers * steps) % self.num_rows for row, steps in zip(self.newest, back)]

    def by_buffer(self) -> list[np.ndarray]:
        """Return the stored rows of each sub-buffer, oldest first."""
        return np.split(self.in_order(), np.cumsum(self.count)[:-1])

    def get_state(self) -> dict[str, Any]:
        """Return copies of all marks; of `flags` only as far as rows were ever written."""
        return {
            "flags": self.flags[: self.used()].copy(),
            "returns": self.returns.copy(),
            **{name: getattr(self, name).copy() for name in (*_MARKS, "written")},
        }

    def used(self) -> int:
        """Return how many rows from the beginning of memory are in use."""
        return int(self.count.max()) * self.num_buffers

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go back to what `get_state` gave."""
        self.generation += 1
        self.flags[:] = 0
        self.flags[: len(state["flags"])] = state["flags"]
        for name in _MARKS:
            getattr(self, name)[:] = state[name]
        self.written[:] = state.get("written", self.count)
        self.returns = np.array(state["returns"])
        self.marks[7, 0] = self.count.sum()


_MARKS = ("newest", "oldest", "count", "inherits", "lengths", "starts")
