"""`ReplayBuffer`: transitions are added at one end and drawn at random; its combinations by their usual names."""

from __future__ import annotations

import copy
import math
import operator
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from lockstep.data.actions import ActionForm, describe_actions
from lockstep.data.columns import DEFAULT_MODULE_ID, Columns
from lockstep.data.digests import digest_of_rows
from lockstep.data.files.minari import read_minari_batch, write_minari
from lockstep.data.row_source import RowSource
from lockstep.data.sample_batch import SampleBatch
from lockstep.data.trees import Tree, leaves, map_tree, to_numpy_leaf
from lockstep.options.checks import is_whole
from lockstep.replay.hindsight import KEYS, GoalFunction, Hindsight
from lockstep.replay.priorities import Priorities
from lockstep.replay.reading import Reader, ReadingOptions
from lockstep.replay.ring import CUT, LOST, TERMINATED, TRUNCATED, Placed, Ring
from lockstep.replay.rows import (
    REQUIRED,
    check_columns,
    episodes_in,
    null_rows,
    read_table,
    spread,
    table_format,
    unpadded,
    vector_steps_as_rows,
)
from lockstep.replay.storage import (
    CheckpointPieces,
    ColumnStore,
    RowForm,
    Shape,
    SharedNextObs,
    frame_shapes,
    schema_of,
    shapes_of_space,
)
from lockstep.state import CheckpointError, ScheduleLike, read_checkpoint, write_checkpoint
from lockstep.state.sizes import ClaimedSizeError, check_claim, claims_of, count_of
from lockstep.state.streams import RandomStreams

if TYPE_CHECKING:
    from lockstep.replay.typed import AnyBufferOptions, BufferOptions, VectorBufferOptions

NOT_STORED = (Columns.EPS_ID, Columns.T, Columns.INFOS, Columns.DONES, Columns.BATCH_INDEXES, Columns.SEQ_LENS)
"""columns of a batch that `extend` leaves out"""
CHUNK = 65_536
"""rows that are looked at or copied at once"""


