"""`WholeSteps`: the short way into a buffer for what a collector adds, step after step."""

from __future__ import annotations

from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from lockstep.data.columns import Columns
from lockstep.replay.intake import Intake
from lockstep.replay.ring import Placed, Ring
from lockstep.replay.storage import ColumnStore

MAX_BYTES = 4096
"""a larger step is written faster column by column than copied twice"""
_INT64 = np.dtype(np.int64)
_kind, _num_columns = attrgetter("dtype", "shape"), dict.__len__


class WholeSteps:
    """Adds a transition to each sub-buffer in one compiled call, where the rows given are arrays that fit the columns
    as they are.

    What it adds is what `Intake` and `Ring.place` would have added; anything else is left to them.
    """

    def __init__(self, intake: Intake, ring: Ring, store: ColumnStore) -> None:
        self.ring, self._kernel = ring, ring.kernels.place_step
        self._memory, self._layout, self._placed_shape = store.memory, store.layout, (4, ring.num_buffers)
        self._get, self._number = itemgetter(*intake.names), len(intake.names)
        kinds = [_kind(np.empty((ring.num_buffers, *leaf.shape), leaf.dtype)) for leaf in intake.leaves]
        self._kinds = tuple(part for kind in kinds[:3] + kinds[-3:] for part in kind)
        self._more_kinds, self._all_kinds = kinds[3:-3], kinds

    @classmethod
    def of(cls, intake: Intake, ring: Ring, store: ColumnStore) -> WholeSteps | None:
        """None for files, nested or large observations, several rewards, and next observations that are shared."""
        plain = all(len(leaf.keys) == 1 for leaf in intake.leaves) and len(intake.leaves) == len(store.leaves) + 2
        small = store.layout[:, 1].sum() * ring.num_buffers <= MAX_BYTES
        one_reward = not store.leaves[intake.reward_at].shape
        return cls(intake, ring, store) if plain and small and one_reward and len(store.memory) else None

    def add(self, batch: Any) -> Placed | None:
        """As `ReplayBuffer.add`; None, and nothing is written, where the rows need more than copying or do not fit."""
        try:
            values = self._get(batch)
            obs, actions, rewards, *more, new_obs, terminateds, truncateds = values
            kinds = (
                obs.dtype, obs.shape, actions.dtype, actions.shape, rewards.dtype, rewards.shape, new_obs.dtype,
                new_obs.shape, terminateds.dtype, terminateds.shape, truncateds.dtype, truncateds.shape,
            )  # fmt: skip
            if kinds != self._kinds or (more and [*map(_kind, more)] != self._more_kinds):
                return None
            if _num_columns(batch) != self._number:
                return None
            packed = b"".join(values)
        except (KeyError, TypeError, AttributeError, BufferError):  # no column, no dict, no array, not in one piece
            return None
        ring, numbers = self.ring, np.empty(self._placed_shape, _INT64)
        self._kernel(rewards, packed, ring.flags, ring.marks, ring.returns, numbers, self._memory, self._layout)
        return Placed(numbers)

    def add_steps(self, batch: Any) -> Placed | None:
        """`add` for each of T vector steps, columns [T, B, ...] of arrays; entries are of all T * B rows."""
        try:
            values = self._get(batch)
            num_steps = len(values[0])
            fit = [_kind(value[0]) for value in values] == self._all_kinds and _num_columns(batch) == self._number
            if not fit or any(len(value) != num_steps for value in values):
                return None
            packed = b"".join(values)
        except (KeyError, TypeError, AttributeError, BufferError, IndexError):
            return None
        ring, numbers = self.ring, np.empty((num_steps, *self._placed_shape), _INT64)
        rewards = batch[Columns.REWARDS].reshape(-1)
        ring.kernels.place_steps(
            rewards, packed, ring.flags, ring.marks, ring.returns, numbers, self._memory, self._layout
        )
        return Placed(numbers.transpose(1, 0, 2).reshape(4, -1))
