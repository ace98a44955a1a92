"""`RowSource`: interface of replay buffers and recorded data that updates draw samples from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import numpy.typing as npt

from lockstep.data.columns import DEFAULT_MODULE_ID
from lockstep.data.sample_batch import SampleBatch
from lockstep.data.training_buffer import TrainingBuffer


class RowSource(TrainingBuffer, ABC):
    """Rows on the host that gradient steps sample from: a replay buffer, or recorded rows.

    An update reads every source as a mapping by module. A source for a single module is a mapping with one entry; the
    names of its folders, seeds and batches do not mention the module.
    """

    __slots__ = ()

    is_sampled = True

    def by_module(self) -> Mapping[str, RowSource]:
        """Return the source of each module. A source for a single module returns itself."""
        return {DEFAULT_MODULE_ID: self}

    @abstractmethod
    def draw(self, n: int) -> Mapping[str, SampleBatch]:
        """Return `n` samples of each module that has rows, by module.

        `n=0` returns all rows, each of them once, in random order.

        Raises:
            ValueError: there are no rows.
        """

    @abstractmethod
    def seed_streams(self, seed: int) -> None:
        """Restart all random streams of the source from the seed of a run."""

    @property
    def is_prioritized(self) -> bool:
        """Whether rows are drawn in proportion to the errors that `update_weight` was given."""
        return False

    def update_weight(self, indices: npt.ArrayLike, weights: npt.ArrayLike) -> None:
        """Set new priorities of the rows `indices` `[N]` from their errors `weights` `[N]`.

        Raises:
            ValueError: the source is not prioritised.
        """
        raise ValueError("update_weight: these rows are not prioritised; use PrioritizedReplayBuffer")

    def beta_at(self, step: int) -> AbstractContextManager[None]:
        """Return a context in which importance weights use the value of beta at `step` of its schedule.

        Recorded data needs it: nothing is added to it, so the buffer cannot count steps by itself. It changes nothing
        if all rows have equal chances.
        """
        return nullcontext()

    @property
    def rows_of_sample(self) -> int:
        """Largest number of rows in one sample: 1, or the length of a sequence with its burn-in."""
        return 1
