"""`ReplayBuffer`: a ring of transitions that are drawn at random, and its variants under their usual names."""

from __future__ import annotations

import copy
import math
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack

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
from lockstep.replay.flags import CUT, LOST, TERMINATED, TRUNCATED
from lockstep.replay.hindsight import KEYS, GoalFunction, Hindsight
from lockstep.replay.priorities import Priorities
from lockstep.replay.reading import Reader, ReadingOptions
from lockstep.replay.ring import AddedRows, Ring
from lockstep.replay.rows import (
    REQUIRED,
    assign_sub_buffers,
    check_columns,
    episodes_in,
    has_nan,
    read_table,
    table_format,
    unpadded,
    vector_steps_as_rows,
)
from lockstep.replay.storage import (
    CheckpointPieces,
    ColumnStore,
    RowLayout,
    Shape,
    SharedNextObs,
    frame_shapes,
    schema_of,
    shapes_of_space,
)
from lockstep.state import CheckpointError, ScheduleLike, read_checkpoint, write_checkpoint
from lockstep.state.optional import optional_state
from lockstep.state.sizes import ClaimedSizeError, check_claim, claims_of, count_of
from lockstep.state.streams import RandomStreams

if TYPE_CHECKING:
    from lockstep.replay.typed import AnyBufferOptions, BufferOptions, VectorBufferOptions

NOT_STORED = (Columns.EPS_ID, Columns.T, Columns.INFOS, Columns.DONES, Columns.BATCH_INDEXES, Columns.SEQ_LENS)
"""Columns of a batch that `extend` does not store."""
CHUNK = 65_536
"""Number of rows that are read or copied at once."""


