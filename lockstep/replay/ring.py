"""`Ring`: assigns rows to transitions, and knows the order of rows and the boundaries of episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from lockstep.data.trees import to_numpy_leaf
from lockstep.replay.flags import CUT, LOST


class AddedRows(Sequence[np.ndarray]):
    """Result of `ReplayBuffer.add`: `(indices, episode_return, episode_length, episode_start)`.

    Entries are in the order of the rows that were added.
    """

    __slots__ = ("_numbers", "destination")

    def __init__(self, numbers: np.ndarray, contiguous: bool) -> None:
        self._numbers = numbers  # int64 [3 + agents, n], the layout that the kernel `place` fills
        self.destination: slice | np.ndarray = numbers[0]
        """The same rows as `indices`, as a slice if they are contiguous in memory: writing to a slice is faster."""
        if contiguous and numbers.shape[1]:
            first = int(numbers[0, 0])
            self.destination = slice(first, first + numbers.shape[1])

    @property
    def indices(self) -> np.ndarray:
        """Row that each transition was written to, int64 [n]."""
        return self._numbers[0]

    @property
    def episode_return(self) -> np.ndarray:
        """Sum of rewards of the episode that ended with the row, otherwise 0; float64 [n], or [n, agents]."""
        returns = self._numbers[3:].view(np.float64)  # the kernel stores their bits among the integers
        return returns[0] if len(returns) == 1 else returns.T

    @property
    def episode_length(self) -> np.ndarray:
        """Number of steps of the episode that ended with the row, otherwise 0; int64 [n]."""
        return self._numbers[1]

    @property
    def episode_start(self) -> np.ndarray:
        """First row of the row's episode, -1 if the episode has overwritten it; int64 [n]."""
        return self._numbers[2]

    def __len__(self) -> int:
        return 4

    def __repr__(self) -> str:
        names = ("indices", "episode_return", "episode_length", "episode_start")
        return f"AddedRows({', '.join(f'{name}={value}' for name, value in zip(names, self))})"

    def __getitem__(self, position: SupportsIndex | slice) -> Any:
        return (self.indices, self.episode_return, self.episode_length, self.episode_start)[position]


