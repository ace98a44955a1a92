"""`ReplayBuffer`: transitions are added at one end and drawn at random."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from lockstep.data.actions import ActionForm
from lockstep.data.columns import Columns
from lockstep.data.minari_files import read_minari_batch
from lockstep.data.sample_batch import SampleBatch
from lockstep.data.trees import map_tree, to_numpy_leaf
from lockstep.replay import files, states, transfer
from lockstep.replay.hindsight import KEYS, Hindsight
from lockstep.replay.intake import Intake, checked_ids, schema_of
from lockstep.replay.next_obs import SharedNextObs
from lockstep.replay.options import ReplayOptions
from lockstep.replay.priorities import Priorities
from lockstep.replay.reading import ACTIONS, NEXT_OBS, OBS, REQUIRED, REWARDS, Reader
from lockstep.replay.ring import CUT, Placed, Ring
from lockstep.replay.segments import Segments
from lockstep.replay.storage import ColumnStore, Shape, shapes_of_space
from lockstep.replay.whole_steps import WholeSteps
from lockstep.state import ScheduleLike
from lockstep.state.streams import RandomStreams

Tree = Any
_WHOLE = (int, np.integer)


class ReplayBuffer:
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
        seed: of everything drawn here.
        storage: "memory", or "memmap" for files in `directory` (a temporary one where None).
        observation_space, action_space: make the columns at once instead of from the first rows.
        buffer_num: number of sub-buffers, one for each environment.
        priorities: `{"alpha": .., "beta": .., "epsilon": ..}` for prioritised drawing, see `Priorities`.
        hindsight: relabels goals when drawing, see `Hindsight`.
        action_form: how the actions stored differ from the environment's, `policy.action_form` (a collector tells its
            buffer); None: not at all. Batches, files and datasets hold the environment's: they are translated.

    Raises:
        ValueError, TypeError: an option that is not allowed, or two that contradict each other.
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
        self.options = ReplayOptions(
            size, buffer_num, stack_num, ignore_obs_next, save_only_last_obs, sample_avail, n_step, gamma
        )
        self._ring = Ring(self.options.rows_each, buffer_num)
        self._store = ColumnStore(self._ring.num_rows, storage, directory)
        self._shared: SharedNextObs | None = None
        self._whole_steps: WholeSteps | None = None
        self.priorities = None if priorities is None else Priorities(self._ring.num_rows, **priorities)
        self.hindsight, self.action_form = hindsight, action_form
        self.streams = RandomStreams(seed)
        self.num_added = 0
        """rows added in all; schedules of beta go by it"""
        self._every = np.arange(buffer_num, dtype=np.int64)
        self._no_cuts = np.zeros(buffer_num, np.uint8)
        if (observation_space is None) != (action_space is None):
            raise ValueError("give both observation_space and action_space, or none of them")
        if observation_space is not None and action_space is not None:
            frame = shapes_of_space(observation_space)
            if save_only_last_obs:
                frame = map_tree(lambda shape: Shape(shape.shape[1:], shape.dtype), frame)
            self._create({OBS: frame, ACTIONS: shapes_of_space(action_space), REWARDS: Shape((), np.dtype(np.float32))})

    # ---- sizes -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of transitions stored."""
        return self._ring.stored

    @property
    def maxsize(self) -> int:
        """Number of transitions that fit."""
        return self._ring.num_rows

    @property
    def buffer_num(self) -> int:
        """Number of sub-buffers."""
        return self._ring.num_buffers

    @property
    def schema(self) -> dict[str, Tree]:
        """Shape and dtype of a row of each stored column; empty before they are known."""
        return self._store.shapes()

    def nbytes(self) -> int:
        """Bytes of the columns."""
        return self._store.nbytes()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} of {self.maxsize} rows, {self.buffer_num} sub-buffers)"

    # ---- writing -----------------------------------------------------------------------------------------

    def add(self, batch: Mapping[str, Any], buffer_ids: npt.ArrayLike | None = None) -> Placed:
        """Adds one transition to each sub-buffer, or to those of `buffer_ids`, in one go.

        Args:
            batch: `obs`, `actions`, `rewards`, `terminateds`, `truncateds`, `new_obs` (the true next observation, also
                where an episode ended) and any further columns of numbers, one row for each sub-buffer.
            buffer_ids: int [n], different ones; None means all.

        Returns:
            `(indices, episode_return, episode_length, episode_start)`, see `Placed`.

        Raises:
            KeyError: a column is missing or new; ValueError: rows that do not fit the column (with the expected and
            given shape and dtype), or ids that are not allowed. Nothing is written then.
        """
        if buffer_ids is None:
            if self._whole_steps is not None and (placed := self._whole_steps.add(batch)) is not None:
                return self._counted(placed, self._ring.num_buffers)
            ids, cuts = self._every, self._no_cuts
        else:
            ids = checked_ids(buffer_ids, self.buffer_num)
            cuts = self._no_cuts[: len(ids)]
        return self._write(ids, self._conformed(batch, len(ids), self.options.save_only_last_obs), cuts)

    def add_steps(self, batch: Mapping[str, Any]) -> None:
        """`add` for each of T vector steps, columns [T, buffer_num, ...]; plain arrays in one go. Errors as `add`."""
        if self._whole_steps is not None and type(self).add is ReplayBuffer.add:
            if (placed := self._whole_steps.add_steps(batch)) is not None:
                self._counted(placed, len(placed.indices))
                return
        for t in range(len(batch[REWARDS])):
            self.add(map_tree(operator.itemgetter(t), dict(batch)))

    def cut(self, buffer_ids: npt.ArrayLike | None = None, *, goes_on: bool = False) -> None:
        """Writes a boundary: the episodes under way in these sub-buffers (None: in all) are left here.

        To be called when environments are reset in the middle of an episode. The newest rows become neither
        terminated nor truncated; no return, n-step target or stack of frames crosses the boundary. With `goes_on` the
        episodes go on and rows of them are left out: the rows that come next lack their earlier frames.
        """
        self._ring.cut(self._every if buffer_ids is None else checked_ids(buffer_ids, self.buffer_num), goes_on)

    def reset(self, keep_statistics: bool = False) -> None:
        """Empties the buffer; with `keep_statistics` episodes under way go on, as do their returns and lengths."""
        self._ring.clear(keep_statistics)
        if self._shared is not None:
            self._shared.clear()
        if self.priorities is not None:
            self.priorities.clear()

    def extend(self, batch: Mapping[str, Any]) -> np.ndarray:
        """Adds many transitions in time order, single frames; each episode goes to one sub-buffer.

        An episode ends where `terminateds` or `truncateds` say so, where `eps_id` or `agent_id` changes, where `t` does
        not grow, and at the last row. Padding of sequences is left out. `eps_id`, `t`, `infos`, `dones`, `seq_lens`
        and `batch_indexes` are not stored. Episodes under way in the sub-buffers that are written to are left (`cut`).

        Returns:
            Where each row was written, int64 [n]; of more rows than fit the last ones stay. Errors as `add`.
        """
        return transfer.extend(self, batch)

    def update(self, other: ReplayBuffer) -> np.ndarray:
        """Copies all transitions of another buffer with the same columns, of its sub-buffer `b` to `b % buffer_num`.

        Boundaries are kept and written before and after; returns the new indices, int64. Errors as `add`.
        """
        return transfer.join(self, other)

    def hasnull(self) -> bool:
        """Whether any transition holds a NaN."""
        return bool(transfer.null_rows(self, self._ring.in_order()).any()) if len(self) else False

    def dropnull(self) -> int:
        """Drops the transitions that hold a NaN and returns how many there were.

        Indices change. A boundary stands where one was dropped, and no stack of frames reaches over it.
        """
        return transfer.drop_nulls(self)

    def empty_twin(self) -> ReplayBuffer:
        """An empty buffer in memory with the same columns, options and priorities, without hindsight."""
        twin = ReplayBuffer(self.options.size, **self.options.keywords(), priorities=self.priority_options())
        if self._store.leaves:
            twin._create({name: tree for name, tree in self._store.shapes().items() if name != NEXT_OBS})
        return twin

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

    def priority_options(self) -> dict[str, Any] | None:
        """What `priorities` was given as, None where rows are drawn uniformly."""
        return None if self.priorities is None else self.priorities.options()

    def _write(self, ids: np.ndarray, values: Sequence[np.ndarray], cuts: np.ndarray) -> Placed:
        """Checked rows, either of different sub-buffers or in time order of one."""
        ring, shared, intake = self._ring, self._shared, self._intake
        terminateds, truncateds = values[-2], values[-1]
        ends = None
        if shared is not None:
            obs, new_obs = values[: intake.num_obs], values[len(intake.lines) : -2]
            if len(ids) > 1 and ids[0] == ids[1]:  # one after another
                ends = terminateds | truncateds | (cuts != 0)
                cuts = cuts | shared.breaks(obs, new_obs, ends) * np.uint8(CUT)
                ends |= cuts != 0
                shared.before(ids[:1], [leaf[:1] for leaf in obs])
            else:
                shared.before(ids, obs)
        placed, position = ring.place(ids, values[intake.reward_at], terminateds, truncateds, cuts)
        if position >= 0:
            for line, value in zip(intake.lines, values):
                line[position] = value
        else:
            for leaf, value in zip(self._store.leaves, values):
                leaf.array[placed.indices] = value
        if shared is not None:
            shared.after(ids, placed.indices, new_obs, ends)
        return self._counted(placed, len(ids))

    def _counted(self, placed: Placed, number: int) -> Placed:
        """To be called when rows were written."""
        if self.priorities is not None:
            self.priorities.add(placed.indices)
        self.num_added += number
        return placed

    def _create(self, shapes: Mapping[str, Tree]) -> None:
        if self.hindsight is not None and not (isinstance(shapes[OBS], dict) and set(KEYS[1:]) <= set(shapes[OBS])):
            raise ValueError(f"hindsight needs observations that are dicts with {KEYS}")
        extras = [name for name in shapes if name not in REQUIRED]
        columns = {name: shapes[name] for name in (OBS, ACTIONS, REWARDS, *extras)}
        self._store.create(columns if self.options.ignore_obs_next else {**columns, NEXT_OBS: shapes[OBS]})
        self._know()

    def _know(self) -> None:
        """Makes what depends on the columns."""
        if self.options.ignore_obs_next:
            self._shared = SharedNextObs(self._store, self._ring)
        self._intake = Intake(self._store, self.buffer_num, self._shared is not None)
        self._whole_steps = WholeSteps.of(self._intake, self._ring, self._store)
        self._segments = Segments(self._store, self._ring)
        self._reader = Reader(self._ring, self._store, self._shared, self.options, self.streams)

    def _conformed(self, batch: Mapping[str, Any], number: int, last_frame: bool) -> Sequence[np.ndarray]:
        if not self._store.leaves:
            self._create(schema_of(batch, last_frame))
        return self._intake.conform(batch, number, last_frame)

    # ---- state -------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Everything as copies: rows, marks, priorities, running episodes, random generators."""
        return states.get_state(self)

    def checkpoint_state(self) -> dict[str, Any]:
        """The same for `write_checkpoint` at once: views in pieces, valid until the buffer changes.

        To be given as a folder of its own. Of what the checkpoint before holds already nothing is copied or written
        again, so that saving a large buffer often takes little time. `set_state` takes it too.
        """
        return states.checkpoint_state(self)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes back to what `get_state` gave; everything drawn afterwards is the same bit by bit.

        Raises:
            ValueError: the state is of a buffer of another size, with other columns or other parts.
        """
        states.set_state(self, state)

    def __reduce__(self) -> tuple[Any, ...]:
        return states.reduce(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> ReplayBuffer:
        return states.deep_copy(self, memo)

    def save(self, path: str | Path) -> Path:
        """Writes the whole buffer as a checkpoint (safetensors and JSON, no pickle) and returns its path."""
        return files.save(self, path)

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
        """The buffer that `save` wrote; it goes on bit by bit.

        Functions are in no file: `hindsight` must be given where there was one, `beta` where it was a function.
        `CheckpointError` for a missing or damaged file, `ValueError` for one of another kind of buffer.
        """
        return files.load(cls, path, storage, directory, beta, hindsight)

    def to_batch(self) -> SampleBatch:
        """All transitions with the environment's actions, sub-buffer after sub-buffer, oldest first, with `eps_id` (a
        number for each piece of an episode) and `t` (from the piece's beginning). A copy.
        """
        return transfer.to_batch(self)

    @classmethod
    def from_batch(cls, batch: Mapping[str, Any], size: int | None = None, **options: Any) -> ReplayBuffer:
        """A buffer with the transitions of a batch, see `extend`; it has room for them where `size` is None."""
        return files.make(cls, batch, size, options)

    def export(self, path: str | Path) -> Path:
        """Writes `to_batch()` as a table, `.npz` or `.parquet`; returns the path."""
        return files.export(self, path)

    @classmethod
    def from_file(cls, path: str | Path, size: int | None = None, **options: Any) -> ReplayBuffer:
        """A buffer with the transitions of an `.npz` or `.parquet` file that `export` or `SampleBatch` wrote."""
        return files.make(cls, files.import_batch(path), size, options)

    def to_minari(self, dataset_id: str, observation_space: Any, action_space: Any, **more: Any) -> Path:
        """Writes `to_batch()` as a local Minari dataset; `more` and errors as `lockstep.data.write_minari`."""
        return files.to_minari(self, dataset_id, observation_space, action_space, more)

    @classmethod
    def from_minari(cls, dataset_id: str, size: int | None = None, **options: Any) -> ReplayBuffer:
        """A buffer with the transitions of a local Minari dataset; see `from_batch`."""
        return files.make(cls, read_minari_batch(dataset_id), size, options)

    # ---- drawing -----------------------------------------------------------------------------------------

    def sample(self, n: int) -> SampleBatch:
        """`n` transitions drawn at random, with replacement.

        Columns: obs, new_obs, actions, rewards, terminateds, truncateds, those stored beside; `discounts` with n-step;
        `weights` where prioritised; `batch_indexes`. `ValueError` for an empty buffer or n < 1.
        """
        rows = self.sample_indices(n)
        columns = self._reader.columns(rows, self.hindsight)
        if self.priorities is not None:
            columns[Columns.WEIGHTS] = self.priorities.weights(rows, self.num_added)
        columns[Columns.BATCH_INDEXES] = rows
        return SampleBatch._trusted(columns)

    def sample_indices(self, n: int) -> np.ndarray:
        """`n` indices drawn as `sample` does, int64 [n]."""
        if isinstance(n, bool) or not isinstance(n, _WHOLE) or n < 1:
            raise ValueError(f"n={n!r} is not allowed; it must be a whole number, at least 1 (all() gives everything)")
        self._check_filled()
        rng, draw = self.streams.numpy("sample"), self._ring.draw if self.priorities is None else self.priorities.draw
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
        """All indices that can be drawn: sub-buffer after sub-buffer, oldest first."""
        rows = self._ring.in_order()
        return rows if self.options.stack_num == 1 else rows[self._stackable(rows)]

    def permutation(self) -> np.ndarray:
        """All indices that can be drawn, each once, in random order."""
        self._check_filled()
        return self.streams.numpy("permutation").permutation(self.indices())

    def all(self) -> SampleBatch:
        """Everything that can be drawn, in the order of `indices()`; goals as stored."""
        return self[self.indices()]

    def __getitem__(self, indices: npt.ArrayLike) -> SampleBatch:
        """The transitions at `indices` (int [N]) with the columns of `sample`, but for weights; goals as stored."""
        rows = self._ring.checked(indices)
        return SampleBatch._trusted({**self._reader.columns(rows, None), Columns.BATCH_INDEXES: rows})

    def next(self, index: npt.ArrayLike) -> np.ndarray:
        """The index of the next transition of the same episode; itself at the episode's end and at the newest one."""
        return self._ring.next(self._ring.checked(index))

    def prev(self, index: npt.ArrayLike) -> np.ndarray:
        """The index of the transition before, of the same episode; itself at its start and at the oldest one."""
        return self._ring.prev(self._ring.checked(index))

    def unfinished_index(self) -> np.ndarray:
        """The newest indices of the sub-buffers whose episode goes on, int64 [0..buffer_num]."""
        newest = self._ring.newest[self._ring.count > 0]
        return newest[self._ring.flags[newest] == 0]

    def update_weight(self, indices: npt.ArrayLike, weights: npt.ArrayLike) -> None:
        """New priorities from errors [N] (any sign) of the transitions at `indices`; tensors are taken too."""
        if self.priorities is None:
            raise ValueError("update_weight: this buffer is not prioritised; use PrioritizedReplayBuffer")
        self.priorities.update(self._ring.checked(indices), to_numpy_leaf(weights))

    def _stackable(self, rows: np.ndarray) -> np.ndarray:
        return self._ring.can_be_stacked(rows, self.options.stack_num, self.options.sample_avail)

    def _check_filled(self) -> None:
        if not self._ring.stored:
            raise ValueError("the buffer is empty: add transitions first")
