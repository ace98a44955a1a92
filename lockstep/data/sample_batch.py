"""Batches: `SampleBatch`, columns with the same number of rows, and `MultiAgentBatch`, one of them for each module."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from lockstep.data import batch_concat, batch_layout, batch_views, compressed, npz, parquet, tensordicts
from lockstep.data.batch_layout import seq_lens_of
from lockstep.data.batch_views import take_rows, take_sequences
from lockstep.data.columns import DEFAULT_MODULE_ID, Columns
from lockstep.data.compressed import DEFAULT_COLUMNS, wanted_columns
from lockstep.data.summaries import describe_columns
from lockstep.data.trees import (
    as_column,
    copy_leaf,
    is_numeric,
    leaf_bytes,
    leaves,
    map_tree,
    to_numpy_leaf,
    to_torch_leaf,
)

_MISSING = object()
Slice = slice  # the method of this name hides the type in the class


class SampleBatch(dict[str, Any], Columns):
    """Columns of equal length, numpy or torch, possibly nested (dicts and tuples of arrays).

    `SampleBatch({"obs": obs, "rewards": rewards})` or `SampleBatch(obs=obs, rewards=rewards)`. Lists and numbers
    become arrays; `infos` may hold objects.

    With a column `seq_lens` (int [S]) the rows are S sequences: flat (one after another), padded
    (`zero_padded`, each filled to `max_seq_len` rows) or `time_major` (columns [L, S, ...]). State columns
    (`state_in`, `state_out`) then have one row for each sequence.

    `len(batch)` is the number of real rows: the sum of `seq_lens` if there is one, else the rows.

    Raises `TypeError` for a name that is no string or a value that is no column, `ValueError` for unequal lengths.
    """

    __slots__ = ("_max_seq_len", "is_training", "num_grad_updates", "time_major", "zero_padded")

    def __init__(
        self,
        mapping: Mapping[str, Any] | Iterable[tuple[str, Any]] | None = None,
        *,
        _time_major: bool = False,
        _zero_padded: bool = False,
        _max_seq_len: int | None = None,
        _is_training: bool = False,
        _num_grad_updates: float | None = None,
        **columns: Any,
    ) -> None:
        super().__init__()
        self.time_major = _time_major
        self.zero_padded = _zero_padded
        self._max_seq_len = _max_seq_len
        self.is_training = _is_training
        self.num_grad_updates = _num_grad_updates
        given = batch_layout.as_mapping(mapping)
        given.update(columns)
        for name, value in given.items():
            _check_name(name)
            super().__setitem__(name, as_column(name, value))
        batch_layout.check_rows(self)

    @classmethod
    def _trusted(cls, columns: Mapping[str, Any], like: SampleBatch | None = None) -> SampleBatch:
        """A batch of columns known to be sound, without checks; layout and marks from `like`."""
        batch = cls.__new__(cls)
        dict.update(batch, columns)
        batch._take_marks(like)
        return batch

    def _take_marks(self, like: SampleBatch | None) -> None:
        if like is None:
            self.time_major = self.zero_padded = self.is_training = False
            self._max_seq_len = self.num_grad_updates = None
        else:
            self.time_major, self.zero_padded, self.is_training = like.time_major, like.zero_padded, like.is_training
            self._max_seq_len, self.num_grad_updates = like._max_seq_len, like.num_grad_updates

    def __reduce__(self) -> tuple[Any, ...]:
        marks = (
            self.time_major,
            self.zero_padded,
            self._max_seq_len,
            self.is_training,
            self.num_grad_updates,
        )
        return _rebuild, (type(self), dict(self), marks)

    # ---- sizes -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return batch_layout.count_rows(self)

    @property
    def count(self) -> int:
        """Number of real rows, counted now."""
        return len(self)

    def env_steps(self) -> int:
        """Environment steps: one for each row."""
        return len(self)

    agent_steps = env_steps

    @property
    def max_seq_len(self) -> int | None:
        """The longest sequence allowed (the padded length where the batch is padded); None without sequences."""
        if self._max_seq_len is not None:
            return self._max_seq_len
        seq_lens = batch_layout.seq_lens_of(self)
        return None if seq_lens is None or not len(seq_lens) else int(seq_lens.max())

    @max_seq_len.setter
    def max_seq_len(self, value: int | None) -> None:
        self._max_seq_len = value

    def set_training(self, training: bool = True) -> None:
        """Says whether the batch is used for training (`is_training`)."""
        self.is_training = training

    def size_bytes(self) -> int:
        """Bytes of all leaves, objects included."""
        return sum(leaf_bytes(leaf) for column in self.values() for leaf in leaves(column))

    # ---- a dict that keeps its columns sound -------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return super().__getitem__(key)
        return batch_views.select(self, key)

    def __missing__(self, key: str) -> Any:
        if key == Columns.DONES:
            flags = [self[name] for name in (Columns.TERMINATEDS, Columns.TRUNCATEDS) if name in self]
            if flags:
                return flags[0] | flags[1] if len(flags) == 2 else flags[0]
        raise KeyError(f"no column {key!r}; columns are {sorted(self)}")

    def get(self, key: str, default: Any = None) -> Any:
        """The column, or `default`; `dones` reads as in `batch["dones"]`."""
        try:
            return self[key]
        except KeyError:
            return default

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        column = as_column(name, value)
        before = dict.get(self, name, _MISSING)
        super().__setitem__(name, column)
        try:
            batch_layout.check_column(self, name)
        except ValueError:
            if before is _MISSING:
                super().__delitem__(name)
            else:
                super().__setitem__(name, before)
            raise

    def update(self, *mappings: Any, **columns: Any) -> None:
        """Sets several columns, with the checks of the constructor; on an error nothing is changed."""
        given = {**dict(*mappings), **columns}
        for name in given:
            _check_name(name)
        merged = SampleBatch._trusted(dict(self), self)
        dict.update(merged, {name: as_column(name, value) for name, value in given.items()})
        batch_layout.check_rows(merged)
        super().update(merged)

    def setdefault(self, name: str, default: Any = None) -> Any:
        """The column, which is set to `default` first where it is missing."""
        if name not in self:
            self[name] = default
        return self[name]

    def __ior__(self, other: Any) -> SampleBatch:  # type: ignore[override, misc]
        self.update(other)
        return self

    # ---- reading -----------------------------------------------------------------------------------------

    def columns(self, keys: Sequence[str]) -> list[Any]:
        """The columns in this order; `KeyError` for one that is missing."""
        return [self[key] for key in keys]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each real row as `{column: row}`; states, of which each sequence has one, are left out, `seq_lens` is 1."""
        return batch_views.iterate_rows(self)

    def get_single_step_input_dict(
        self, view_requirements: Mapping[str, Any] | None = None, index: int | Literal["last"] = "last"
    ) -> SampleBatch:
        """One row as model input, [1, ...] for each column, with `seq_lens` [1].

        `index="last"` is the input for the step *after* the last row: `obs` is the last `new_obs`,
        `prev_actions` and `prev_rewards` are the last action and reward, `state_in` the last `state_out`.
        An integer takes that row as it is. `view_requirements` maps a wanted column to the column it is read
        from (a name, None for the same name, or an object with `data_col`).
        """
        return SampleBatch(batch_views.single_step_input(self, view_requirements, index))

    def is_terminated_or_truncated(self) -> bool:
        """Whether the last row ends an episode."""
        return bool(len(self)) and bool(self._flat()[Columns.DONES][-1])

    def is_single_trajectory(self) -> bool:
        """Whether no row but the last ends an episode, and all have one `eps_id` (and one `agent_id`, if any)."""
        return batch_views.is_single_trajectory(self._flat())

    def summary(self) -> str:
        """One line for each column: container, shape, dtype, min, max, mean."""
        marks = [f"{len(self)} rows"]
        if Columns.SEQ_LENS in self:
            marks.append(f"{len(self[Columns.SEQ_LENS])} sequences")
        marks += ["zero padded"] * self.zero_padded + ["time-major"] * self.time_major
        return f"SampleBatch({', '.join(marks)})\n{describe_columns(self)}".rstrip()

    __repr__ = summary

    # ---- parts -------------------------------------------------------------------------------------------

    def slice(self, start: int, end: int, state_start: int | None = None, state_end: int | None = None) -> SampleBatch:
        """Rows `start` to `end` as views.

        With `seq_lens` the slice snaps to whole sequences: from the one that holds row `start` up to, but without,
        the one that holds row `end` (neighbouring slices therefore never share or lose a row). With `state_start`
        and `state_end` the sequences are named instead; `ValueError` unless their rows are just `start` to `end`.
        """
        if state_start is None and state_end is None:
            return batch_views.select(self, slice(start, end))
        return batch_views.select_sequence_range(self, start, end, state_start, state_end)

    def take_sequences(self, sequences: Slice | np.ndarray) -> SampleBatch:
        """Whole sequences by number; views for a slice of flat or padded rows, one gather for an int array."""
        return batch_views.take_sequences(self, sequences)

    def split_by_episode(self, key: str | None = None) -> Sequence[SampleBatch]:
        """One view for each episode: cut where `key` changes, else after each ended row.

        The default key is `eps_id`, with `agent_id` where there is one: agents of one module share their `eps_id`.

        An open last piece is kept. The views are made when they are read (`list(...)` makes all of them).
        Neither an episode column nor flags: `KeyError`.
        """
        return batch_views.split_by_episode(self, key)

    def timeslices(self, size: int | None = None, num_slices: int | None = None) -> list[SampleBatch]:
        """Views of `size` rows each (the last may be shorter), or `num_slices` views of nearly equal size.

        Every row lies in exactly one slice. `ValueError` unless exactly one argument is given.
        """
        return batch_views.timeslices(self, size, num_slices)

    def split(
        self, size: int, shuffle: bool = False, generator: np.random.Generator | int | None = None
    ) -> Iterator[SampleBatch]:
        """Batches of `size` rows, the last possibly shorter; in random order with `shuffle`."""
        return batch_views.split(self, size, shuffle, generator)

    # ---- new forms ---------------------------------------------------------------------------------------

    def shuffle(self, generator: np.random.Generator | int | None = None) -> SampleBatch:
        """Permutes rows (with `seq_lens`: whole sequences) in place, every column alike; returns self."""
        dict.update(self, batch_views.permuted(self, generator))
        return self

    def copy(self, shallow: bool = False) -> SampleBatch:
        """A copy; deep for tensors and objects too, or `shallow` with the same arrays."""
        function = (lambda leaf: leaf) if shallow else copy_leaf
        return self._trusted({name: map_tree(function, column) for name, column in self.items()}, self)

    def right_zero_pad(self, max_seq_len: int, exclude_states: bool = True) -> SampleBatch:
        """Fills each sequence with zeros on the right to `max_seq_len` rows, in place; returns self.

        `exclude_states=False` spreads state columns as well: the state in the first row of its sequence, zeros
        after. `ValueError` without `seq_lens`, or where a sequence is longer than `max_seq_len`.
        """
        batch_layout.right_zero_pad(self, max_seq_len, exclude_states)
        return self

    def unpad(self) -> SampleBatch:
        """Brings padded or time-major sequences to flat rows, in place; returns self."""
        batch_layout.unpad(self)
        return self

    def _flat(self) -> SampleBatch:
        """Self, or an unpadded shallow copy where rows are padded or time-major."""
        return self.copy(shallow=True).unpad() if self.zero_padded or self.time_major else self

    def to_device(
        self,
        device: str | torch.device,
        pin_memory: bool = False,
        non_blocking: bool = False,
        *,
        keep_dtype: bool = False,
    ) -> SampleBatch:
        """Makes all columns tensors on `device`, in place; returns self.

        float64 becomes float32 unless `keep_dtype`. `infos`, strings and objects stay as they are.
        """
        device = batch_layout.known_device(device)

        def move(leaf: Any) -> Any:
            if not is_numeric(leaf):
                return leaf
            tensor = to_torch_leaf(leaf)
            dtype = torch.float32 if tensor.dtype == torch.float64 and not keep_dtype else tensor.dtype
            if pin_memory and tensor.device.type == "cpu" and device.type == "cuda":
                tensor = tensor.pin_memory()
            return tensor.to(device=device, dtype=dtype, non_blocking=non_blocking)

        for name, column in self.items():
            if name != Columns.INFOS:
                dict.__setitem__(self, name, map_tree(move, column))
        return self

    def to_numpy(self) -> SampleBatch:
        """The same columns as numpy arrays, sharing memory where tensors lie on the CPU."""
        return self._trusted({name: map_tree(to_numpy_leaf, column) for name, column in self.items()}, self)

    def to_torch(self) -> SampleBatch:
        """The same columns as tensors, sharing memory where numpy allows it; strings and objects stay arrays."""
        return self._trusted({name: map_tree(to_torch_leaf, column) for name, column in self.items()}, self)

    def as_multi_agent(self, module_id: str = DEFAULT_MODULE_ID) -> MultiAgentBatch:
        """The `MultiAgentBatch` with this batch under `module_id`."""
        return MultiAgentBatch({module_id: self}, self.env_steps())

    # ---- files and other libraries -----------------------------------------------------------------------

    def _marks(self) -> dict[str, Any]:
        return {
            "time_major": self.time_major,
            "zero_padded": self.zero_padded,
            "max_seq_len": self._max_seq_len,
            "is_training": self.is_training,
            "num_grad_updates": self.num_grad_updates,
        }

    def to_npz(self, path: str | Path) -> Path:
        """Writes all columns to one `.npz` file without loss; returns its path.

        `infos` may hold None, bool, int, float, str, arrays and dicts, lists and tuples of them; `TypeError`
        naming the column for any other object, `OSError` naming the file where it cannot be written.
        """
        return npz.write_npz(Path(path), self, self._marks())

    @classmethod
    def from_npz(cls, path: str | Path) -> SampleBatch:
        """Reads what `to_npz` wrote; `ValueError` naming the file where it is damaged or foreign."""
        return npz.read_npz(cls, Path(path))

    def to_parquet(self, path: str | Path, *, compression: str = "zstd", row_group_size: int = 65_536) -> Path:
        """Writes all columns to one Parquet file without loss (extra `offline`); returns its path. As `to_npz`."""
        return parquet.write_parquet(Path(path), self, self._marks(), compression, row_group_size)

    @classmethod
    def from_parquet(cls, path: str | Path, columns: Sequence[str] | None = None) -> SampleBatch:
        """Reads what `to_parquet` wrote, or a plain table of numbers, bools and text; all columns or some.

        `ValueError` naming the file where it is damaged or foreign, `KeyError` for a column it lacks.
        """
        return parquet.read_parquet(cls, Path(path), columns)

    def to_tensordict(self) -> Any:
        """A `TensorDict` (extra `tensordict`) that shares memory; text and objects are its non-tensor data.

        Its batch size is the number of rows; with sequences it has none.
        """
        return tensordicts.to_tensordict(self, self._marks())

    @classmethod
    def from_tensordict(cls, tensordict: Any) -> SampleBatch:
        """The batch that `to_tensordict` was given, or any `TensorDict` with up to one batch dimension."""
        return tensordicts.from_tensordict(cls, tensordict)

    def compress(self, bulk: bool = False, columns: Collection[str] = compressed.DEFAULT_COLUMNS) -> SampleBatch:
        """Compresses columns in place (lz4, extra `compression`); returns self.

        Each row apart, or with `bulk` all rows of a leaf together (smaller, and faster where all are needed). Rows
        can still be sliced, joined, shuffled and padded. `KeyError` for a missing column that is named,
        `TypeError` for a column of objects.
        """
        compressed.compress_batch(self, bulk, compressed.wanted_columns(columns, self))
        return self

    def decompress_if_needed(self, columns: Collection[str] = compressed.DEFAULT_COLUMNS) -> SampleBatch:
        """Brings compressed columns back as they were (tensors on the CPU), in place; returns self."""
        compressed.decompress_batch(self, compressed.wanted_columns(columns, self))
        return self

    def concat(self, other: SampleBatch) -> SampleBatch:
        """The rows of both; see `concat_samples`."""
        return concat_samples([self, other])

    @staticmethod
    def concat_samples(batches: Sequence[Any], on_missing: Literal["raise", "drop"] = "raise") -> Any:
        """See the function `concat_samples`."""
        return concat_samples(batches, on_missing)


