"""`RowSource`: rows on the host that gradient steps are drawn from, of one module or of several."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import numpy.typing as npt

from lockstep.data.columns import DEFAULT_MODULE_ID
from lockstep.data.sample_batch import SampleBatch
from lockstep.data.training_buffer import TrainingBuffer


class RowSource(TrainingBuffer, ABC):
    """What an update draws its samples from: a replay buffer, or recorded rows.

    An update asks each source for its modules, and treats one module as a mapping with one entry. Names of folders,
    seeds and batches of a source for one module do not show that mapping.
    """

    __slots__ = ()

    is_sampled = True
    is_by_module: ClassVar[bool] = False
    """whether it has a source for each module, as that of several agents has"""

    def by_module(self) -> Mapping[str, RowSource]:
        """Return the source of each module; that of one module is the source itself."""
        return {DEFAULT_MODULE_ID: self}

    @abstractmethod
    def draw(self, n: int) -> Mapping[str, SampleBatch]:
        """Return `n` samples of each module that has rows, by module; `n=0`: all rows, each once, in random order.

        Raises:
            ValueError: there are no rows.
        """

    @abstractmethod
    def seed_streams(self, seed: int) -> None:
        """Begin all random numbers of the source anew, with those that belong to the seed of a run."""

    @property
    def is_prioritized(self) -> bool:
        """Whether rows are drawn by the errors that `update_weight` gets."""
        return False

    def update_weight(self, indices: npt.ArrayLike, weights: npt.ArrayLike) -> None:
        """Set new priorities from errors `[N]` of rows. `ValueError` for a source that is not prioritised."""
        raise ValueError("update_weight: these rows are not prioritised; use PrioritizedReplayBuffer")

    def beta_at(self, step: int) -> AbstractContextManager[None]:
        """Return a context in which rows are weighted as at `step` of the schedule of beta.

        It is for rows that do not grow. Where all rows have equal chances, it changes nothing.
        """
        return nullcontext()

    @property
    def rows_of_sample(self) -> int:
        """Number of rows that one sample has at most: 1, or those of a sequence with its burn-in."""
        return 1
