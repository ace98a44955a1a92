"""`Reader`: makes transitions of stored rows, with n-step sums, stacks of frames, sequences and relabelled goals."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from lockstep.data.columns import Columns
from lockstep.data.trees import Tree, leaves
from lockstep.options.checks import check_flags, check_whole, check_wholes, is_number
from lockstep.replay.flags import TERMINATED
from lockstep.replay.hindsight import Hindsight
from lockstep.replay.ring import Ring
from lockstep.replay.rows import REQUIRED
from lockstep.replay.storage import ColumnStore, SharedNextObs
from lockstep.state.streams import RandomStreams

OBS, NEXT_OBS, ACTIONS, REWARDS = Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS, Columns.REWARDS
TERMINATEDS, TRUNCATEDS = Columns.TERMINATEDS, Columns.TRUNCATEDS


@dataclass(frozen=True)
class ReadingOptions:
    """Options of `ReplayBuffer` that are plain values. Their meaning is in its docstring."""

    size: int
    buffer_num: int = 1
    stack_num: int = 1
    ignore_obs_next: bool = False
    save_only_last_obs: bool = False
    sample_avail: bool = False
    n_step: int = 1
    gamma: float = 0.99
    sequence_length: int | None = None
    burn_in: int = 0

    def __post_init__(self) -> None:
        check_wholes(size=self.size, buffer_num=self.buffer_num, stack_num=self.stack_num, n_step=self.n_step)
        flags = ("ignore_obs_next", "save_only_last_obs", "sample_avail")
        check_flags(**{name: getattr(self, name) for name in flags})
        if not (is_number(self.gamma) and 0.0 <= self.gamma <= 1.0):
            raise ValueError(f"gamma={self.gamma!r} is not allowed; it must lie in [0, 1]")
        if self.buffer_num > self.size:
            raise ValueError(f"size={self.size} is less than one row for each of buffer_num={self.buffer_num}")
        check_whole("sequence_length", self.sequence_length, 1, optional=True)
        check_whole("burn_in", self.burn_in, 0)
        if self.burn_in > (self.sequence_length or 0):
            raise ValueError(
                f"burn_in={self.burn_in} is more than sequence_length={self.sequence_length}: most of a sequence would "
                "not be learned from"
            )
        if self.sequence_length is not None and self.stack_num > 1:
            raise ValueError(f"stack_num={self.stack_num} does not go with sequence_length={self.sequence_length}")
        if self.sample_avail and self.stack_num == 1:
            raise ValueError("sample_avail=True chooses rows by their stacks; it needs stack_num of at least 2")

    def check_hindsight(self, hindsight: Hindsight | None) -> None:
        """Check that hindsight is not combined with sequences. `ValueError` if it is."""
        if hindsight is not None and self.sequence_length is not None:
            raise ValueError(
                f"sequence_length={self.sequence_length} does not go with hindsight: what is remembered was seen with "
                "another goal"
            )

    def keywords(self) -> dict[str, Any]:
        """Return all options but `size`, as keyword arguments of `ReplayBuffer`."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "size"}

    @property
    def rows_each(self) -> int:
        """Number of rows of one sub-buffer: `size / buffer_num`, rounded up."""
        return -(-self.size // self.buffer_num)


class Reader:
    """Makes transitions of the rows of a ring and its columns. It stores nothing itself.

    Args:
        ring: order of the rows, and boundaries of episodes.
        store: columns of the rows. They exist already.
        shared: next observations if each observation is stored once, otherwise None.
        options: how rows are read.
        streams: random numbers of the buffer; hindsight draws from its own stream.
    """

    def __init__(
        self,
        ring: Ring,
        store: ColumnStore,
        shared: SharedNextObs | None,
        options: ReadingOptions,
        streams: RandomStreams,
    ) -> None:
        self.ring = ring
        self.store = store
        self.shared = shared
        self.options = options
        self.streams = streams
        self.extras = [name for name in store.trees if name not in REQUIRED]
        """Names of the further columns that rows have."""
        rewards: np.ndarray = store.trees[REWARDS]
        self.agents = rewards.shape[1:]
        """Shape of the rewards of one row: `()`, or `(number of agents,)`."""
        self.rewards = rewards.reshape(ring.num_rows, -1)
        """View on the rewards of all rows, [num_rows, agents]: kernels know one shape only."""

    def plain(self, rows: np.ndarray, without: Collection[str] = ()) -> dict[str, Tree]:
        """Return the transitions at `rows` as they were added, in single frames and single steps.

        Args:
            rows: int64 [N].
            without: names of further columns that are left out.
        """
        take = self.store.take
        columns = {
            OBS: take(OBS, rows),
            NEXT_OBS: self.next_single(rows),
            ACTIONS: take(ACTIONS, rows),
            REWARDS: take(REWARDS, rows),
        }
        columns[TERMINATEDS], columns[TRUNCATEDS] = self.ring.ends(rows)
        for name in self.extras:
            if name not in without:
                columns[name] = take(name, rows)
        return columns

    def sequences(self, drawn: np.ndarray) -> tuple[dict[str, Tree], np.ndarray]:
        """Return the sequences that hold the drawn rows `[S]`.

        Returns:
            The columns of all rows, one sequence after another, and these rows, int64 `[N]`.

            The columns are those of a transition and `seq_lens` `[S]`; `state_in` `[S, ...]` if recurrent states are
            stored; and `loss_mask` `[N]`, False for burn-in. With n-step sums, `rewards`, `discounts` and the flags
            belong to up to n steps within the sequence, whose number is `num_steps` `[N]`. But `new_obs` is always the
            observation after one step: a recurrent network reads all observations in turn, and the learner then takes
            its output n steps ahead.
        """
        options = self.options
        rows, lengths, num_burned = self.ring.sequences(drawn, options.sequence_length or 1, options.burn_in)
        columns = self.plain(rows, without=(Columns.STATE_IN,))
        columns[Columns.SEQ_LENS] = lengths.astype(np.int32)

        starts = np.cumsum(lengths) - lengths
        if Columns.STATE_IN in self.extras:
            columns[Columns.STATE_IN] = self.store.take(Columns.STATE_IN, rows[starts])
        if options.burn_in:
            first_learned = np.repeat(starts + num_burned, lengths)
            columns[Columns.LOSS_MASK] = np.arange(len(rows)) >= first_learned
        if options.n_step > 1:
            self._sum_within_sequences(columns, rows, lengths)
        return columns, rows

    def _sum_within_sequences(self, columns: dict[str, Tree], rows: np.ndarray, lengths: np.ndarray) -> None:
        """Sum the rewards of up to n steps in place, with the flags after them; add `discounts` and `num_steps`."""
        options = self.options
        rewards = self.rewards.take(rows, 0)
        totals = np.empty((len(rows), self.rewards.shape[1]))
        discounts = np.empty(len(rows), np.float32)
        steps = np.empty(len(rows), np.int64)
        self.ring.kernels.n_step_within(rewards, lengths, options.gamma, options.n_step, totals, discounts, steps)

        last = rows[np.arange(len(rows)) + steps - 1]
        columns[REWARDS] = totals.astype(rewards.dtype).reshape(len(rows), *self.agents)
        columns[TERMINATEDS], columns[TRUNCATEDS] = self.ring.ends(last)
        columns[Columns.DISCOUNTS] = discounts
        columns[Columns.NUM_STEPS] = steps

    def columns(self, rows: np.ndarray, hindsight: Hindsight | None) -> dict[str, Tree]:
        """Return the transitions at `rows` as samples have them; with `hindsight` a share of them gets new goals."""
        ring, store, options = self.ring, self.store, self.options
        if options.n_step == options.stack_num == 1 and hindsight is None:
            return self.plain(rows)

        last = rows
        discounts = None
        if options.n_step == 1:
            rewards = store.trees[REWARDS].take(rows, 0)
        else:
            last, totals, discounts = ring.n_step(rows, self.rewards, options.gamma, options.n_step)
            rewards = totals.astype(self.rewards.dtype).reshape(len(rows), *self.agents)
        terminateds, truncateds = ring.ends(last)

        goals = None
        if hindsight is not None:
            rng = self.streams.numpy("hindsight")
            relabelled, last, goals = self._relabel(hindsight, rng, rows, last, rewards, discounts, terminateds)
            # The sum of a relabelled row may end earlier than the stored one, where the new goal is achieved.
            truncateds = ring.ends(last)[1]

        obs_rows = rows if options.stack_num == 1 else ring.stacked(rows, options.stack_num)
        columns = {
            OBS: store.take(OBS, obs_rows),
            NEXT_OBS: self._next_frames(last),
            ACTIONS: store.take(ACTIONS, rows),
            REWARDS: rewards,
            TERMINATEDS: terminateds,
            TRUNCATEDS: truncateds,
        }
        for name in self.extras:
            columns[name] = store.take(name, rows)
        if discounts is not None:
            columns[Columns.DISCOUNTS] = discounts

        if goals is not None:
            new_goals = goals if options.stack_num == 1 else goals[:, None]  # one goal for all frames of a stack
            for name in (OBS, NEXT_OBS):
                columns[name]["desired_goal"][relabelled] = new_goals
        return columns

    def _relabel(
        self,
        hindsight: Hindsight,
        rng: np.random.Generator,
        rows: np.ndarray,
        last: np.ndarray,
        rewards: np.ndarray,
        discounts: np.ndarray | None,
        terminateds: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Relabel a share of the rows: write their `rewards`, `discounts` and `terminateds` in place.

        Returns:
            The positions of the relabelled rows, the last rows of the sums of all rows, and the new goals.
        """
        ring, options = self.ring, self.options
        relabelled, goal_rows = hindsight.choose(ring, rows, rng)
        goals = self.next_single(goal_rows)["achieved_goal"]

        # Each of the n rewards depends on the goal, so that the stored sum of n steps is of no use here.
        window, lengths = ring.window(rows[relabelled], options.n_step)
        achieved = self.next_single(window.reshape(-1))["achieved_goal"]
        achieved = achieved.reshape(*window.shape, *achieved.shape[1:])
        stored = (ring.flags.take(window) & TERMINATED).view(np.bool_)
        new_rewards, new_terminateds = hindsight.judge(achieved, goals, stored)

        totals = np.empty(len(lengths), np.float64)
        factors = np.empty(len(lengths), np.float64)
        # Shortens `lengths` to the first step that terminates with the new goal.
        ring.kernels.sum_window(new_rewards, new_terminateds, lengths, options.gamma, totals, factors)

        last_step = (np.arange(len(lengths)), lengths - 1)
        last = last.copy()  # with n_step=1 this is the array of the rows themselves
        last[relabelled] = window[last_step]
        rewards[relabelled] = totals
        terminateds[relabelled] = new_terminateds[last_step]
        if discounts is not None:
            discounts[relabelled] = factors
        return relabelled, last, goals

    def _next_frames(self, rows: np.ndarray) -> Tree:
        """Return the true next observations of rows as samples have them, in stacks if the options say so."""
        newest = self.next_single(rows)
        if self.options.stack_num == 1:
            return newest

        # The stack after a row has the frames up to the row without the oldest one, and then the true next frame. The
        # stack of the next row would not do: at the end of an episode that belongs to another one. Rolling the indices
        # by one makes it one gather, whose last entry is overwritten.
        frames = self.store.take(OBS, np.roll(self.ring.stacked(rows, self.options.stack_num), -1, 1))
        for stack, frame in zip(leaves(frames), leaves(newest)):
            stack[:, -1] = frame
        return frames

    def next_single(self, rows: np.ndarray) -> Tree:
        """Return the true next observations of rows as they are stored, one frame each."""
        if self.shared is None:
            return self.store.take(NEXT_OBS, rows)
        return self.shared.take(rows)