def concat_samples(batches: Sequence[Any], on_missing: Literal["raise", "drop"] = "raise") -> Any:
    """The rows of all batches in one, with one allocation for each column.

    Empty batches are skipped; `[]` gives an empty batch. A column that one batch lacks: `KeyError` with its
    name and position (`on_missing="drop"` keeps the common columns). Batches of different layout (padding, padded
    length, time-major): `ValueError`. `num_grad_updates` becomes the mean over the rows.
    Where one is a `MultiAgentBatch` the result is one as well (`concat_samples_into_ma_batch`).
    """
    batches = list(batches)
    if set(map(type, batches)) - {SampleBatch}:
        if any(isinstance(batch, MultiAgentBatch) for batch in batches):
            return concat_samples_into_ma_batch(batches, on_missing)
        for position, batch in enumerate(batches):
            if not isinstance(batch, SampleBatch):
                raise TypeError(f"position {position} is a {type(batch).__name__}; all must be SampleBatch")
    if on_missing not in ("raise", "drop"):
        raise ValueError(f"on_missing={on_missing!r}; allowed are 'raise' and 'drop'")
    columns, like = batch_concat.concat(batches, on_missing)
    result = SampleBatch._trusted(columns, like)
    result.max_seq_len = batch_concat.max_seq_len_of(batches, result)
    result.num_grad_updates = batch_concat.mean_grad_updates(batches)
    return result


