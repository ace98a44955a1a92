"""`RunningMeanStd`: mean and variance of a stream of rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lockstep.ops import RunningMoments


class RunningMeanStd(RunningMoments):
    """Mean, variance and count of a stream of rows, which can be set, too.

    Args:
        epsilon: Number of imaginary rows with mean 0 and variance 1 at the start.
        shape: Shape of a row.
    """

    def __init__(self, epsilon: float = 1e-4, shape: Sequence[int] = ()) -> None:
        super().__init__(shape)
        self.count = epsilon  # type: ignore[assignment]  # imaginary rows need not be whole
        self.squares = np.full(self.shape, float(epsilon))

    @property
    def mean(self) -> np.ndarray:
        """Mean `[*shape]`, as a copy."""
        return self._mean.copy()

    @mean.setter
    def mean(self, mean: np.ndarray) -> None:
        self._mean = np.broadcast_to(np.asarray(mean, np.float64), self.shape).copy()

    @property
    def var(self) -> np.ndarray:
        """Variance `[*shape]`. One before the first row."""
        return np.ones(self.shape) if self.count == 0 else np.asarray(self.squares / self.count)

    @var.setter
    def var(self, var: np.ndarray) -> None:
        self.squares = np.broadcast_to(np.asarray(var, np.float64) * self.count, self.shape).copy()

    def copy(self) -> RunningMeanStd:
        """Return a copy."""
        duplicate = RunningMeanStd(0.0, self.shape)
        duplicate.combine(self)
        return duplicate

    def combine(self, other: RunningMeanStd) -> None:
        """Add the rows of `other`, which does not change."""
        self.merge(other)

    def update_from_moments(self, batch_mean: np.ndarray, batch_var: np.ndarray, batch_count: float) -> None:
        """Add `batch_count` rows, whose mean and variance are known."""
        other = RunningMeanStd(batch_count, self.shape)
        other.mean = batch_mean
        other.var = batch_var
        self.merge(other)