class Ring:
    """Index arithmetic of a ring buffer: `size` positions for each of `num_buffers` sub-buffers.

    Position `p` of sub-buffer `b` is row `p * num_buffers + b`. A vector step that goes to all sub-buffers is therefore
    contiguous in memory. The row that follows `row` in time is `(row + num_buffers) % num_rows`. The ring does not
    know the content of the rows.

    Invariants, for each sub-buffer `b` and between calls:

    - The stored rows are the `count[b]` positions from `oldest[b]` to `newest[b]`, modulo `size`. While the sub-buffer
      is not full they begin at position 0, so that the rows in use are the first `used()` ones.
    - `flags` of a stored row is 0 exactly if its episode continues: in the next row, or, for the newest row, in the
      row that will be added next. No other row decides where an episode ends, and nothing (a return, an n-step sum, a
      stack of frames, a sequence) reaches over a row with another flag, nor over the newest or the oldest row.
    - Rows are overwritten from the oldest on, so an episode loses its beginning first. Where the first row left of an
      episode is not the episode's first, the ring remembers it: in `mid_episode[b]` for the oldest row, in the flag
      `LOST` of the row before for any other.
    """

    def __init__(self, size: int, num_buffers: int) -> None:
        from lockstep.replay import _kernels  # numba is loaded with the first ring

        self.kernels = _kernels
        self.size = size
        """Number of positions of each sub-buffer."""
        self.num_buffers = num_buffers
        """Number of sub-buffers, B."""
        self.num_rows = size * num_buffers
        """Number of rows of all sub-buffers."""
        self.flags = np.zeros(self.num_rows, np.uint8)
        """How each row ends its episode, a sum of the flags of `lockstep.replay.flags`; [num_rows]."""

        # All numbers of the sub-buffers are lines of one array: kernels take one argument, and the names are views.
        self.bookkeeping = np.zeros((8, num_buffers), np.int64)
        """Numbers of each sub-buffer, [8, B]. The lines have names here and in `_kernels`."""
        self.newest = self.bookkeeping[_kernels.NEWEST]
        """Newest row of each sub-buffer, -1 if it is empty."""
        self.oldest = self.bookkeeping[_kernels.OLDEST]
        """Oldest row of each sub-buffer, -1 if it is empty."""
        self.count = self.bookkeeping[_kernels.COUNT]
        """Number of stored rows of each sub-buffer."""
        self.mid_episode = self.bookkeeping[_kernels.MID_EPISODE]
        """1 where the oldest row of the sub-buffer continues an episode whose earlier rows are gone. In an empty
        sub-buffer this holds for the first row that will be added."""
        self.written = self.bookkeeping[_kernels.WRITTEN]
        """Number of rows ever written to each sub-buffer."""
        self.lengths = self.bookkeeping[_kernels.LENGTH]
        """Number of steps so far of the episode under way in each sub-buffer."""
        self.starts = self.bookkeeping[_kernels.START]
        """First row of the episode under way in each sub-buffer, -1 if it is overwritten."""
        self.returns = np.zeros((num_buffers, 1), np.float64)
        """Sum of rewards so far of the episodes under way, [B, agents]."""
        self.generation = 0
        """Number of times that all rows were dropped or replaced."""

        self.newest[:] = -1
        self.oldest[:] = -1
        self.starts[:] = -1

    @property
    def stored(self) -> int:
        """Number of rows that hold a transition."""
        return int(self.bookkeeping[self.kernels.STORED, 0])

    # ---- writing -----------------------------------------------------------------------------------------

    def clear(self, keep_statistics: bool) -> None:
        """Drop all rows. With `keep_statistics` the returns and lengths of the episodes under way continue.

        Such an episode has lost the rows before the next one, and with them frames for its stacks.
        """
        self.generation += 1
        # Read before the flags are zeroed: whether an episode is under way depends on them.
        self.mid_episode[:] = self.has_open_episode() if keep_statistics else 0
        self.flags[:] = 0
        self.newest[:] = -1
        self.oldest[:] = -1
        self.starts[:] = -1
        self.count[:] = 0
        self.bookkeeping[self.kernels.STORED] = 0
        if not keep_statistics:
            self.returns[:] = 0.0
            self.lengths[:] = 0

    def place(
        self, ids: np.ndarray, rewards: np.ndarray, terminateds: np.ndarray, truncateds: np.ndarray, cuts: np.ndarray
    ) -> AddedRows:
        """Assign rows to new transitions, one after another, and record how they end their episodes.

        Args:
            ids: sub-buffer of each transition, int64 [n].
            rewards: [n] or [n, agents].
            terminateds: bool [n].
            truncateds: bool [n].
            cuts: further flags of each row, uint8 [n]: `CUT` if its episode is left in the middle, `LOST`.
        """
        flat = rewards
        agents = 1
        if rewards.ndim > 1:
            flat = rewards.reshape(-1)
            agents = rewards.shape[1]
        if agents != self.returns.shape[1]:  # the number of agents is known from the first rows on
            self.returns = np.zeros((self.num_buffers, agents), np.float64)
        numbers = np.empty((3 + agents, len(ids)), np.int64)
        contiguous = self.kernels.place(
            ids, flat, terminateds, truncateds, cuts, self.flags, self.bookkeeping, self.returns, numbers
        )
        return AddedRows(numbers, contiguous)

    def cut(self, ids: np.ndarray, goes_on: bool = False) -> None:
        """Leave the episodes under way in these sub-buffers.

        With `goes_on` the rows that are added next belong to episodes whose rows in between are lost.
        """
        newest = self.newest[ids]
        stored = newest[newest >= 0]
        # A row that ends its episode by itself keeps its flag: being cut afterwards does not change how it ended.
        self.flags[stored[self.flags[stored] == 0]] = CUT
        self.flags[stored] = self.flags[stored] & ~np.uint8(LOST) | np.uint8(LOST * goes_on)
        # An empty sub-buffer has no row before the next one that could have the flag LOST.
        self.mid_episode[ids[newest < 0]] = goes_on
        self.returns[ids] = 0.0
        self.lengths[ids] = 0

    def has_open_episode(self) -> np.ndarray:
        """Return for each sub-buffer whether the next row continues an episode with stored or lost rows, bool [B]."""
        flags = self.flags[self.newest]
        return np.where(self.count > 0, (flags == 0) | (flags >= LOST), self.mid_episode != 0)

    # ---- neighbours of rows ------------------------------------------------------------------------------

    def next(self, rows: np.ndarray) -> np.ndarray:
        """Return the row after each row in its episode; the row itself at the episode's end and for the newest."""
        out = np.empty_like(rows)
        self.kernels.next_rows(rows, self.flags, self.newest, out)
        return out

    def prev(self, rows: np.ndarray) -> np.ndarray:
        """Return the row before each row in its episode; the row itself at the episode's start and for the oldest."""
        out = np.empty_like(rows)
        self.kernels.previous_rows(rows, self.flags, self.oldest, out)
        return out

    def ends(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return two bool arrays [N]: whether each row is terminated, and whether it is truncated."""
        out = np.empty((2, len(rows)), np.bool_)
        self.kernels.ends(rows, self.flags, out)
        return out[0], out[1]

    def starts_mid_episode(self, rows: np.ndarray) -> np.ndarray:
        """Return whether each row is the first one left of an episode whose earlier rows are gone, bool [N]."""
        buffers = rows % self.num_buffers
        is_oldest = rows == self.oldest[buffers]
        # For a row in the first position the index is negative and finds the last position, which is the one before.
        return np.where(is_oldest, self.mid_episode[buffers] != 0, self.flags[rows - self.num_buffers] >= LOST)

    def episode_bounds(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first and the last stored row of each row's episode, int64 [N] each."""
        first = np.empty_like(rows)
        last = np.empty_like(rows)
        self.kernels.episode_bounds(rows, self.flags, self.newest, self.oldest, first, last)
        return first, last

    # ---- groups of rows ----------------------------------------------------------------------------------

    def stacked(self, rows: np.ndarray, num_frames: int) -> np.ndarray:
        """Return the rows whose frames make each row's stack, int64 [N, num_frames], oldest first."""
        out = np.empty((len(rows), num_frames), np.int64)
        self.kernels.stack_rows(rows, self.flags, self.oldest, out)
        return out

    def can_be_stacked(self, rows: np.ndarray, num_frames: int, need_all: bool) -> np.ndarray:
        """Return whether the frames of each row's stack are stored, bool [N].

        A stack at the beginning of an episode repeats the first frame. With `need_all` such a stack does not count:
        its frames must be different rows.
        """
        out = np.empty(len(rows), np.bool_)
        self.kernels.can_be_stacked(rows, self.flags, self.oldest, self.mid_episode, num_frames, need_all, out)
        return out

    def n_step(self, rows: np.ndarray, rewards: np.ndarray, gamma: float, n: int) -> tuple[np.ndarray, ...]:
        """Return the discounted sums of rewards over up to `n` steps from each row.

        Args:
            rows: int64 [N].
            rewards: the rewards of all rows of the ring, [num_rows, agents].
            gamma: discount of a step.
            n: number of steps at most.

        Returns:
            The last row of each sum, [N]; the sums, float64 [N, agents]; and `gamma` to the number of steps, float32
            [N].
        """
        last = np.empty_like(rows)
        discounts = np.empty(len(rows), np.float32)
        totals = np.empty((len(rows), rewards.shape[1]), np.float64)
        self.kernels.n_step(rows, rewards, self.flags, self.newest, gamma, n, last, totals, discounts)
        return last, totals, discounts

    def window(self, rows: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return up to `n` rows of the episode from each row on, [N, n], and how many there are, [N]."""
        out = np.empty((len(rows), n), np.int64)
        lengths = np.empty(len(rows), np.int64)
        self.kernels.window(rows, self.flags, self.newest, out, lengths)
        return out, lengths

    def sequences(self, rows: np.ndarray, length: int, burn_in: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the sequences that hold the given rows.

        Each episode is cut into sequences of `length` rows, from its first stored row on; the last one may be shorter.
        Up to `burn_in` rows of the same episode come before each sequence.

        Returns:
            The rows of all sequences with their burn-in, one sequence after another, [M]; the number of rows of each
            sequence, burn-in included, [N]; and the number of its burn-in rows, [N].
        """
        first, before, total = np.empty((3, len(rows)), np.int64)
        self.kernels.sequences(rows, self.flags, self.newest, self.oldest, length, burn_in, first, before, total)
        ends = np.cumsum(total)
        steps = np.arange(ends[-1]) - np.repeat(ends - total, total)  # 0, 1, 2, ... within each sequence
        return (np.repeat(first, total) + steps * self.num_buffers) % self.num_rows, total, before

    # ---- choosing and checking rows ----------------------------------------------------------------------

    def draw(self, uniforms: np.ndarray) -> np.ndarray:
        """Return a stored row for each number in [0, 1), all rows being equally likely."""
        out = np.empty(len(uniforms), np.int64)
        self.kernels.draw_uniform(uniforms, self.count, out)
        return out

    def in_order(self) -> np.ndarray:
        """Return all stored rows, sub-buffer after sub-buffer, oldest first; int64 [stored]."""
        out = np.empty(self.stored, np.int64)
        self.kernels.in_order(self.count, self.oldest, self.num_rows, out)
        return out

    def by_buffer(self) -> list[np.ndarray]:
        """Return the stored rows of each sub-buffer, oldest first."""
        return np.split(self.in_order(), np.cumsum(self.count)[:-1])

    def newest_rows(self, numbers: np.ndarray) -> list[np.ndarray]:
        """Return the newest `numbers[b]` rows of each sub-buffer `b`, or all if fewer are stored; oldest first."""
        rows = []
        for newest, count, number in zip(self.newest, self.count, numbers):
            steps_back = np.arange(min(int(number), int(count)) - 1, -1, -1)
            rows.append((newest - self.num_buffers * steps_back) % self.num_rows)
        return rows

    def used(self) -> int:
        """Return the number of rows from the beginning of memory up to the last one in use."""
        return int(self.count.max()) * self.num_buffers

    def checked(self, indices: npt.ArrayLike) -> np.ndarray:
        """Return `indices` as int64 [N], after a check that these rows hold transitions.

        Negative indices count back from the end of the rows in use, as in an array. `IndexError` for others.
        """
        rows = np.asarray(to_numpy_leaf(indices))
        if rows.ndim > 1 or (rows.dtype.kind not in "iu" and rows.size):
            raise IndexError(f"indices must be whole numbers [N], got shape {rows.shape} of {rows.dtype}")
        rows = np.ascontiguousarray(rows, np.int64)  # makes [1] of a single number
        position = self.kernels.first_absent(rows, self.bookkeeping, self.num_rows)

        # Negative indices are rare: only a failed check looks for them.
        if position >= 0 and rows.min() < 0:
            used = self.used()
            if rows.min() < -used:
                raise IndexError(f"index {rows.min()} is out of range: {used} rows hold transitions")
            rows = np.where(rows < 0, rows + used, rows)
            position = self.kernels.first_absent(rows, self.bookkeeping, self.num_rows)

        if position < 0:
            return rows
        absent = rows[position]
        if not 0 <= absent < self.num_rows:
            raise IndexError(f"indices must lie in 0 .. {self.num_rows - 1}, got {absent}")
        raise IndexError(f"there is no transition at {absent} yet")

    def checked_ids(self, buffer_ids: npt.ArrayLike) -> np.ndarray:
        """Return sub-buffers as int64 [n]. `ValueError` for one that does not exist or is named twice."""
        ids = np.atleast_1d(np.asarray(buffer_ids))
        if ids.dtype.kind not in "iu" or ids.ndim != 1 or len(set(ids.tolist())) != len(ids):
            raise ValueError(f"buffer_ids must be different whole numbers, got {ids.tolist()}")
        if len(ids) and (ids.min() < 0 or ids.max() >= self.num_buffers):
            raise ValueError(f"buffer_ids={ids.tolist()}: there are {self.num_buffers} sub-buffers, counted from 0")
        return ids.astype(np.int64)

    # ---- state -------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return copies of the bookkeeping, and of the flags of the rows in use."""
        bookkeeping = {key: getattr(self, name).copy() for key, name in _SAVED.items()}
        return {
            "flags": self.flags[: self.used()].copy(),
            "returns": self.returns.copy(),
            **bookkeeping,
            "written": self.written.copy(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""
        self.generation += 1
        self.flags[:] = 0
        self.flags[: len(state["flags"])] = state["flags"]
        for key, name in _SAVED.items():
            getattr(self, name)[:] = state[key]
        # States of earlier versions do not have `written`; it only ever has to grow.
        self.written[:] = state.get("written", self.count)
        self.returns = np.array(state["returns"])
        self.bookkeeping[self.kernels.STORED, 0] = self.count.sum()


_SAVED = {
    "newest": "newest",
    "oldest": "oldest",
    "count": "count",
    "inherits": "mid_episode",
    "lengths": "lengths",
    "starts": "starts",
}
"""Attributes of `Ring` by their keys in its state."""