class ReplayBuffer(RowSource):
    """Ring of transitions in columns, for one environment or, with `buffer_num`, for a vector of environments.

    Each of the `buffer_num` sub-buffers holds `size / buffer_num` transitions (rounded up). When a sub-buffer is full,
    its oldest transitions are overwritten. An index names a row of the whole buffer.

    The columns are created from the spaces or from the first rows added. Observations may be nested.

    Args:
        size: number of transitions of all sub-buffers together.
        stack_num: number of frames of an observation in a sample, [N, stack_num, ...]: the last ones of the episode up
            to the row. The first frame of an episode fills its stack; rows whose earlier frames were overwritten are
            not drawn.
        sample_avail: whether only rows with `stack_num` different frames are drawn.
        ignore_obs_next: whether each observation is stored once. The next observation is then the observation of the
            next row, or stored separately at the end of an episode. In both cases it is the true one.
        save_only_last_obs: whether observations that are added are stacks [n, frames, ...], of which only the last
            frame is stored.
        n_step: number of steps whose rewards are summed, discounted with `gamma`. `new_obs`, `terminateds` and
            `truncateds` come from the last of these steps, and the column `discounts` is `gamma` to the number of
            steps: `target = rewards + discounts * ~terminateds * V(new_obs)`. No sum reaches over the end of an
            episode, a boundary (`cut`), or the newest row.
        gamma: discount of a step.
        sequence_length: number of rows at most in a sequence, for networks with memory; `sample` then returns
            sequences. Episodes are cut into sequences from their beginning, and each row is equally likely to be among
            those drawn. The column `state_in` is the recurrent state before a sequence, if the rows that were added
            have one. None: single rows.
        burn_in: number of rows of the episode before a sequence, with `loss_mask` False.
        seed: seed of all random numbers of the buffer.
        storage: "memory", or "memmap" for files in `directory`.
        directory: folder of these files. None: a temporary one.
        observation_space, action_space: spaces that the columns are created from at once, instead of from the first
            rows.
        buffer_num: number of sub-buffers, one for each environment.
        priorities: options `{"alpha": .., "beta": .., "epsilon": ..}` of prioritised drawing, see `Priorities`. None:
            rows are drawn uniformly.
        hindsight: goals are relabelled when rows are drawn, see `Hindsight`.
        action_form: conversion between stored actions and the environment's actions, `policy.action_form`. A collector
            sets it. None: both are the same. Batches, files and datasets have the environment's actions,
            so that actions are translated on their way in and out.

    Raises:
        ValueError: an option that is not allowed, or two that contradict each other.
    """

    is_by_module: ClassVar[Literal[False]] = False

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
        """Rows of the transitions, and boundaries of their episodes."""
        self.store = ColumnStore(self.ring.num_rows, storage, directory)
        """Columns; empty before they are known."""
        self.priorities = None if priorities is None else Priorities(self.ring.num_rows, **priorities)
        self.hindsight = hindsight
        self.action_form = action_form
        self.streams = RandomStreams(seed)
        self.num_added = 0
        """Number of rows added in all, over which schedules of beta run."""
        self.reader: Reader
        """Makes transitions of rows. It exists once the columns are known."""
        self._next_obs: SharedNextObs | None = None
        """Next observations if each observation is stored once."""

        # `add` to all sub-buffers is the call of each environment step: its constant arguments are made once.
        self._all_ids = np.arange(buffer_num, dtype=np.int64)
        self._no_cuts = np.zeros(buffer_num, np.uint8)

        if (observation_space is None) != (action_space is None):
            raise ValueError("give both observation_space and action_space, or none of them")
        if observation_space is not None and action_space is not None:
            obs = shapes_of_space(observation_space)
            self._create(
                {
                    Columns.OBS: frame_shapes(obs) if save_only_last_obs else obs,
                    Columns.ACTIONS: shapes_of_space(action_space),
                    Columns.REWARDS: Shape((), np.dtype(np.float32)),
                }
            )

    # ---- sizes -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of stored transitions."""
        return self.ring.stored

    @property
    def maxsize(self) -> int:
        """Number of transitions that fit into the buffer."""
        return self.ring.num_rows

    @property
    def buffer_num(self) -> int:
        """Number of sub-buffers."""
        return self.ring.num_buffers

    @property
    def schema(self) -> dict[str, Tree]:
        """Shape and dtype of one row of each stored column; empty before the columns are known."""
        return self.store.shapes()

    def nbytes(self) -> int:
        """Return the memory of the columns, in bytes; 0 before they are known."""
        return self.store.nbytes()

    def expected_bytes(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], state_bytes: int
    ) -> int:
        if self.nbytes():
            return self.nbytes()
        # A tiny buffer from the same options counts the bytes of a row exactly as this one will.
        options = {**self.options.keywords(), "storage": "memory"}
        small = ReplayBuffer(
            2 * self.buffer_num, **options, observation_space=observation_space, action_space=action_space
        )
        return (small.nbytes() // small.maxsize + state_bytes) * self.maxsize

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} of {self.maxsize} rows, {self.buffer_num} sub-buffers)"

    # ---- writing -----------------------------------------------------------------------------------------

    def add(self, batch: Mapping[str, Any], buffer_ids: npt.ArrayLike | None = None) -> AddedRows:
        """Add one transition to each sub-buffer, or to each of `buffer_ids`.

        Args:
            batch: `obs`, `actions`, `rewards`, `terminateds`, `truncateds`, `new_obs` (the true next observation, also
                where an episode ended) and any further columns of numbers, one row for each sub-buffer.
            buffer_ids: sub-buffers, int [n] without repetitions. None: all.

        Returns:
            `(indices, episode_return, episode_length, episode_start)`, see `AddedRows`.

        Raises:
            KeyError: a column is missing or new. Nothing is written in that case.
            ValueError: rows do not fit the column (the message has the expected and the given shape and dtype), or ids
                are not allowed. Nothing is written in that case.
        """
        ids = self._all_ids if buffer_ids is None else self.ring.checked_ids(buffer_ids)
        arrays = self._arrays_of(batch, len(ids), self.options.save_only_last_obs)
        return self._write(ids, arrays, self._no_cuts)

    def add_steps(self, batch: Mapping[str, Any]) -> None:
        """Add T vector steps with columns [T, buffer_num, ...], as T calls of `add` would. Errors are the same."""
        num_steps = len(batch[Columns.REWARDS])
        num_buffers = self.buffer_num
        # With shared next observations a row must be in place before the next one is compared with it. And a subclass
        # that changes `add` must see each step.
        if num_steps == 1 or self.options.ignore_obs_next or type(self).add is not ReplayBuffer.add:
            for t in range(num_steps):
                self.add(map_tree(operator.itemgetter(t), dict(batch)))
            return

        columns = map_tree(vector_steps_as_rows, dict(batch))
        arrays = self._arrays_of(columns, num_steps * num_buffers, self.options.save_only_last_obs)
        # One write fills the ring once at most: with a row in it twice, numpy would not define which value stays.
        at_once = self.ring.num_rows
        for start in range(0, num_steps * num_buffers, at_once):
            part = [array[start : start + at_once] for array in arrays]
            num_rows = len(part[0])
            self._write(np.arange(num_rows) % num_buffers, part, np.zeros(num_rows, np.uint8))

    def cut(self, buffer_ids: npt.ArrayLike | None = None, *, goes_on: bool = False) -> None:
        """Write a boundary: leave the episodes under way in these sub-buffers.

        It is to be called when environments are reset in the middle of an episode. The newest rows become neither
        terminated nor truncated; no return, n-step target or stack of frames crosses the boundary.

        Args:
            buffer_ids: sub-buffers, int [n] without repetitions. None: all.
            goes_on: whether the episodes continue after a gap. Then the next rows do not begin an episode: the frames
                before them are lost, so that their stacks are not drawn.
        """
        self.ring.cut(self._all_ids if buffer_ids is None else self.ring.checked_ids(buffer_ids), goes_on)

    def reset(self, keep_statistics: bool = False) -> None:
        """Empty the buffer. With `keep_statistics` the returns and lengths of the episodes under way continue."""
        self.ring.clear(keep_statistics)
        if self._next_obs is not None:
            self._next_obs.clear()
        if self.priorities is not None:
            self.priorities.clear()

    def extend(self, batch: Mapping[str, Any]) -> np.ndarray:
        """Add many transitions in time order, with single frames. Each episode goes to one sub-buffer.

        An episode ends where `terminateds` or `truncateds` say so, where `eps_id` or `agent_id` changes, where `t` does
        not grow, and at the last row. Padding of sequences is left out. `eps_id`, `t`, `infos`, `dones`, `seq_lens`
        and `batch_indexes` are not stored. Episodes under way in the sub-buffers that are written to are left (`cut`).

        Returns:
            The row that each transition was written to, int64 [n]. If there are more than fit, the last ones stay.

        Raises:
            KeyError, ValueError: as in `add`.
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
        lengths, is_left = episodes_in(batch)
        assigned = assign_sub_buffers(lengths, self.ring.count)
        all_rows = SampleBatch(columns)
        for b in range(self.buffer_num):
            rows = np.flatnonzero(np.repeat(assigned == b, lengths))
            if len(rows):
                self.cut([b])
                part = all_rows if len(rows) == number else all_rows[rows]
                index[rows] = self._append(part, b, np.where(is_left[rows], CUT, 0).astype(np.uint8))
        return index

    def update(self, other: ReplayBuffer, *, replace_all: bool = False) -> np.ndarray:
        """Copy all transitions of another buffer with the same columns.

        Those in its sub-buffer `b` go to sub-buffer `b % buffer_num`. Boundaries of episodes are copied, and there is
        one before and after the new rows.

        Args:
            other: buffer to copy from.
            replace_all: whether this buffer is emptied first, once it is known that the rows fit.

        Returns:
            The new indices, int64.

        Raises:
            KeyError, ValueError: as in `add`; `ValueError` also for stored actions of different forms.
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

        # Rows are checked before anything is written or dropped. Equal schemas need no check.
        if self.schema != other.schema:
            for piece in other.pieces():
                self._arrays_of(piece, len(piece[Columns.REWARDS]), False)
        self.action_form = form
        if replace_all:
            self.reset()

        copied = [self._copy_rows(other, rows, b % self.buffer_num) for b, rows in enumerate(other.ring.by_buffer())]
        return np.concatenate(copied)

    def hasnull(self) -> bool:
        """Return whether any transition holds a NaN."""
        return any(has_nan(piece).any() for piece in self.pieces())

    def dropnull(self) -> int:
        """Drop the transitions that hold a NaN, and return their number.

        Indices change. A dropped transition leaves a boundary, which no stack of frames crosses.
        """
        if not self.hasnull():
            return 0

        # A copy of the buffer is the source: its sound rows are added again, sub-buffer after sub-buffer. That does not
        # count as adding rows, so that schedules of beta stay where they are.
        whole = copy.copy(self)
        num_added = self.num_added
        self.reset()
        was_open = whole.ring.has_open_episode()
        for b, rows in enumerate(whole.ring.by_buffer()):
            sound = rows
            if len(rows):
                nan = [has_nan(whole.reader.plain(rows[k : k + CHUNK])) for k in range(0, len(rows), CHUNK)]
                sound = rows[~np.concatenate(nan)]
            index = self._copy_rows(whole, sound, b)
            if self.priorities is not None and whole.priorities is not None:
                self.priorities.tree[index] = whole.priorities.tree[sound]

            newest = whole.ring.newest[b]
            if len(sound) and sound[-1] == newest and whole.ring.flags[newest] == 0:
                self._reopen_episode(whole, b, sound, index)
            elif was_open[b]:
                # The newest row was dropped: the next row continues an episode with a gap before it.
                self.cut([b], goes_on=True)
        self.num_added = num_added
        return len(whole) - len(self)

    def _write(self, ids: np.ndarray, arrays: Sequence[np.ndarray], cuts: np.ndarray) -> AddedRows:
        """Write rows to the ring, the columns and the priorities.

        Args:
            ids: sub-buffer of each row, [n]. Either all differ, or all are the same and the rows are in time order, or
                the rows are several vector steps, which is allowed only if next observations are not shared.
            arrays: columns of the rows in the order of `RowLayout`.
            cuts: further flags of each row, see `Ring.place`.
        """
        ring, layout, next_obs = self.ring, self._layout, self._next_obs
        terminateds, truncateds = arrays[-2], arrays[-1]
        ends = None

        # Boundaries must be found before the ring places the rows. The ring sets the flags of a row only once, and the
        # next observation of the newest row is replaced by those of the new rows.
        if next_obs is not None:
            obs = arrays[: layout.num_obs]
            new_obs = arrays[layout.num_stored : -2]
            is_time_order = len(ids) > 1 and ids[0] == ids[1]
            if is_time_order:
                ends = terminateds | truncateds | (cuts != 0)
                cuts = cuts | next_obs.find_breaks(obs, new_obs, ends) * np.uint8(CUT)
                ends |= cuts != 0
                next_obs.before_write(ids[:1], [leaf[:1] for leaf in obs])
            else:
                next_obs.before_write(ids, obs)

        added = ring.place(ids, arrays[layout.reward_at], terminateds, truncateds, cuts)
        rows = added.indices
        destination = added.destination
        for leaf, array in zip(self.store.leaves, arrays):  # the stored columns come first in `arrays`
            leaf.array[destination] = array
        if next_obs is not None:
            next_obs.after_write(ids, rows, new_obs, ends)
        if self.priorities is not None:
            self.priorities.add(rows)
        self.num_added += len(ids)
        return added

    def _arrays_of(self, batch: Mapping[str, Any], number: int, last_frame: bool) -> list[np.ndarray]:
        """Return the columns of rows as arrays in the order of `RowLayout`. The first rows create the columns."""
        if not self.store.leaves:
            self._create(schema_of(batch, last_frame))
        return self._layout.arrays_of(batch, number, last_frame)

    def _append(self, batch: Mapping[str, Any], buffer_id: int, cuts: np.ndarray) -> np.ndarray:
        """Append rows in time order to one sub-buffer, with further flags `cuts`; return their indices."""
        number = len(np.asarray(batch[Columns.REWARDS]))
        arrays = self._arrays_of(batch, number, False)
        index = np.empty(number, np.int64)
        # One write fills the sub-buffer once at most, so that no row is in it twice.
        for start in range(0, number, self.ring.size):
            piece = slice(start, start + self.ring.size)
            part = [array[piece] for array in arrays]
            index[piece] = self._write(np.full(len(part[0]), buffer_id), part, cuts[piece].copy()).indices
        return index

    def _copy_rows(self, source: ReplayBuffer, rows: np.ndarray, buffer_id: int) -> np.ndarray:
        """Append rows of another buffer to a sub-buffer, with their boundaries, and return their new indices.

        The episode under way in this sub-buffer is left before the first row, and the copied one after the last row.

        Args:
            source: buffer to copy from.
            rows: stored rows of one sub-buffer of `source`, in time order; some in between may be left out.
            buffer_id: sub-buffer to append to.
        """
        self.cut([buffer_id])
        if not len(rows):
            return rows
        ring = self.ring

        # A row continues if the row after it in `rows` was its successor. An orphan is a row whose predecessor in the
        # episode is not copied, or was gone already: its stack would need frames that are not here.
        previous = source.ring.prev(rows)
        continues = np.zeros(len(rows), bool)
        continues[:-1] = previous[1:] == rows[:-1]
        is_orphan = (previous != rows) | source.ring.starts_mid_episode(rows)
        is_orphan[1:] &= ~continues[:-1]

        # `terminateds` and `truncateds` are columns of the rows; other ends need a flag here. An orphan is marked in
        # the row before it, and the first one in the row that is the newest until now.
        done = (source.ring.flags[rows] & (TERMINATED | TRUNCATED)) != 0
        cuts = np.where(continues | done, 0, CUT).astype(np.uint8)
        cuts[:-1] |= np.where(is_orphan[1:], LOST, 0).astype(np.uint8)
        was_empty = ring.count[buffer_id] == 0
        if is_orphan[0] and not was_empty:
            ring.flags[ring.newest[buffer_id]] |= LOST

        index = []
        for start in range(0, len(rows), CHUNK):
            piece = source.reader.plain(rows[start : start + CHUNK])
            index.append(self._append(piece, buffer_id, cuts[start : start + CHUNK]))

        # In an empty sub-buffer no row before the first one can carry the flag. If more rows were copied than fit, the
        # first one is overwritten by now.
        if is_orphan[0] and was_empty and len(rows) <= ring.size:
            ring.mid_episode[buffer_id] = True
        return np.concatenate(index)

    def _reopen_episode(self, source: ReplayBuffer, b: int, sound: np.ndarray, index: np.ndarray) -> None:
        """Continue the episode under way in sub-buffer `b` of `source` here, with the statistics of its sound steps.

        Args:
            source: buffer that the rows were copied from.
            b: sub-buffer, of both buffers.
            sound: rows of `source` that were copied; the last one is its newest.
            index: rows of this buffer that they were copied to.
        """
        ring = self.ring
        source_ring = source.ring
        ring.flags[ring.newest[b]] = 0

        # The sound steps of the episode after its last gap.
        first, _ = source_ring.episode_bounds(sound[-1:])
        gaps = np.flatnonzero(source_ring.prev(sound[1:]) != sound[:-1]) + 1
        begin = int(gaps[-1]) if len(gaps) else 0
        nothing_dropped = sound[begin] == first[0]
        if nothing_dropped:
            # The source's statistics also count steps that are overwritten by now.
            ring.returns[b] = source_ring.returns[b]
            ring.lengths[b] = source_ring.lengths[b]
            ring.starts[b] = index[begin] if source_ring.starts[b] == first[0] else -1
            return
        ring.returns[b] = source.reader.rewards[sound[begin:]].astype(np.float64).sum(axis=0)
        ring.lengths[b] = len(sound) - begin
        ring.starts[b] = index[begin]

    def _create(self, shapes: Mapping[str, Tree]) -> None:
        """Create the columns from the shapes of their rows."""
        obs = shapes[Columns.OBS]
        if self.hindsight is not None and not (isinstance(obs, dict) and set(KEYS[1:]) <= set(obs)):
            raise ValueError(f"hindsight needs observations that are dicts with {KEYS}")

        first = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
        extras = [name for name in shapes if name not in REQUIRED]
        columns = {name: shapes[name] for name in (*first, *extras)}
        if not self.options.ignore_obs_next:
            columns[Columns.NEXT_OBS] = obs
        self.store.create(columns)
        self._use_columns()

    def _use_columns(self) -> None:
        """Create the objects that depend on the columns."""
        if self.options.ignore_obs_next:
            self._next_obs = SharedNextObs(self.store, self.ring)
        self._layout = RowLayout(self.store, self.options.ignore_obs_next)
        self._checkpoint_pieces = CheckpointPieces(self.store, self.ring)
        self.reader = Reader(self.ring, self.store, self._next_obs, self.options, self.streams)

    # ---- drawing -----------------------------------------------------------------------------------------

    def sample(self, n: int) -> SampleBatch:
        """Return `n` transitions drawn at random, with replacement.

        Columns are obs, new_obs, actions, rewards, terminateds, truncateds and all further stored ones; `discounts`
        with n-step sums; `weights` if the buffer is prioritised; and `batch_indexes`. With `sequence_length` these are
        the columns of the `n` sequences that hold the drawn rows, see `Reader.sequences`.

        Raises:
            ValueError: the buffer is empty, or n < 1.
        """
        rows = self.sample_indices(n)
        weights = None if self.priorities is None else self.priorities.weights(rows, self.num_added)
        if self.options.sequence_length is None:
            columns = self.reader.columns(rows, self.hindsight)
        else:
            columns, rows = self.reader.sequences(rows)
            if weights is not None:
                weights = np.repeat(weights, columns[Columns.SEQ_LENS])  # all rows of a sequence have its weight
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
        """Return the rows added since a position of this buffer, and its present position.

        Args:
            written: position that an earlier call returned. None, or a position of another buffer: the beginning.

        Returns:
            For each sub-buffer the rows that are still stored, int64, oldest first; and the present position.
        """
        now = self.ring.written
        # A position beyond this buffer's, or of another number of sub-buffers, belongs to another buffer.
        if written is None or len(written) != len(now) or (written > now).any():
            written = np.zeros_like(now)
        return self.ring.newest_rows(now - written), now.copy()

    def sample_indices(self, n: int) -> np.ndarray:
        """Return `n` random indices, drawn as by `sample`; int64 [n]."""
        if not (type(n) is int or is_whole(n)) or n < 1:
            raise ValueError(f"n={n!r} is not allowed; it must be a whole number, at least 1 (all() gives everything)")
        self._check_filled()
        rng = self.streams.numpy("sample")
        draw = self.ring.draw if self.priorities is None else self.priorities.tree.draw
        rows = draw(rng.random(n))
        if self.options.stack_num > 1:
            self._replace_incomplete(rows, draw, rng)
        return rows

    def _replace_incomplete(
        self, rows: np.ndarray, draw: Callable[[np.ndarray], np.ndarray], rng: np.random.Generator
    ) -> None:
        """Draw again, in place, for rows whose stack of frames is incomplete. `ValueError` if all rows are.

        A filled buffer has few such rows. If some are left after 8 tries, most rows are incomplete, and it is worth
        listing the complete ones.
        """
        for _ in range(8):
            incomplete = np.flatnonzero(~self._stackable(rows))
            if not len(incomplete):
                return
            rows[incomplete] = draw(rng.random(len(incomplete)))

        incomplete = np.flatnonzero(~self._stackable(rows))
        complete_rows = self.indices()
        if not len(complete_rows):
            raise ValueError(
                f"no row has the {self.options.stack_num} frames of its stack yet: add more before sampling"
            )
        probabilities = None
        if self.priorities is not None:
            priorities = self.priorities.tree[complete_rows]
            probabilities = priorities / priorities.sum()
        rows[incomplete] = rng.choice(complete_rows, len(incomplete), p=probabilities)

    def indices(self) -> np.ndarray:
        """Return all indices that can be drawn, sub-buffer after sub-buffer, oldest first."""
        rows = self.ring.in_order()
        return rows if self.options.stack_num == 1 else rows[self._stackable(rows)]

    def permutation(self) -> np.ndarray:
        """Return all indices that can be drawn, each once, in random order."""
        self._check_filled()
        return self.streams.numpy("permutation").permutation(self.indices())

    def update_weight(self, indices: npt.ArrayLike, weights: npt.ArrayLike) -> None:
        """Set the priorities of the transitions at `indices` from their errors [N] of any sign, arrays or tensors."""
        if self.priorities is None:
            raise ValueError("update_weight: this buffer is not prioritised; use PrioritizedReplayBuffer")
        self.priorities.update(self.ring.checked(indices), to_numpy_leaf(weights))

    @property
    def beta(self) -> float:
        """Exponent of the importance weights in the last sample.

        It can be set to a number, or to a schedule over the number of rows added.

        Raises:
            AttributeError: it is read, and the buffer is not prioritised.
            ValueError: it is set, and the buffer is not prioritised or the value is below 0.
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
        """Return which rows have the stack of frames that the options require, bool [N]."""
        return self.ring.can_be_stacked(rows, self.options.stack_num, self.options.sample_avail)

    def _check_filled(self) -> None:
        if not self.ring.stored:
            raise ValueError("the buffer is empty: add transitions first")

    # ---- reading -----------------------------------------------------------------------------------------

    def __getitem__(self, indices: npt.ArrayLike) -> SampleBatch:
        """Return the transitions at `indices`, int [N].

        They have the columns of `sample` without weights, and their goals are the stored ones.
        """
        rows = self.ring.checked(indices)
        return SampleBatch.trusted({**self.reader.columns(rows, None), Columns.BATCH_INDEXES: rows})

    def all(self) -> SampleBatch:
        """Return all transitions that can be drawn, in the order of `indices()`, with the stored goals."""
        return self[self.indices()]

    def next(self, index: npt.ArrayLike) -> np.ndarray:
        """Return the index of the next transition of each episode; the same one at its end and for the newest."""
        return self.ring.next(self.ring.checked(index))

    def prev(self, index: npt.ArrayLike) -> np.ndarray:
        """Return the index of the previous transition of each episode; the same one at its start and for the oldest."""
        return self.ring.prev(self.ring.checked(index))

    def unfinished_index(self) -> np.ndarray:
        """Return the newest indices of the sub-buffers whose episode continues, int64 [0..buffer_num]."""
        newest = self.ring.newest[self.ring.count > 0]
        return newest[self.ring.flags[newest] == 0]

    def column(self, name: str) -> Tree:
        """Return a copy of one stored column, an array [len, ...] or a tree of them, in the order of `to_batch`."""
        return self.store.take(name, self.ring.in_order())

    def pieces(self) -> Iterator[dict[str, Tree]]:
        """Yield all transitions as they are stored, up to `CHUNK` at a time, in the order of `to_batch`."""
        rows = self.ring.in_order()
        for start in range(0, len(rows), CHUNK):
            yield self.reader.plain(rows[start : start + CHUNK])

    def digest(self) -> str:
        """Return the SHA-256 of all transitions as they are stored."""
        return digest_of_rows(self.pieces())

    def drawing_state(self) -> dict[str, Any]:
        """Return the state of the random numbers and the priorities, without the rows."""
        priorities = None if self.priorities is None else self.priorities.get_state(self.maxsize)
        return {"streams": self.streams.get_state(), "priorities": priorities}

    def set_drawing_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `drawing_state`. `ValueError` if only one of state and buffer has priorities."""
        if (self.priorities is None) != (state["priorities"] is None):
            raise ValueError("the run was made with priorities and these data have none, or the other way round")
        self.streams.set_state(state["streams"])
        if self.priorities is not None:
            self.priorities.set_state(state["priorities"])

    def with_whole_returns(self, gamma: float) -> ReplayBuffer:
        """Return a view on this buffer whose `rewards` are returns: sums to the end of the episode.

        The view has the same rows, boundaries and random numbers. `new_obs`, `terminateds` and `truncateds` are those
        of the episode's last stored row, and `discounts` is `gamma` to the number of steps up to there:
        `return = rewards + discounts * ~terminateds * V(new_obs)`. In sequences the sums end with the sequence.

        Args:
            gamma: discount of a step.

        Raises:
            ValueError: the buffer relabels goals, so that rewards differ from one drawing of a row to the next.
        """
        if self.hindsight is not None:
            raise ValueError("a buffer with hindsight has no returns of whole episodes: goals differ from row to row")
        return self._view(replace(self.options, n_step=self.options.rows_each, gamma=gamma))

    def in_sequences(self, sequence_length: int, burn_in: int = 0) -> ReplayBuffer:
        """Return a view on this buffer that samples sequences, for a network with memory.

        The view has the same rows, boundaries and random numbers. Stored recurrent states are left out: sequences begin
        with an empty memory, which only burn-in fills.

        Args:
            sequence_length: number of rows at most in a sequence.
            burn_in: number of rows before it that are read and not learned from.

        Raises:
            ValueError: the buffer relabels goals or stacks frames.
        """
        options = replace(self.options, sequence_length=sequence_length, burn_in=burn_in)
        options.check_hindsight(self.hindsight)
        view = self._view(options)
        view.reader.extras = [name for name in view.reader.extras if name != Columns.STATE_IN]
        return view

    def _view(self, options: ReadingOptions) -> ReplayBuffer:
        """Return a buffer over the same rows that reads them with other options."""
        # The view must share the rows. A new buffer would have other ones, and so would `copy.copy` (see `__reduce__`).
        view = object.__new__(type(self))
        vars(view).update(vars(self))
        view.options = options
        view.reader = Reader(self.ring, self.store, self._next_obs, options, self.streams)
        view.reader.extras = self.reader.extras
        return view

    def to_batch(self) -> SampleBatch:
        """Return a copy of all transitions, sub-buffer after sub-buffer, oldest first.

        Actions have the environment's form. `eps_id` is a number for each piece of an episode, and `t` the number of
        steps since the beginning of the piece.
        """
        rows = self.ring.in_order()
        columns = self.reader.plain(rows)
        if self.action_form is not None and rows.size:
            columns[Columns.ACTIONS] = self.action_form.to_env(columns[Columns.ACTIONS])
        is_first = self.ring.prev(rows) == rows
        piece = np.cumsum(is_first) - 1
        firsts = np.flatnonzero(is_first)
        columns[Columns.EPS_ID] = piece.astype(np.int64)
        columns[Columns.T] = (np.arange(len(rows)) - firsts[piece]).astype(np.int64) if len(rows) else rows
        return SampleBatch(columns)

    # ---- state -------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return copies of the whole state: rows, boundaries, episodes under way, priorities and random generators."""
        return {**self._state_beside_columns(), "columns": self.store.get_state(self.ring.used())}

    def checkpoint_state(self) -> dict[str, Any]:
        """Return the state for `write_checkpoint`, with the columns as views in pieces, valid until the buffer changes.

        It must be saved in a separate folder of the checkpoint. Pieces that the previous checkpoint holds already are
        neither copied nor written again, so that saving a large buffer often takes little time. `set_state` accepts
        this form as well.
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
        """Return the state without the columns, which `get_state` copies and a checkpoint saves in pieces."""
        priorities = None if self.priorities is None else self.priorities.get_state(self.ring.used())
        return {
            "size": [self.ring.size, self.ring.num_buffers],
            "num_added": self.num_added,
            "action_form": optional_state(self.action_form),
            "streams": self.streams.get_state(),
            "ring": self.ring.get_state(),
            "next_obs": optional_state(self._next_obs),
            "priorities": priorities,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`. Everything drawn afterwards is the same bit for bit.

        Raises:
            ValueError: the state belongs to a buffer of another size, with other columns or other parts.
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
                saved, here = ("without", "with") if present else ("with", "without")
                raise ValueError(f"the state was made {saved} {option}, this buffer {here}; make both the same")

        # States of earlier versions have no `action_form`; their actions have the form that the collector sets here.
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
        """Return the options that determine which rows are drawn, and which transitions are made of them."""
        priorities = {} if self.priorities is None else self.priorities.options()
        return {**self.options.keywords(), **priorities}

    def section_options(self) -> dict[str, Any]:
        """Return the buffer's options by their names in the section `replay` of a configuration."""
        options = self.options
        section: dict[str, Any] = {
            "n_step": options.n_step,
            "prioritized": self.priorities is not None,
            "alpha": None,
            "beta": None,
            "her": self.hindsight is not None,
            "her_future_k": None,
            "her_strategy": None,
            "ignore_obs_next": options.ignore_obs_next,
            "storage": self.store.storage,
            "sequence_length": options.sequence_length,
            "burn_in": options.burn_in,
        }
        if self.priorities is not None:
            section["alpha"] = self.priorities.alpha
            section["beta"] = self.priorities.beta.specification
        if self.hindsight is not None:
            section["her_future_k"] = self.hindsight.future_k
            section["her_strategy"] = self.hindsight.strategy
        return section

    def priority_options(self) -> dict[str, Any] | None:
        """Return the constructor's argument `priorities`, None if rows are drawn uniformly."""
        return None if self.priorities is None else self.priorities.options()

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to rebuild this buffer from its options and its state.

        Attributes cannot be copied one by one. Ring, store and reader hold views on each other's memory, and their
        copies would no longer share it.
        """
        options = {
            **self.options.keywords(),
            "storage": self.store.storage,  # without `directory`: the copy's files are in a temporary folder
            "priorities": self.priority_options(),
            "hindsight": self.hindsight,
        }
        added_by_subclass = {name: value for name, value in vars(self).items() if name not in _ATTRIBUTES}
        return self._rebuilt, (self.options.size, options, self.get_state()), added_by_subclass

    def __deepcopy__(self, memo: dict[int, Any]) -> ReplayBuffer:
        """Return an independent copy. Only functions (schedules, goals) are shared with it."""
        build, parts, added_by_subclass = self.__reduce__()
        twin: ReplayBuffer = build(*parts)
        memo[id(self)] = twin
        vars(twin).update(copy.deepcopy(added_by_subclass, memo))
        return twin

    @classmethod
    def _rebuilt(cls, size: int, options: Mapping[str, Any], state: Mapping[str, Any]) -> ReplayBuffer:
        """Return a buffer of this class with the given options and state.

        It calls the constructor of `ReplayBuffer`, since the constructor of a subclass may have other arguments.
        """
        buffer = cls.__new__(cls)
        ReplayBuffer.__init__(buffer, size, **options)
        buffer.set_state(state)
        return buffer

    # ---- files -------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write the whole buffer as a checkpoint (safetensors and JSON, no pickle), and return its path."""
        priorities = self.priority_options()
        if priorities is not None and callable(priorities["beta"]):
            priorities["beta"] = None  # no file can hold a function: `load` asks for it
        hindsight = self.hindsight
        description = {
            "class": type(self).__name__,
            "size": self.options.size,
            "options": self.options.keywords(),
            "priorities": priorities,
            "hindsight": None if hindsight is None else {"strategy": hindsight.strategy, "share": hindsight.share},
        }
        return write_checkpoint(path, {"": {"replay": description, **self.checkpoint_state()}})

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
        """Return the buffer that `save` wrote. It continues bit for bit.

        Args:
            path: checkpoint of a buffer.
            storage, directory: where the columns are stored, see `ReplayBuffer`.
            beta: schedule of beta. It is needed if beta was a function, which no file holds.
            hindsight: needed if the buffer had one, because its functions are in no file.

        Raises:
            CheckpointError: the file is missing or damaged.
            ValueError: the file has another kind of buffer, or an argument is missing.
        """
        state = read_checkpoint(path).get("", {})
        if "replay" not in state:
            raise CheckpointError(f"{path} is a checkpoint, but not of a replay buffer")
        saved = state.pop("replay")
        if cls is not ReplayBuffer and cls.__name__ != saved["class"]:
            raise ValueError(
                f"{path} holds a {saved['class']}, not a {cls.__name__}; ReplayBuffer.load reads every kind"
            )
        priorities = saved["priorities"]
        if priorities is not None and beta is not None:
            priorities["beta"] = beta
        if priorities is not None and priorities["beta"] is None:
            raise ValueError("beta was a function, which no file holds: give it as load(path, beta=...)")
        if saved["hindsight"] is not None and hindsight is None:
            raise ValueError(
                f"the buffer has hindsight ({saved['hindsight']}), whose functions no file holds: give them as "
                "load(path, hindsight=Hindsight(compute_reward, ...))"
            )
        parts = {"storage": storage, "directory": directory, "priorities": priorities, "hindsight": hindsight}
        with claims_of(path):
            _check_capacity(saved, state)
            return cls._rebuilt(saved["size"], {**saved["options"], **parts}, state)

    @classmethod
    def from_batch(
        cls, batch: Mapping[str, Any], size: int | None = None, **options: Unpack[AnyBufferOptions]
    ) -> ReplayBuffer:
        """Return a buffer with the transitions of a batch.

        Args:
            batch: transitions in time order, see `extend`.
            size: number of transitions that fit. None: the number in the batch.
            options: further options of `ReplayBuffer`.
        """
        if cls is not ReplayBuffer:
            raise TypeError(
                f"use ReplayBuffer, not {cls.__name__}, with the options buffer_num=, priorities=, hindsight= for its "
                "parts"
            )
        check_columns(batch)
        if size is None:
            num_buffers = options.get("buffer_num", 1)
            lengths, _ = episodes_in(unpadded(batch))
            assigned = assign_sub_buffers(lengths, np.zeros(num_buffers, np.int64))
            # All sub-buffers have the same size, which the fullest one determines.
            size = num_buffers * int(np.bincount(assigned, lengths, 1).max() or 1)
        buffer = ReplayBuffer(size, **options)
        buffer.extend(batch)
        return buffer

    def export(self, path: str | Path) -> Path:
        """Write `to_batch()` as a table, `.npz` or `.parquet`, and return its path."""
        table = table_format(path)  # may refuse the name, so it comes before the batch is made
        return table.write(self.to_batch(), path)

    @classmethod
    def from_file(cls, path: str | Path, size: int | None = None, **options: Unpack[AnyBufferOptions]) -> ReplayBuffer:
        """Return a buffer with the transitions of a `.npz` or `.parquet` table. Arguments are those of `from_batch`."""
        return cls.from_batch(read_table(path), size, **options)

    def to_minari(
        self,
        dataset_id: str,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        **more: Any,
    ) -> Path:
        """Write `to_batch()` as a local Minari dataset, and return its path.

        `more` and errors are those of `lockstep.data.write_minari`.
        """
        batch = self.to_batch()
        return write_minari(dataset_id, batch, observation_space=observation_space, action_space=action_space, **more)

    @classmethod
    def from_minari(cls, dataset_id: str, size: int | None = None, **options: Unpack[AnyBufferOptions]) -> ReplayBuffer:
        """Return a buffer with the transitions of a local Minari dataset. Arguments are those of `from_batch`."""
        return cls.from_batch(read_minari_batch(dataset_id), size, **options)


