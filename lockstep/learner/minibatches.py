"""Minibatches of an update: the rows of each gradient step, for one or several modules."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.data.columns import Columns
from lockstep.data.minibatch import minibatches_per_pass, multi_minibatch_indices
from lockstep.data.trees import map_tree
from lockstep.options.checks import check_flags, check_whole, is_number

RowIndices = dict[str, np.ndarray | None]
"""Row indices of a minibatch by module id; None for all rows."""
TensorColumns = dict[str, Any]
"""Columns of one module by name: tensors `[N, ...]`, or nested dicts and tuples of them."""


@dataclass(frozen=True, slots=True)
class UpdateOptions:
    """Options of one update call: present time for schedules, passes, minibatches, shuffling."""

    timesteps: Mapping[str, int] | None = None
    """Present time for schedules and hooks, e.g. `{"num_env_steps_sampled_lifetime": 40_000}`."""
    num_epochs: int = 1
    """Number of passes over the batch."""
    minibatch_size: int | None = None
    """Number of rows in one gradient step, of the module with the most rows. `None` takes all rows."""
    shuffle_batch_per_epoch: bool = False
    """Shuffle the rows again before each pass. Ignored if `minibatch_size` is None."""

    def __post_init__(self) -> None:
        check_whole("num_epochs", self.num_epochs, 1)
        check_whole("minibatch_size", self.minibatch_size, 1, optional=True)
        check_flags(shuffle_batch_per_epoch=self.shuffle_batch_per_epoch)
        if self.timesteps is None:
            return
        values = self.timesteps.values() if isinstance(self.timesteps, Mapping) else [None]
        if not all(map(is_number, values)):
            raise TypeError(
                f"timesteps must be a dict such as {{'num_env_steps_sampled_lifetime': 40_000}}, not {self.timesteps!r}"
            )
        if not all(0 <= value < math.inf for value in values):
            raise ValueError(f"timesteps={self.timesteps!r} is not allowed; steps are finite, at least 0")


def take_minibatch(
    columns: Mapping[str, TensorColumns], indices: Mapping[str, Tensor | None]
) -> dict[str, TensorColumns]:
    """Return the rows `indices` of every column, one gather for each; `None` returns all rows without a copy."""
    return {
        module_id: columns[module_id] if index is None else take_rows(columns[module_id], index)
        for module_id, index in indices.items()
    }


def take_rows(columns: TensorColumns, index: Tensor) -> TensorColumns:
    """Return the rows `index` `[K]` int64 of every column, nested columns included."""
    taken: TensorColumns = map_tree(lambda leaf: leaf.index_select(0, index), columns)
    return taken


def module_minibatches(
    num_rows: Mapping[str, int], options: UpdateOptions, rng: np.random.Generator
) -> Iterator[list[RowIndices]]:
    """Yield the list of minibatches of each pass. `num_rows` is the number of rows by module id.

    A minibatch holds `minibatch_size` rows of the module with the most rows, and a proportional number of each other
    module.
    Random numbers of a pass are drawn from `rng` when the pass begins: an update that stops early draws none for later
    passes.
    """
    size = options.minibatch_size
    num_epochs = options.num_epochs
    if size is None or size >= max(num_rows.values()):
        for _ in range(num_epochs):
            yield [dict.fromkeys(num_rows)]
        return
    batches = multi_minibatch_indices(num_rows, size, num_epochs, options.shuffle_batch_per_epoch, rng)
    for _ in range(num_epochs):
        yield [dict(indices) for indices in itertools.islice(batches, minibatches_per_pass(num_rows, size))]


def rows_on_device(minibatches: Sequence[RowIndices], device: torch.device) -> list[dict[str, Tensor | None]]:
    """Return the row indices of each minibatch as tensors on `device`, after one transfer for all of them."""
    indices: list[np.ndarray] = []
    for rows in minibatches:
        indices += [index for index in rows.values() if index is not None]
    if not indices:
        return [dict.fromkeys(rows) for rows in minibatches]

    if device.type == "cpu":
        tensors = iter([torch.from_numpy(index) for index in indices])
    else:
        tensors = iter(torch.from_numpy(np.concatenate(indices)).to(device).split([len(index) for index in indices]))
    return [{mid: None if index is None else next(tensors) for mid, index in rows.items()} for rows in minibatches]


def warn_of_rows_left_out(num_left_out: int, num_rows: int, options: UpdateOptions, train_batch_size: int) -> None:
    """Warn that each pass leaves out rows of the batch. `train_batch_size` is the configured number of rows."""
    which = (
        "another random part in each pass" if options.shuffle_batch_per_epoch else "they come first in the next pass"
    )
    size = options.minibatch_size or num_rows
    advice = "Set minibatch_size to a number that divides the rows, None for the whole batch at once"
    if train_batch_size % size:
        advice += ", or train_batch_size to a multiple of minibatch_size"
    elif train_batch_size != num_rows:
        advice += f" (train_batch_size={train_batch_size} is a multiple of it, but {num_rows} rows came to this update)"
    warnings.warn(
        f"{num_left_out} of {num_rows} rows are left out of each pass, because they fill no minibatch of "
        f"{options.minibatch_size} ({which}). {advice}; results count them as num_rows_left_out",
        stacklevel=2,
    )


def steps_by_row(columns: Mapping[str, TensorColumns]) -> dict[str, np.ndarray]:
    """Return the number of transitions in each row `[N]`, by module id.

    Only modules whose columns have a `loss_mask` are in the result. A row of a module with memory is a sequence, which
    holds several transitions.
    """
    masks = {mid: part[Columns.LOSS_MASK] for mid, part in columns.items() if Columns.LOSS_MASK in part}
    return {mid: mask.reshape(len(mask), -1).sum(1).cpu().numpy() for mid, mask in masks.items()}