def _rebuild(cls: type[SampleBatch], columns: dict[str, Any], marks: tuple[Any, ...]) -> SampleBatch:
    batch = cls._trusted(columns)
    batch.time_major, batch.zero_padded, batch._max_seq_len, batch.is_training, batch.num_grad_updates = marks
    return batch


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(f"column names are strings, got {name!r} ({type(name).__name__})")


class MultiAgentBatch:
    """`policy_batches` by module id, collected in `env_steps` environment steps.

    `len(batch)` is the number of environment steps, `batch[module_id]` one module's rows, iteration gives the
    module ids. Raises `TypeError` where a value is no `SampleBatch`, `ValueError` for negative `env_steps`.
    """

    __slots__ = ("_env_steps", "policy_batches")

    def __init__(self, policy_batches: Mapping[str, SampleBatch], env_steps: int) -> None:
        for module_id, batch in policy_batches.items():
            if not isinstance(module_id, str):
                raise TypeError(f"module id {module_id!r} is a {type(module_id).__name__}; give a string")
            if not isinstance(batch, SampleBatch):
                raise TypeError(f"module {module_id!r} has a {type(batch).__name__}; a SampleBatch is needed")
        if env_steps < 0:
            raise ValueError(f"env_steps={env_steps}; it cannot be negative")
        self.policy_batches: dict[str, SampleBatch] = dict(policy_batches)
        self._env_steps = int(env_steps)

    def env_steps(self) -> int:
        """Environment steps in which the rows were collected."""
        return self._env_steps

    def agent_steps(self) -> int:
        """Rows of all modules together."""
        return sum(batch.agent_steps() for batch in self.policy_batches.values())

    def __len__(self) -> int:
        return self._env_steps

    @property
    def count(self) -> int:
        """Environment steps."""
        return self._env_steps

    def __getitem__(self, module_id: str) -> SampleBatch:
        try:
            return self.policy_batches[module_id]
        except KeyError:
            raise KeyError(f"no module {module_id!r}; modules are {sorted(self.policy_batches)}") from None

    def __contains__(self, module_id: object) -> bool:
        return module_id in self.policy_batches

    def __iter__(self) -> Iterator[str]:
        return iter(self.policy_batches)

    def size_bytes(self) -> int:
        """Bytes of all modules' leaves."""
        return sum(batch.size_bytes() for batch in self.policy_batches.values())

    def copy(self, shallow: bool = False) -> MultiAgentBatch:
        """A copy; deep, or `shallow` with the same arrays."""
        return MultiAgentBatch(
            {module_id: batch.copy(shallow) for module_id, batch in self.policy_batches.items()},
            self._env_steps,
        )

    def to_device(
        self,
        device: str | torch.device,
        pin_memory: bool = False,
        non_blocking: bool = False,
        *,
        keep_dtype: bool = False,
    ) -> MultiAgentBatch:
        """Makes every module's columns tensors on `device`, in place; returns self."""
        for batch in self.policy_batches.values():
            batch.to_device(device, pin_memory, non_blocking, keep_dtype=keep_dtype)
        return self

    def compress(self, bulk: bool = False, columns: Collection[str] = DEFAULT_COLUMNS) -> MultiAgentBatch:
        """Compresses columns of every module in place; returns self. See `SampleBatch.compress`.

        A module may lack a column that another has; `KeyError` where none has it.
        """
        for batch, names in self._with_columns(columns):
            batch.compress(bulk, names)
        return self

    def decompress_if_needed(self, columns: Collection[str] = DEFAULT_COLUMNS) -> MultiAgentBatch:
        """Brings compressed columns of every module back as they were, in place; returns self."""
        for batch, names in self._with_columns(columns):
            batch.decompress_if_needed(names)
        return self

    def _with_columns(self, columns: Collection[str]) -> list[tuple[SampleBatch, list[str]]]:
        """Each module's batch with those of the columns that it has."""
        everywhere = {name for batch in self.policy_batches.values() for name in batch}
        wanted = wanted_columns(columns, everywhere)
        return [(batch, [name for name in wanted if name in batch]) for batch in self.policy_batches.values()]

    def as_multi_agent(self) -> MultiAgentBatch:
        """Self."""
        return self

    def timeslices(self, k: int) -> list[MultiAgentBatch]:
        """Batches of `k` environment steps each (the last may have fewer).

        An environment step is one `(eps_id, t)` over all modules; episodes keep the order in which they appear.
        Every row lies in exactly one slice; modules without rows in a slice are left out of it. With `seq_lens`
        sequences stay whole, as in slices of a `SampleBatch`: each lies in the slice of its last row, and the slice
        counts the environment steps that no earlier slice has. Raises `ValueError` for `k < 1`, `KeyError` where a
        module lacks `eps_id` or `t`.
        """
        if k < 1:
            raise ValueError(f"k={k}; a slice has at least 1 environment step")
        filled = {module_id: batch for module_id, batch in self.policy_batches.items() if len(batch)}
        if not filled:
            return []
        steps = _environment_steps(filled)
        num_steps = 1 + max(int(rows.max()) for rows in steps.values())
        parts: list[dict[str, SampleBatch]] = [{} for _ in range(-(-num_steps // k))]
        slice_of_step = np.full(num_steps, len(parts), dtype=np.int64)
        for module_id, batch in filled.items():
            number, lengths = steps[module_id] // k, seq_lens_of(batch)
            take = take_rows if lengths is None else take_sequences
            if lengths is None:
                np.minimum.at(slice_of_step, steps[module_id], number)
            else:
                real = np.flatnonzero(lengths)
                batch = take_sequences(batch, real) if len(real) < len(lengths) else batch
                number = number[np.cumsum(lengths[real]) - 1]
                np.minimum.at(slice_of_step, steps[module_id], np.repeat(number, lengths[real]))
            order = np.argsort(number, kind="stable")
            bounds = np.searchsorted(number[order], np.arange(len(parts) + 1))
            in_order = bool(np.all(np.diff(number) >= 0))
            for part, start, stop in zip(parts, bounds[:-1].tolist(), bounds[1:].tolist()):
                if stop > start:
                    part[module_id] = take(batch, slice(start, stop) if in_order else order[start:stop])
        counts = np.bincount(slice_of_step, minlength=len(parts)).tolist()
        return [MultiAgentBatch(part, count) for part, count in zip(parts, counts) if part]

    @staticmethod
    def wrap_as_needed(policy_batches: Mapping[str, SampleBatch], env_steps: int) -> SampleBatch | MultiAgentBatch:
        """The plain `SampleBatch` where there is only the default module, else a `MultiAgentBatch`."""
        if list(policy_batches) == [DEFAULT_MODULE_ID]:
            return policy_batches[DEFAULT_MODULE_ID]
        return MultiAgentBatch(policy_batches, env_steps)

    @staticmethod
    def concat_samples(
        batches: Sequence[SampleBatch | MultiAgentBatch], on_missing: Literal["raise", "drop"] = "raise"
    ) -> MultiAgentBatch:
        """All rows by module; environment steps add up. See `concat_samples_into_ma_batch`."""
        return concat_samples_into_ma_batch(batches, on_missing)

    def __repr__(self) -> str:
        lines = [f"MultiAgentBatch({self._env_steps} env steps, {self.agent_steps()} agent steps)"]
        for module_id, batch in self.policy_batches.items():
            lines += [f"{module_id!r}: {line}" if not i else line for i, line in enumerate(repr(batch).split("\n"))]
        return "\n".join(lines)


def concat_samples_into_ma_batch(
    batches: Sequence[SampleBatch | MultiAgentBatch], on_missing: Literal["raise", "drop"] = "raise"
) -> MultiAgentBatch:
    """All rows by module in one `MultiAgentBatch`; a `SampleBatch` counts as the default module's.

    Environment steps add up. Missing columns are treated as in `concat_samples`; `TypeError` for other values.
    """
    pieces: dict[str, list[SampleBatch]] = {}
    env_steps = 0
    for position, batch in enumerate(batches):
        if not isinstance(batch, SampleBatch | MultiAgentBatch):
            raise TypeError(
                f"position {position} is a {type(batch).__name__}; a SampleBatch or MultiAgentBatch is needed"
            )
        whole = batch.as_multi_agent()
        env_steps += whole.env_steps()
        for module_id, part in whole.policy_batches.items():
            pieces.setdefault(module_id, []).append(part)
    joined = {module_id: concat_samples(parts, on_missing) for module_id, parts in pieces.items()}
    return MultiAgentBatch(joined, env_steps)


def convert_ma_batch_to_sample_batch(batch: SampleBatch | MultiAgentBatch) -> SampleBatch:
    """The `SampleBatch` of the default module, where it is the only one; `ValueError` naming the others."""
    if isinstance(batch, SampleBatch):
        return batch
    if list(batch) != [DEFAULT_MODULE_ID]:
        raise ValueError(
            f"the batch has the modules {sorted(batch)}; only {DEFAULT_MODULE_ID!r} alone can be converted"
        )
    return batch[DEFAULT_MODULE_ID]


def _environment_steps(batches: Mapping[str, SampleBatch]) -> dict[str, np.ndarray]:
    """Number of the environment step of each row, counted over all modules in order of (episode, t)."""
    columns: list[tuple[Any, Any]] = []
    for module_id, batch in batches.items():
        for name in (Columns.EPS_ID, Columns.T):
            if name not in batch:
                raise KeyError(f"module {module_id!r} lacks column {name!r}; timeslices needs 'eps_id' and 't'")
        flat = batch._flat()
        columns.append((to_numpy_leaf(flat[Columns.EPS_ID]), to_numpy_leaf(flat[Columns.T])))
    episodes, first, inverse = np.unique(
        np.concatenate([ids for ids, _ in columns]), return_index=True, return_inverse=True
    )
    rank = np.empty(len(episodes), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(episodes))
    keys = np.stack([rank[inverse], np.concatenate([t for _, t in columns]).astype(np.int64)], axis=1)
    _, number = np.unique(keys, axis=0, return_inverse=True)
    cuts = np.cumsum([len(ids) for ids, _ in columns])[:-1]
    return dict(zip(batches, np.split(number.reshape(-1), cuts)))