_ATTRIBUTES = (
    "options", "ring", "store", "priorities", "hindsight", "action_form", "streams", "num_added", "reader",
    "_next_obs", "_all_ids", "_no_cuts", "_layout", "_checkpoint_pieces",
)  # fmt: skip
"""Attributes of a `ReplayBuffer` itself. A copy gets all others, which a subclass has added, as they are."""


def _check_capacity(saved: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Check the capacity that a file claims for a buffer, before memory is allocated for it.

    Columns take memory only where rows are written, so a mostly empty buffer may claim more room than there is memory.
    What is refused is a size that cannot be addressed, and one whose memory is used at once: the priorities and the
    slots of shared observations.

    Raises:
        ClaimedSizeError: the buffer cannot be allocated, or the size is not a whole number.
    """
    claimant = f"a buffer of size={saved['size']}"
    num_rows = count_of(claimant, [saved["size"], saved["options"].get("buffer_num", 1)])
    columns = state["columns"] if "columns" in state else CheckpointPieces.join(state)
    widest = 8  # bytes of a row in the bookkeeping, whatever the columns are
    for column in columns.values():
        for leaf in leaves(column):
            widest = max(widest, leaf.dtype.itemsize * math.prod(leaf.shape[1:]))
    if num_rows * widest > sys.maxsize:
        raise ClaimedSizeError(f"{claimant} claims columns of {num_rows * widest:,} bytes, more than can be addressed")

    used_at_once = 0
    if saved["priorities"] is not None:
        used_at_once += 32  # bytes of a row in a sum tree, and in the array that it is filled from
    if saved["options"].get("ignore_obs_next"):
        used_at_once += 4  # the row's slot in the pool, int32
    check_claim(claimant, num_rows * used_at_once)


# ---- variants under their usual names ----------------------------------------------------------------------


class VectorReplayBuffer(ReplayBuffer):
    """Replay buffer for a vector of environments, with a sub-buffer of `total_size / buffer_num` rows for each.

    Further options are those of `ReplayBuffer`.
    """

    def __init__(self, total_size: int, buffer_num: int, **options: Unpack[VectorBufferOptions]) -> None:
        super().__init__(total_size, buffer_num=buffer_num, **options)


class PrioritizedReplayBuffer(ReplayBuffer):
    """Replay buffer that draws rows in proportion to their errors to the power of `alpha`, see `Priorities`.

    `beta` is a number or a schedule over the number of rows added. Further options are those of `ReplayBuffer`.
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
    """Prioritised replay buffer for a vector of environments, see `PrioritizedReplayBuffer`."""

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
    """Replay buffer that relabels a share of the drawn transitions with goals that were achieved, see `Hindsight`.

    `compute_reward(achieved_goal [M, ...], desired_goal [M, ...], info)` returns rewards [M]. Further options are those
    of `ReplayBuffer`.
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
    """Replay buffer with relabelled goals for a vector of environments, see `HERReplayBuffer`."""

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
