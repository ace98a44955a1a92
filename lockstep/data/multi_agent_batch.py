"""`MultiAgentBatch`: one `SampleBatch` for each module, and how many environment steps they are."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from lockstep.data.batch_layout import seq_lens_of
from lockstep.data.batch_views import take_rows, take_sequences
from lockstep.data.columns import DEFAULT_MODULE_ID, Columns
from lockstep.data.compressed import DEFAULT_COLUMNS, wanted_columns
from lockstep.data.sample_batch import SampleBatch, concat_samples
from lockstep.data.trees import to_numpy_leaf


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
