"""`Reader`: stored rows as transitions, with n-step sums, stacks of frames and relabelled goals made on the way."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from lockstep.data.columns import Columns
from lockstep.data.trees import Tree, leaves
from lockstep.options.checks import check_flags, check_whole, check_wholes, is_number
from lockstep.replay.hindsight import Hindsight
from lockstep.replay.ring import TERMINATED, Ring
from lockstep.replay.rows import REQUIRED
from lockstep.replay.storage import ColumnStore, SharedNextObs
from lockstep.state.streams import RandomStreams

OBS, NEXT_OBS, ACTIONS, REWARDS = Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS, Columns.REWARDS
TERMINATEDS, TRUNCATEDS = Columns.TERMINATEDS, Columns.TRUNCATEDS


@dataclass(frozen=True)
class ReadingOptions:
    """The options of `ReplayBuffer` that are plain values; see there."""

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
        """Raise `ValueError` for hindsight in sequences."""
        if hindsight is not None and self.sequence_length is not None:
            raise ValueError(
                f"sequence_length={self.sequence_length} does not go with hindsight: what is remembered was seen with "
                "another goal"
            )

    def keywords(self) -> dict[str, Any]:
        """Return the options as keywords of `ReplayBuffer`, all but `size`."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "size"}

    @property
    def rows_each(self) -> int:
        """Rows of one sub-buffer."""
        return -(-self.size // self.buffer_num)


class Reader:
    """Makes transitions of the rows of a ring and its columns; stores nothing itself."""

    def __init__(
        self,
        ring: Ring,
        store: ColumnStore,
        shared: SharedNextObs | None,
        options: ReadingOptions,
        streams: RandomStreams,
    ) -> None:
        self.ring, self.store, self.shared = ring, store, shared
        self.options, self.streams = options, streams
        self.extras = [name for name in store.trees if name not in REQUIRED]
        rewards: np.ndarray = store.trees[REWARDS]
        self.agents = rewards.shape[1:]
        """() or (number of agents,)"""
        self.rewards = rewards.reshape(ring.num_rows, -1)

    def plain(self, rows: np.ndarray, without: Collection[str] = ()) -> dict[str, Tree]:
        """Return the transitions at `rows` as they were added: single frames, single steps; `without` these columns."""
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
        """Return the sequences that hold the rows `drawn` `[S]`, one after another, and the rows of all `[N]`.

        With columns `seq_lens` `[S]`; `state_in` `[S, ...]` where states are stored; `loss_mask`, False for burn-in. Of
        n steps `rewards`, `discounts` and flags are, and `num_steps` says how many they were: none leaves its sequence.
        `new_obs` is the observation after one step.
        """
        options = self.options
        rows, lengths, burned = self.ring.sequences(drawn, options.sequence_length or 1, options.burn_in)
        columns = self.plain(rows, without=(Columns.STATE_IN,))
        columns[Columns.SEQ_LENS] = lengths.astype(np.int32)
        starts = np.cumsum(lengths) - lengths
        if Columns.STATE_IN in self.extras:
            columns[Columns.STATE_IN] = self.store.take(Columns.STATE_IN, rows[starts])
        if options.burn_in:
            columns[Columns.LOSS_MASK] = np.arange(len(rows)) >= np.repeat(starts + burned, lengths)
        if options.n_step > 1:
            totals, discounts = np.empty((len(rows), self.rewards.shape[1])), np.empty(len(rows), np.float32)
            steps = np.empty(len(rows), np.int64)
            rewards = self.rewards.take(rows, 0)
            self.ring.kernels.n_step_within(rewards, lengths, options.gamma, options.n_step, totals, discounts, steps)
            columns[REWARDS] = totals.astype(rewards.dtype).reshape(len(rows), *self.agents)
            columns[TERMINATEDS], columns[TRUNCATEDS] = self.ring.ends(rows[np.arange(len(rows)) + steps - 1])
            columns[Columns.DISCOUNTS], columns[Columns.NUM_STEPS] = discounts, steps
        return columns, rows

    def columns(self, rows: np.ndarray, hindsight: Hindsight | None) -> dict[str, Tree]:
        """Return the transitions at `rows` as they are drawn; with `hindsight` a share of them gets other goals."""
        ring, store, options = self.ring, self.store, self.options
        if options.n_step == options.stack_num == 1 and hindsight is None:
            return self.plain(rows)
        last, discounts = rows, None
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
            truncateds = ring.ends(last)[1]
        columns = {
            OBS: store.take(OBS, rows if options.stack_num == 1 else ring.stacked(rows, options.stack_num)),
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
            for name in (OBS, NEXT_OBS):
                wanted = columns[name]["desired_goal"]
                wanted[relabelled] = goals if options.stack_num == 1 else goals[:, None]
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
        """Write rewards, discounts and flags of relabelled rows in place; return which rows these are, the last rows of
        all windows, and the new goals.
        """
        ring, options = self.ring, self.options
        relabelled, goal_rows = hindsight.choose(ring, rows, rng)
        goals = self.next_single(goal_rows)["achieved_goal"]
        window, lengths = ring.window(rows[relabelled], options.n_step)
        achieved = self.next_single(window.reshape(-1))["achieved_goal"]
        achieved = achieved.reshape(*window.shape, *achieved.shape[1:])
        stored = (ring.flags.take(window) & TERMINATED).view(np.bool_)
        found, ended = hindsight.judge(achieved, goals, stored)
        totals, factors = np.empty(len(lengths), np.float64), np.empty(len(lengths), np.float64)
        ring.kernels.sum_window(found, ended, lengths, options.gamma, totals, factors)
        at_last = (np.arange(len(lengths)), lengths - 1)
        last = last.copy()
        last[relabelled] = window[at_last]
        rewards[relabelled] = totals
        terminateds[relabelled] = ended[at_last]
        if discounts is not None:
            discounts[relabelled] = factors
        return relabelled, last, goals

    def _next_frames(self, rows: np.ndarray) -> Tree:
        """Return true next observations as they are drawn."""
        newest = self.next_single(rows)
        if self.options.stack_num == 1:
            return newest
        # the frames up to these rows but for the oldest, whose place at the end the newest takes: one gather
        frames = self.store.take(OBS, np.roll(self.ring.stacked(rows, self.options.stack_num), -1, 1))
        for stack, frame in zip(leaves(frames), leaves(newest)):
            stack[:, -1] = frame
        return frames

    def next_single(self, rows: np.ndarray) -> Tree:
        """Return true next observations as they are stored: one frame each."""
        return self.store.take(NEXT_OBS, rows) if self.shared is None else self.shared.take(rows)