class ReplayBuffer(RowSource):
    """A ring of transitions in columns, for one environment or, with `buffer_num`, a vector of them.

    `size` is the number of transitions in all; each of the `buffer_num` sub-buffers holds `size / buffer_num` of them
    (rounded up). The oldest are overwritten. An index names a row of the whole buffer.

    The columns are made from the spaces or from the first rows added. Observations may be nested.

    Args:
        stack_num: observations are given out as the last `stack_num` frames of the episode, [N, stack_num, ...]. The
            first frame of an episode fills its stack; rows whose earlier frames were overwritten are not drawn.
        sample_avail: draw only rows with `stack_num` different frames.
        ignore_obs_next: store each observation once. The next observation is the next row's, or, at the end of an
            episode, kept beside: it is always the true one.
        save_only_last_obs: observations come as stacks [n, frames, ...]; only the last frame is stored.
        n_step: `rewards` are sums over up to `n_step` steps, discounted with `gamma`; `new_obs`, `terminateds` and
            `truncateds` are those of the last of these steps, and the column `discounts` is `gamma` to the number of
            steps: `target = rewards + discounts * ~terminateds * V(new_obs)`. Nothing reaches over the end of an
            episode, a boundary (`cut`), or the newest row.
        sequence_length: `sample` gives sequences of up to so many rows, for networks with memory: episodes are cut from
            their beginning, and each row is equally likely to be among those given out. The column `state_in` is the
            recurrent state before a sequence, where the rows that were added have one.
        burn_in: so many rows of the episode come before a sequence; `loss_mask` is False there.
        seed: of everything drawn here.
        storage: "memory", or "memmap" for files in `directory` (a temporary one where None).
        observation_space, action_space: make the columns at once instead of from the first rows.
        buffer_num: number of sub-buffers, one for each environment.
        priorities: `{"alpha": .., "beta": .., "epsilon": ..}` for prioritised drawing, see `Priorities`.
        hindsight: relabels goals when drawing, see `Hindsight`.
        action_form: how the actions stored differ from the environment's, `policy.action_form` (a collector tells its
            buffer); None: not at all. Batches, files and datasets hold the environment's: they are translated.

    Raises:
        ValueError: an option that is not allowed, or two that contradict each other.
    """

    def __init__(
        self,
        size: int,
        *,
        stack_num: int = 1,
        ignore_obs_next: bool = False,
        save_only_last_obs: bool = False,
        sample_avail: bool = False,
        n_step: int = 1,
        gamma: float = 0.99,
        sequence_length: int | None = None,
        burn_in: int = 0,
        seed: int = 0,
        storage: str = "memory",
        directory: str | Path | None = None,
        observation_space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
        buffer_num: int = 1,
        priorities: Mapping[str, Any] | None = None,
        hindsight: Hindsight | None = None,
        action_form: ActionForm | None = None,
    ) -> None:
        self.options = ReadingOptions(
            size,
            buffer_num,
            stack_num,
            ignore_obs_next,
            save_only_last_obs,
            sample_avail,
            n_step,
            gamma,
            sequence_length,
            burn_in,
        )
        self.options.check_hindsight(hindsight)
        self.ring = Ring(self.options.rows_each, buffer_num)
        """which row each transition has, and where episodes end"""
        self.store = ColumnStore(self.ring.num_rows, storage, directory)
        """the columns; none before they are known"""
        self.priorities = None if priorities is None else Priorities(self.ring.num_rows, **priorities)
        self.hindsight, self.action_form = hindsight, action_form
        self.streams = RandomStreams(seed)
        self.num_added = 0
        """rows added in all; schedules of beta go by it"""
        self.reader: Reader
        """what makes transitions of rows; there once the columns are known"""
        self._next_obs: SharedNextObs | None = None
        self._every, self._no_cuts = np.arange(buffer_num, dtype=np.int64), np.zeros(buffer_num, np.uint8)
        if (observation_space is None) != (action_space is None):
            raise ValueError("give both observation_space and action_space, or none of them")
        if observation_space is not None and action_space is not None:
            obs = shapes_of_space(observation_space)
            actions, rewards = shapes_of_space(action_space), Shape((), np.dtype(np.float32))
            self._create(
                {
                    Columns.OBS: frame_shapes(obs) if save_only_last_obs else obs,
                    Columns.ACTIONS: actions,
                    Columns.REWARDS: rewards,
                }
            )

    # ---- sizes -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of transitions stored."""
        return self.ring.stored

    @property
    def maxsize(self) -> int:
        """Number of transitions that fit."""
        return self.ring.num_rows

    @property
    def buffer_num(self) -> int:
        """Number of sub-buffers."""
        return self.ring.num_buffers

    @property
    def schema(self) -> dict[str, Tree]:
        """Shape and dtype of a row of each stored column; empty before they are known."""
        return self.store.shapes()

    def nbytes(self) -> int:
        """Return the bytes of the columns."""
        return self.store.nbytes()

    def expected_bytes(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], state_bytes: int
    ) -> int:
        if self.nbytes():
            return self.nbytes()
        options = {**self.options.keywords(), "storage": "memory"}
        small = ReplayBuffer(
            2 * self.buffer_num, **options, observation_space=observation_space, action_space=action_space
        )
        return (small.nbytes() // small.maxsize + state_bytes) * self.maxsize

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} of {self.maxsize} rows, {self.buffer_num} sub-buffers)"

    # ---- writing -----------------------------------------------------------------------------------------

    def add(self, batch: Mapping[str, Any], buffer_ids: npt.ArrayLike | None = None) -> Placed:
        """Add one transition to each sub-buffer, or to those of `buffer_ids`.

        Args:
            batch: `obs`, `actions`, `rewards`, `terminateds`, `truncateds`, `new_obs` (the true next observation, also
                where an episode ended) and any further columns of numbers, one row for each sub-buffer.
            buffer_ids: int [n], different ones; None means all.

        Returns:
            `(indices, episode_return, episode_length, episode_start)`, see `Placed`.

        Raises:
            KeyError: a column is missing or new. Nothing is written then.
            ValueError: rows that do not fit the column (with the expected and the given shape and dtype), or ids that
                are not allowed. Nothing is written then.
        """
        ids = self._every if buffer_ids is None else self.ring.checked_ids(buffer_ids)
        return self._write(ids, self._arrays_of(batch, len(ids), self.options.save_only_last_obs), self._no_cuts)

    def add_steps(self, batch: Mapping[str, Any]) -> None:
        """Add T vector steps, columns [T, buffer_num, ...], as `add` would one after another. Errors as `add`."""
        num_steps, number = len(batch[Columns.REWARDS]), self.buffer_num
        if num_steps == 1 or self.options.ignore_obs_next or type(self).add is not ReplayBuffer.add:
            for t in range(num_steps):
                self.add(map_tree(operator.itemgetter(t), dict(batch)))
            return
        columns = map_tree(vector_steps_as_rows, dict(batch))
        arrays = self._arrays_of(columns, num_steps * number, self.options.save_only_last_obs)
        at_once = self.ring.num_rows  # no row twice
        for start in range(0, num_steps * number, at_once):
            part = [array[start : start + at_once] for array in arrays]
            num_rows = len(part[0])
            self._write(np.arange(num_rows) % number, part, np.zeros(num_rows, np.uint8))

    def cut(self, buffer_ids: npt.ArrayLike | None = None, *, goes_on: bool = False) -> None:
        """Write a boundary: the episodes under way in these sub-buffers (None: in all) are left here.

        To be called when environments are reset in the middle of an episode. The newest rows become neither
        terminated nor truncated; no return, n-step target or stack of frames crosses the boundary. With `goes_on` the
        episodes go on and rows of them are left out: the rows that come next lack their earlier frames.
        """
        self.ring.cut(self._every if buffer_ids is None else self.ring.checked_ids(buffer_ids), goes_on)

    def reset(self, keep_statistics: bool = False) -> None:
        """Empty the buffer; with `keep_statistics` episodes under way go on, as do their returns and lengths."""
        self.ring.clear(keep_statistics)
        if self._next_obs is not None:
            self._next_obs.clear()
        if self.priorities is not None:
            self.priorities.clear()

    def extend(self, batch: Mapping[str, Any]) -> np.ndarray:
        """Add many transitions in time order, single frames; each episode goes to one sub-buffer.

        An episode ends where `terminateds` or `truncateds` say so, where `eps_id` or `agent_id` changes, where `t` does
        not grow, and at the last row. Padding of sequences is left out. `eps_id`, `t`, `infos`, `dones`, `seq_lens`
        and `batch_indexes` are not stored. Episodes under way in the sub-buffers that are written to are left (`cut`).

        Returns:
            Where each row was written, int64 [n]; of more rows than fit the last ones stay. Errors as `add`.
        """
        check_columns(batch)
        batch = unpadded(batch)
        columns = {name: column for name, column in batch.items() if name not in NOT_STORED}
        number = len(np.asarray(columns[Columns.REWARDS]))
        index = np.empty(number, np.int64)
        if not number:
            return index
        if self.action_form is not None:
            columns[Columns.ACTIONS] = self.action_form.from_env(np.asarray(columns[Columns.ACTIONS]))
        lengths, cuts = episodes_in(batch)
        owner = spread(lengths, self.ring.count)
        plain = SampleBatch(columns)
        for b in range(self.buffer_num):
            rows = np.flatnonzero(np.repeat(owner == b, lengths))
            if len(rows):
                self.cut([b])
                part = plain if len(rows) == number else plain[rows]
                index[rows] = self._append(part, b, np.where(cuts[rows], CUT, 0).astype(np.uint8))
        return index

    def update(self, other: ReplayBuffer, *, replace_all: bool = False) -> np.ndarray:
        """Copy all transitions of another buffer with the same columns, of its sub-buffer `b` to `b % buffer_num`.

        Boundaries are kept and written before and after. With `replace_all` this buffer is emptied first, once it is
        known that the rows fit. Returns the new indices, int64. Errors as `add`.
        """
        if other.ring is self.ring:
            raise ValueError("a buffer cannot be updated with itself, nor with another view of its rows")
        if not len(self) and self.action_form is None:
            form = other.action_form
        elif other.action_form == self.action_form:
            form = self.action_form
        else:
            raise ValueError(
                f"the buffer holds {describe_actions(self.action_form)}, the other one "
                f"{describe_actions(other.action_form)}; "
                "extend(other.to_batch()) translates them; where they are the same already, set its action_form"
            )
        if self.schema != other.schema:
            for piece in other.pieces():  # before anything is written
                self._arrays_of(piece, len(piece[Columns.REWARDS]), False)
        self.action_form = form
        if replace_all:
            self.reset()
        found = [self._copy_rows(other, rows, b % self.buffer_num) for b, rows in enumerate(other.ring.by_buffer())]
        return np.concatenate(found)

    def hasnull(self) -> bool:
        """Return whether any transition holds a NaN."""
        return any(null_rows(piece).any() for piece in self.pieces())

    def dropnull(self) -> int:
        """Drop the transitions that hold a NaN and return how many there were.

        Indices change. A boundary stands where one was dropped, and no stack of frames reaches over it.
        """
        if not self.hasnull():
            return 0
        whole, num_added = copy.copy(self), self.num_added
        self.reset()
        goes_on = whole.ring.go_on()
        for b, rows in enumerate(whole.ring.by_buffer()):
            null = [null_rows(whole.reader.plain(rows[k : k + CHUNK])) for k in range(0, len(rows), CHUNK)]
            kept = rows[~np.concatenate(null)] if len(rows) else rows
            index = self._copy_rows(whole, kept, b)
            if self.priorities is not None and whole.priorities is not None:
                self.priorities.tree[index] = whole.priorities.tree[kept]
            newest = whole.ring.newest[b]
            if len(kept) and kept[-1] == newest and whole.ring.flags[newest] == 0:
                self._keep_open(whole, b, kept, index)
            elif goes_on[b]:
                self.cut([b], goes_on=True)
        self.num_added = num_added
        return len(whole) - len(self)

    def _write(self, ids: np.ndarray, arrays: Sequence[np.ndarray], cuts: np.ndarray) -> Placed:
        """Write rows: of different sub-buffers, in time order of one, or (next observations stored) vector steps."""
        ring, form, next_obs = self.ring, self._form, self._next_obs
        terminateds, truncateds = arrays[-2], arrays[-1]
        ends = None
        if next_obs is not None:
            obs, new_obs = arrays[: form.num_obs], arrays[form.num_stored : -2]
            if len(ids) > 1 and ids[0] == ids[1]:  # one after another
                ends = terminateds | truncateds | (cuts != 0)
                cuts = cuts | next_obs.breaks(obs, new_obs, ends) * np.uint8(CUT)
                ends |= cuts != 0
                next_obs.before(ids[:1], [leaf[:1] for leaf in obs])
            else:
                next_obs.before(ids, obs)
        placed = ring.place(ids, arrays[form.reward_at], terminateds, truncateds, cuts)
        rows, place = placed.indices, placed.place
        for leaf, array in zip(self.store.leaves, arrays):
            leaf.array[place] = array
        if next_obs is not None:
            next_obs.after(ids, rows, new_obs, ends)
        if self.priorities is not None:
            self.priorities.add(rows)
        self.num_added += len(ids)
        return placed

    def _arrays_of(self, batch: Mapping[str, Any], number: int, last_frame: bool) -> list[np.ndarray]:
        """Return rows as arrays in the order in which `_write` takes them; the first rows make the columns."""
        if not self.store.leaves:
            self._create(schema_of(batch, last_frame))
        return self._form.arrays_of(batch, number, last_frame)

    def _append(self, batch: Mapping[str, Any], buffer_id: int, cuts: np.ndarray) -> np.ndarray:
        """Add rows one after another to one sub-buffer, with further flags `cuts`; return their indices."""
        number, size = len(np.asarray(batch[Columns.REWARDS])), self.ring.size
        arrays = self._arrays_of(batch, number, False)
        index = np.empty(number, np.int64)
        for start in range(0, number, size):
            piece = slice(start, start + size)
            part = [array[piece] for array in arrays]
            index[piece] = self._write(np.full(len(part[0]), buffer_id), part, cuts[piece].copy()).indices
        return index

    def _copy_rows(self, source: ReplayBuffer, rows: np.ndarray, buffer_id: int) -> np.ndarray:
        """Append stored rows, in this order and of one sub-buffer of `source`, to a sub-buffer; return their indices.

        Episodes under way here are left before, those of the last row after. A row whose predecessor is not copied
        begins an episode of which the beginning is lost.
        """
        self.cut([buffer_id])
        if not len(rows):
            return rows
        ring = self.ring
        before = source.ring.prev(rows)
        goes_on = np.zeros(len(rows), bool)
        goes_on[:-1] = before[1:] == rows[:-1]
        orphans = (before != rows) | source.ring.begins_lost(rows)
        orphans[1:] &= ~goes_on[:-1]
        done = (source.ring.flags[rows] & (TERMINATED | TRUNCATED)) != 0
        cuts = np.where(goes_on | done, 0, CUT).astype(np.uint8)
        cuts[:-1] |= np.where(orphans[1:], LOST, 0).astype(np.uint8)
        was_empty = ring.count[buffer_id] == 0
        if orphans[0] and not was_empty:
            ring.flags[ring.newest[buffer_id]] |= LOST
        index = []
        for start in range(0, len(rows), CHUNK):
            piece = source.reader.plain(rows[start : start + CHUNK])
            index.append(self._append(piece, buffer_id, cuts[start : start + CHUNK]))
        if orphans[0] and was_empty and len(rows) <= ring.size:
            ring.inherits[buffer_id] = True
        return np.concatenate(index)

    def _keep_open(self, source: ReplayBuffer, b: int, kept: np.ndarray, index: np.ndarray) -> None:
        """Let the episode under way in sub-buffer `b` of `source` go on here, without the steps that were dropped."""
        ring, before = self.ring, source.ring
        ring.flags[ring.newest[b]] = 0
        first, _ = before.episode_bounds(kept[-1:])
        breaks = np.flatnonzero(before.prev(kept[1:]) != kept[:-1]) + 1
        begin = int(breaks[-1]) if len(breaks) else 0
        if kept[begin] == first[0]:  # nothing of it was dropped
            ring.returns[b], ring.lengths[b] = before.returns[b], before.lengths[b]
            ring.starts[b] = index[begin] if before.starts[b] == first[0] else -1
            return
        ring.returns[b] = source.reader.rewards[kept[begin:]].astype(np.float64).sum(axis=0)
        ring.lengths[b], ring.starts[b] = len(kept) - begin, index[begin]

    def _create(self, shapes: Mapping[str, Tree]) -> None:
        """Make the columns."""
        obs = shapes[Columns.OBS]
        if self.hindsight is not None and not (isinstance(obs, dict) and set(KEYS[1:]) <= set(obs)):
            raise ValueError(f"hindsight needs observations that are dicts with {KEYS}")
        first = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
        columns = {name: shapes[name] for name in (*first, *(name for name in shapes if name not in REQUIRED))}
        self.store.create(columns if self.options.ignore_obs_next else {**columns, Columns.NEXT_OBS: obs})
        self._use_columns()

    def _use_columns(self) -> None:
        """Make what depends on the columns."""
        if self.options.ignore_obs_next:
            self._next_obs = SharedNextObs(self.store, self.ring)
        self._form = RowForm(self.store, self.options.ignore_obs_next)
        self._checkpoint_pieces = CheckpointPieces(self.store, self.ring)
        self.reader = Reader(self.ring, self.store, self._next_obs, self.options, self.streams)

    # ---- drawing -----------------------------------------------------------------------------------------

    def sample(self, n: int) -> SampleBatch:
        """Return `n` transitions drawn at random, with replacement.

        Columns: obs, new_obs, actions, rewards, terminateds, truncateds, those stored beside; `discounts` with n-step;
        `weights` where prioritised; `batch_indexes`. `ValueError` for an empty buffer or n < 1.

        With `sequence_length` the `n` sequences that hold such rows, see `Reader.sequences`.
        """
        rows = self.sample_indices(n)
        weights = None if self.priorities is None else self.priorities.weights(rows, self.num_added)
        if self.options.sequence_length is None:
            columns = self.reader.columns(rows, self.hindsight)
        else:
            columns, rows = self.reader.sequences(rows)
            weights = None if weights is None else np.repeat(weights, columns[Columns.SEQ_LENS])
        if weights is not None:
            columns[Columns.WEIGHTS] = weights
        columns[Columns.BATCH_INDEXES] = rows
        return SampleBatch.trusted(columns)

    def draw(self, n: int) -> dict[str, SampleBatch]:
        return {DEFAULT_MODULE_ID: self.sample(n) if n else self[self.permutation()]}

    def replays(self) -> dict[str, ReplayBuffer]:
        return {"": self}

    def seed_streams(self, seed: int) -> None:
        self.streams.set_state(RandomStreams(RandomStreams(seed).seed("replay")).get_state())

    @property
    def is_prioritized(self) -> bool:
        return self.priorities is not None

    def beta_at(self, step: int) -> AbstractContextManager[None]:
        return super().beta_at(step) if self.priorities is None else self.priorities.beta_at(step)

    @property
    def rows_of_sample(self) -> int:
        return self.options.burn_in + (self.options.sequence_length or 1)

    def rows_since(self, written: np.ndarray | None) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the rows added since a position of this buffer, and its position now.

        Args:
            written: the position that an earlier call returned; None, or that of another buffer: its beginning.

        Returns:
            For each sub-buffer the rows that are still stored, int64, oldest first; and the new position.
        """
        now = self.ring.written
        if written is None or len(written) != len(now) or (written > now).any():  # it is of another buffer
            written = np.zeros_like(now)
        return self.ring.newest_rows(now - written), now.copy()

    def sample_indices(self, n: int) -> np.ndarray:
        """Return `n` indices drawn as `sample` does, int64 [n]."""
        if not (type(n) is int or is_whole(n)) or n < 1:
            raise ValueError(f"n={n!r} is not allowed; it must be a whole number, at least 1 (all() gives everything)")
        self._check_filled()
        rng = self.streams.numpy("sample")
        draw = self.ring.draw if self.priorities is None else self.priorities.tree.draw
        rows = draw(rng.random(n))
        if self.options.stack_num == 1:
            return rows
        for _ in range(8):
            bad = np.flatnonzero(~self._stackable(rows))
            if not len(bad):
                return rows
            rows[bad] = draw(rng.random(len(bad)))
        bad = np.flatnonzero(~self._stackable(rows))
        allowed = self.indices()
        if not len(allowed):
            raise ValueError(
                f"no row has the {self.options.stack_num} frames of its stack yet: add more before sampling"
            )
        shares = None if self.priorities is None else self.priorities.tree[allowed]
        rows[bad] = rng.choice(allowed, len(bad), p=None if shares is None else shares / shares.sum())
        return rows

    def indices(self) -> np.ndarray:
        """Return all indices that can be drawn: sub-buffer after sub-buffer, oldest first."""
        rows = self.ring.in_order()
        return rows if self.options.stack_num == 1 else rows[self._stackable(rows)]

    def permutation(self) -> np.ndarray:
        """Return all indices that can be drawn, each once, in random order."""
        self._check_filled()
        return self.streams.numpy("permutation").permutation(self.indices())

    def update_weight(self, indices: npt.ArrayLike, weights: npt.ArrayLike) -> None:
        """Set new priorities from errors [N] (any sign) of the transitions at `indices`; tensors are taken too."""
        if self.priorities is None:
            raise ValueError("update_weight: this buffer is not prioritised; use PrioritizedReplayBuffer")
        self.priorities.update(self.ring.checked(indices), to_numpy_leaf(weights))

    @property
    def beta(self) -> float:
        """Exponent of the weights, as of the last sample. Set it to a number or a schedule over the rows added.

        Raises:
            ValueError: below 0, or (when set) the buffer is not prioritised; AttributeError when read of such a one.
        """
        if self.priorities is None:
            raise AttributeError("this buffer is not prioritised and has no beta; use PrioritizedReplayBuffer")
        return self.priorities.beta.value

    @beta.setter
    def beta(self, value: ScheduleLike) -> None:
        if self.priorities is None:
            raise ValueError(f"beta={value!r}: this buffer is not prioritised; use PrioritizedReplayBuffer")
        self.priorities.set_beta(value)

    def _stackable(self, rows: np.ndarray) -> np.ndarray:
        return self.ring.can_be_stacked(rows, self.options.stack_num, self.options.sample_avail)

    def _check_filled(self) -> None:
        if not self.ring.stored:
            raise ValueError("the buffer is empty: add transitions first")

    # ---- reading -----------------------------------------------------------------------------------------

    def __getitem__(self, indices: npt.ArrayLike) -> SampleBatch:
        """Return the transitions at `indices` (int [N]) with the columns of `sample` but weights; goals as stored."""
        rows = self.ring.checked(indices)
        return SampleBatch.trusted({**self.reader.columns(rows, None), Columns.BATCH_INDEXES: rows})

    def all(self) -> SampleBatch:
        """Return everything that can be drawn, in the order of `indices()`; goals as stored."""
        return self[self.indices()]

    def next(self, index: npt.ArrayLike) -> np.ndarray:
        """Return the index of the next transition of the same episode; itself at the episode's end and the newest."""
        return self.ring.next(self.ring.checked(index))

    def prev(self, index: npt.ArrayLike) -> np.ndarray:
        """Return the index of the transition before, of the same episode; itself at its start and at the oldest."""
        return self.ring.prev(self.ring.checked(index))

    def unfinished_index(self) -> np.ndarray:
        """Return the newest indices of the sub-buffers whose episode goes on, int64 [0..buffer_num]."""
        newest = self.ring.newest[self.ring.count > 0]
        return newest[self.ring.flags[newest] == 0]

    def column(self, name: str) -> Tree:
        """Return a copy of one stored column [len, ...] (or a tree of them), in the order of `to_batch`."""
        return self.store.take(name, self.ring.in_order())

    def pieces(self) -> Iterator[dict[str, Tree]]:
        """Yield the transitions as they are stored, some thousand at a time, in the order of `to_batch`."""
        rows = self.ring.in_order()
        for start in range(0, len(rows), CHUNK):
            yield self.reader.plain(rows[start : start + CHUNK])

    def digest(self) -> str:
        """Return the SHA-256 of all transitions as they are stored."""
        return digest_of_rows(self.pieces())

    def drawing_state(self) -> dict[str, Any]:
        """Return the state of the random numbers and the priorities. The rows are not part of it."""
        kept = None if self.priorities is None else self.priorities.get_state(self.maxsize)
        return {"streams": self.streams.get_state(), "priorities": kept}

    def set_drawing_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `drawing_state`. `ValueError` for one with priorities where there are none here, or
        the other way round.
        """
        if (self.priorities is None) != (state["priorities"] is None):
            raise ValueError("the run was made with priorities and these data have none, or the other way round")
        self.streams.set_state(state["streams"])
        if self.priorities is not None:
            self.priorities.set_state(state["priorities"])

    def with_whole_returns(self, gamma: float) -> ReplayBuffer:
        """Return a view on the same rows, marks and random numbers, whose `rewards` are discounted sums of `gamma` up
        to the end of the episode.

        `new_obs`, `terminateds` and `truncateds` are those of the episode's last stored row, and `discounts` is `gamma`
        to the number of steps up to there: `return = rewards + discounts * ~terminateds * V(new_obs)`. In sequences
        they reach to the end of the sequence. The buffer is filled. `ValueError` for one that relabels goals: its
        rewards are known one by one only.
        """
        if self.hindsight is not None:
            raise ValueError("a buffer with hindsight has no returns of whole episodes: goals differ from row to row")
        return self._view(replace(self.options, n_step=self.options.rows_each, gamma=gamma))

    def in_sequences(self, sequence_length: int, burn_in: int = 0) -> ReplayBuffer:
        """Return a view on the same rows, marks and random numbers that gives out sequences, for a network with memory.

        States that are stored beside the rows are left out: sequences begin with an empty memory, which only burn-in
        fills. The buffer is filled. `ValueError` for one that relabels goals or stacks frames.
        """
        options = replace(self.options, sequence_length=sequence_length, burn_in=burn_in)
        options.check_hindsight(self.hindsight)
        view = self._view(options)
        view.reader.extras = [name for name in view.reader.extras if name != Columns.STATE_IN]
        return view

    def _view(self, options: ReadingOptions) -> ReplayBuffer:
        """Return a buffer of the same rows that is read otherwise."""
        view = object.__new__(type(self))  # `copy.copy` gives a buffer with rows of its own
        vars(view).update(vars(self))
        view.options = options
        view.reader = Reader(self.ring, self.store, self._next_obs, options, self.streams)
        view.reader.extras = self.reader.extras
        return view

    def to_batch(self) -> SampleBatch:
        """Return all transitions with the environment's actions, sub-buffer after sub-buffer, oldest first, with
        `eps_id` (a number for each piece of an episode) and `t` (from the piece's beginning). A copy.
        """
        rows = self.ring.in_order()
        columns = self.reader.plain(rows)
        if self.action_form is not None and rows.size:
            columns[Columns.ACTIONS] = self.action_form.to_env(columns[Columns.ACTIONS])
        starts = self.ring.prev(rows) == rows
        number = np.cumsum(starts) - 1
        firsts = np.flatnonzero(starts)
        columns[Columns.EPS_ID] = number.astype(np.int64)
        columns[Columns.T] = (np.arange(len(rows)) - firsts[number]).astype(np.int64) if len(rows) else rows
        return SampleBatch(columns)

    # ---- state -------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return everything as copies: rows, marks, priorities, running episodes, random generators."""
        return {**self._state_beside_columns(), "columns": self.store.get_state(self.ring.used())}

    def checkpoint_state(self) -> dict[str, Any]:
        """Return the same for `write_checkpoint` at once: views in pieces, valid until the buffer changes.

        To be given as a folder of its own. Of what the checkpoint before holds already nothing is copied or written
        again, so that saving a large buffer often takes little time. `set_state` takes it too.
        """
        state = self._state_beside_columns()
        if not self.store.leaves:
            return {**state, "columns": {}}
        schema = {
            name: map_tree(lambda shape: [list(shape.shape), shape.dtype.str], tree)
            for name, tree in self.schema.items()
        }
        return {**state, "schema": schema, **self._checkpoint_pieces.by_name()}

    def _state_beside_columns(self) -> dict[str, Any]:
        return {
            "size": [self.ring.size, self.ring.num_buffers],
            "num_added": self.num_added,
            "action_form": None if self.action_form is None else self.action_form.get_state(),
            "streams": self.streams.get_state(),
            "ring": self.ring.get_state(),
            "next_obs": None if self._next_obs is None else self._next_obs.get_state(),
            "priorities": None if self.priorities is None else self.priorities.get_state(self.ring.used()),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go back to what `get_state` gave; everything drawn afterwards is the same bit for bit.

        Raises:
            ValueError: the state is of a buffer of another size, with other columns or other parts.
        """
        size, number = state["size"]
        if (size, number) != (self.ring.size, self.ring.num_buffers):
            raise ValueError(
                f"the state is of a buffer of size={size * number} with buffer_num={number}, this one has "
                f"size={self.maxsize} with buffer_num={self.buffer_num}; make it with the same"
            )
        columns = state["columns"] if "columns" in state else CheckpointPieces.join(state)
        parts = {
            "priorities": ("priorities (PrioritizedReplayBuffer)", self.priorities is not None),
            "next_obs": ("ignore_obs_next=True", self.options.ignore_obs_next),
        }
        for part, (option, present) in parts.items():
            if columns and (state[part] is not None) != present:
                raise ValueError(
                    f"the state was made {'without' if present else 'with'} {option}, this buffer "
                    f"{'with' if present else 'without'}; make it alike"
                )
        # one written before buffers knew whose actions they hold: they are those of who collected
        form = ActionForm.from_state(state["action_form"]) if "action_form" in state else self.action_form
        if self.action_form not in (None, form):
            raise ValueError(
                f"the state has {describe_actions(form)}, this buffer {describe_actions(self.action_form)}"
            )
        if columns:
            self.store.set_state(columns)
            self._use_columns()
        self.ring.set_state(state["ring"])
        if self._next_obs is not None and state["next_obs"] is not None:
            self._next_obs.set_state(state["next_obs"])
        if self.priorities is not None:
            self.priorities.set_state(state["priorities"])
        self.streams.set_state(state["streams"])
        self.num_added = int(state["num_added"])
        self.action_form = form

    def drawing_options(self) -> dict[str, Any]:
        """Return the options that decide which rows are drawn, and what transitions are made of them."""
        drawing = {} if self.priorities is None else self.priorities.options()
        return {**self.options.keywords(), **drawing}

    def section_options(self) -> dict[str, Any]:
        """Return what the buffer does, by the names that the section `replay` of a configuration has for it."""
        options, priorities, hindsight = self.options, self.priorities, self.hindsight
        return {
            "n_step": options.n_step,
            "prioritized": priorities is not None,
            "alpha": None if priorities is None else priorities.alpha,
            "beta": None if priorities is None else priorities.beta.specification,
            "her": hindsight is not None,
            "her_future_k": None if hindsight is None else hindsight.future_k,
            "her_strategy": None if hindsight is None else hindsight.strategy,
            "ignore_obs_next": options.ignore_obs_next,
            "storage": self.store.storage,
            "sequence_length": options.sequence_length,
            "burn_in": options.burn_in,
        }

    def priority_options(self) -> dict[str, Any] | None:
        """Return what `priorities` was given as, None where rows are drawn uniformly."""
        return None if self.priorities is None else self.priorities.options()

    def __reduce__(self) -> tuple[Any, ...]:
        """Build anew and give the state: parts hold views on one another's memory, which would be copied apart."""
        options = {
            **self.options.keywords(),
            "storage": self.store.storage,  # files in a temporary folder of their own
            "priorities": self.priority_options(),
            "hindsight": self.hindsight,
        }
        of_a_subclass = {name: value for name, value in vars(self).items() if name not in _ATTRIBUTES}
        return self._rebuilt, (self.options.size, options, self.get_state()), of_a_subclass

    def __deepcopy__(self, memo: dict[int, Any]) -> ReplayBuffer:
        """Return a buffer of its own; functions (schedules, goals) are the same."""
        build, parts, of_a_subclass = self.__reduce__()
        twin: ReplayBuffer = build(*parts)
        memo[id(self)] = twin
        vars(twin).update(copy.deepcopy(of_a_subclass, memo))
        return twin

    @classmethod
    def _rebuilt(cls, size: int, options: Mapping[str, Any], state: Mapping[str, Any]) -> ReplayBuffer:
        """Return a buffer of this class, whose own constructor may take other arguments."""
        buffer = cls.__new__(cls)
        ReplayBuffer.__init__(buffer, size, **options)
        buffer.set_state(state)
        return buffer

    # ---- files -------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write the whole buffer as a checkpoint (safetensors and JSON, no pickle) and return its path."""
        priorities = self.priority_options()
        if priorities is not None and callable(priorities["beta"]):
            priorities["beta"] = None
        hindsight = self.hindsight
        made = {
            "class": type(self).__name__,
            "size": self.options.size,
            "options": self.options.keywords(),
            "priorities": priorities,
            "hindsight": None if hindsight is None else {"strategy": hindsight.strategy, "share": hindsight.share},
        }
        return write_checkpoint(path, {"": {"replay": made, **self.checkpoint_state()}})

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        storage: str = "memory",
        directory: str | Path | None = None,
        beta: ScheduleLike | None = None,
        hindsight: Hindsight | None = None,
    ) -> ReplayBuffer:
        """Return the buffer that `save` wrote; it goes on bit for bit.

        Functions are in no file: `hindsight` must be given where there was one, `beta` where it was a function.
        `CheckpointError` for a missing or damaged file, `ValueError` for one of another kind of buffer.
        """
        state = read_checkpoint(path).get("", {})
        if "replay" not in state:
            raise CheckpointError(f"{path} is a checkpoint, but not of a replay buffer")
        made = state.pop("replay")
        if cls is not ReplayBuffer and cls.__name__ != made["class"]:
            raise ValueError(
                f"{path} holds a {made['class']}, not a {cls.__name__}; ReplayBuffer.load reads every kind"
            )
        priorities = made["priorities"]
        if priorities is not None and beta is not None:
            priorities["beta"] = beta
        if priorities is not None and priorities["beta"] is None:
            raise ValueError("beta was a function, which no file holds: give it as load(path, beta=...)")
        if made["hindsight"] is not None and hindsight is None:
            raise ValueError(
                f"the buffer has hindsight ({made['hindsight']}), whose functions no file holds: give them as "
                "load(path, hindsight=Hindsight(compute_reward, ...))"
            )
        parts = {"storage": storage, "directory": directory, "priorities": priorities, "hindsight": hindsight}
        with claims_of(path):
            _check_capacity(made, state)
            return cls._rebuilt(made["size"], {**made["options"], **parts}, state)

    @classmethod
    def from_batch(
        cls, batch: Mapping[str, Any], size: int | None = None, **options: Unpack[AnyBufferOptions]
    ) -> ReplayBuffer:
        """Return a buffer with the transitions of a batch, see `extend`; it has room for them where `size` is None."""
        if cls is not ReplayBuffer:
            raise TypeError(
                f"use ReplayBuffer, not {cls.__name__}, with the options buffer_num=, priorities=, hindsight= for its "
                "parts"
            )
        check_columns(batch)
        if size is None:
            num_buffers = options.get("buffer_num", 1)
            lengths, _ = episodes_in(unpadded(batch))
            owner = spread(lengths, np.zeros(num_buffers, np.int64))
            size = num_buffers * int(np.bincount(owner, lengths, 1).max() or 1)
        buffer = ReplayBuffer(size, **options)
        buffer.extend(batch)
        return buffer

    def export(self, path: str | Path) -> Path:
        """Write `to_batch()` as a table, `.npz` or `.parquet`; return the path."""
        table = table_format(path)  # before the batch is made: it may refuse the name
        return table.write(self.to_batch(), path)

    @classmethod
    def from_file(cls, path: str | Path, size: int | None = None, **options: Unpack[AnyBufferOptions]) -> ReplayBuffer:
        """Return a buffer with the transitions of a table, `.npz` or `.parquet`; see `from_batch`."""
        return cls.from_batch(read_table(path), size, **options)

    def to_minari(
        self,
        dataset_id: str,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        **more: Any,
    ) -> Path:
        """Write `to_batch()` as a local Minari dataset; `more` and errors as `lockstep.data.write_minari`."""
        batch = self.to_batch()
        return write_minari(dataset_id, batch, observation_space=observation_space, action_space=action_space, **more)

    @classmethod
    def from_minari(cls, dataset_id: str, size: int | None = None, **options: Unpack[AnyBufferOptions]) -> ReplayBuffer:
        """Return a buffer with the transitions of a local Minari dataset; see `from_batch`."""
        return cls.from_batch(read_minari_batch(dataset_id), size, **options)


_ATTRIBUTES = (
    "options", "ring", "store", "priorities", "hindsight", "action_form", "streams", "num_added", "reader",
    "_next_obs", "_every", "_no_cuts", "_form", "_checkpoint_pieces",
)  # fmt: skip
"""of a `ReplayBuffer`; a copy gets those that a subclass adds as they are"""


# ---- combinations by the names under which they are known ----


def _check_capacity(made: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Check the capacity that a file claims for a buffer, `made["size"]` rows.

    Columns take memory only where rows are written, so a mostly empty buffer may have more room than there is memory.
    Refused are an impossible size, and a size whose memory is used at once: for priorities and shared observations.

    Raises:
        ClaimedSizeError: the buffer cannot be allocated, or the size is not a whole number.
    """
    what = f"a buffer of size={made['size']}"
    num_rows = count_of(what, [made["size"], made["options"].get("buffer_num", 1)])
    columns = state["columns"] if "columns" in state else CheckpointPieces.join(state)
    arrays = [leaf for column in columns.values() for leaf in leaves(column)]
    widest = max((leaf.dtype.itemsize * math.prod(leaf.shape[1:]) for leaf in arrays), default=1)
    if num_rows * max(widest, 8) > sys.maxsize:
        raise ClaimedSizeError(
            f"{what} claims columns of {num_rows * max(widest, 8):,} bytes, more than can be addressed"
        )
    used_at_once = 0
    if made["priorities"] is not None:
        used_at_once += 32  # a tree of sums, and the numbers that it is filled from
    if made["options"].get("ignore_obs_next"):
        used_at_once += 4
    check_claim(what, num_rows * used_at_once)


class VectorReplayBuffer(ReplayBuffer):
    """One sub-buffer of `total_size / buffer_num` rows (rounded up) for each environment of a vector.

    Further options as `ReplayBuffer`.
    """

    def __init__(self, total_size: int, buffer_num: int, **options: Unpack[VectorBufferOptions]) -> None:
        super().__init__(total_size, buffer_num=buffer_num, **options)


class PrioritizedReplayBuffer(ReplayBuffer):
    """Rows are drawn in proportion to their errors to the power of `alpha`; see `Priorities`.

    `beta` is a number or a schedule over the number of rows added. Further options as `ReplayBuffer`.
    """

    def __init__(
        self,
        size: int,
        alpha: float = 0.6,
        beta: ScheduleLike = 0.4,
        *,
        epsilon: float = 1e-6,
        buffer_num: int = 1,
        hindsight: Hindsight | None = None,
        **options: Unpack[BufferOptions],
    ) -> None:
        priorities = {"alpha": alpha, "beta": beta, "epsilon": epsilon}
        super().__init__(size, buffer_num=buffer_num, priorities=priorities, hindsight=hindsight, **options)


class PrioritizedVectorReplayBuffer(ReplayBuffer):
    """`VectorReplayBuffer` with the drawing of `PrioritizedReplayBuffer`."""

    def __init__(
        self,
        total_size: int,
        buffer_num: int,
        alpha: float = 0.6,
        beta: ScheduleLike = 0.4,
        *,
        epsilon: float = 1e-6,
        hindsight: Hindsight | None = None,
        **options: Unpack[BufferOptions],
    ) -> None:
        priorities = {"alpha": alpha, "beta": beta, "epsilon": epsilon}
        super().__init__(total_size, buffer_num=buffer_num, priorities=priorities, hindsight=hindsight, **options)


class HERReplayBuffer(ReplayBuffer):
    """A share of what is drawn gets a goal that was reached; see `Hindsight`.

    `compute_reward(achieved_goal [M, ...], desired_goal [M, ...], info)` gives rewards [M]. Further options as
    `ReplayBuffer`.
    """

    def __init__(
        self,
        size: int,
        compute_reward: GoalFunction,
        *,
        future_k: float = 4.0,
        strategy: str = "future",
        compute_terminated: GoalFunction | None = None,
        buffer_num: int = 1,
        priorities: Mapping[str, Any] | None = None,
        **options: Unpack[BufferOptions],
    ) -> None:
        hindsight = Hindsight(
            compute_reward, future_k=future_k, strategy=strategy, compute_terminated=compute_terminated
        )
        super().__init__(size, buffer_num=buffer_num, priorities=priorities, hindsight=hindsight, **options)


class HERVectorReplayBuffer(ReplayBuffer):
    """`VectorReplayBuffer` with the goals of `HERReplayBuffer`."""

    def __init__(
        self,
        total_size: int,
        buffer_num: int,
        compute_reward: GoalFunction,
        *,
        future_k: float = 4.0,
        strategy: str = "future",
        compute_terminated: GoalFunction | None = None,
        priorities: Mapping[str, Any] | None = None,
        **options: Unpack[BufferOptions],
    ) -> None:
        hindsight = Hindsight(
            compute_reward, future_k=future_k, strategy=strategy, compute_terminated=compute_terminated
        )
        super().__init__(total_size, buffer_num=buffer_num, priorities=priorities, hindsight=hindsight, **options)
