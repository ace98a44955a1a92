"""Running moments that can be merged across shards, and the explained variance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


class RunningMoments:
    """Count, mean and variance of a stream of rows, updated in one pass without storing the rows.

    Batches and the moments of other objects are merged by the formulas of Chan, Golub and LeVeque 1979 ("Updating
    formulae and a pairwise algorithm for computing sample variances"). So the result does not depend on how the data
    were split into batches and shards, up to float64 rounding. The variance is that of the population (divided by
    `count`).

    Args:
        shape: Shape of a row. Each entry has its own mean and variance.
    """

    def __init__(self, shape: Sequence[int] = ()) -> None:
        self.shape = tuple(int(n) for n in shape)
        self.count = 0
        self._mean = np.zeros(self.shape)
        self.squares = np.zeros(self.shape)
        """`[*shape]`, sum of the squared distances from the mean."""

    @classmethod
    def of(cls, count: int, mean: np.ndarray, squares: np.ndarray) -> RunningMoments:
        """Return the moments of `count` rows whose mean and sum of squared distances from it are known.

        Args:
            count: Number of rows.
            mean: `[*shape]`.
            squares: `[*shape]`, sum of the squared distances from the mean.
        """
        moments = cls(mean.shape)
        moments._join(count, mean, squares)
        return moments

    @property
    def mean(self) -> np.ndarray:
        """Mean `[*shape]`, as a copy. Zero before the first row."""
        return self._mean.copy()

    @property
    def var(self) -> np.ndarray:
        """Population variance `[*shape]`. One before the first row, so that dividing by it changes nothing."""
        if self.count == 0:
            return np.ones(self.shape)
        return np.asarray(self.squares / self.count)

    def update(self, x: npt.ArrayLike) -> None:
        """Add rows `x` `[N, *shape]`; N may be 0.

        Raises:
            ValueError: The rows have another shape.
        """
        rows = np.asarray(x, dtype=np.float64)
        if rows.ndim == 0 or rows.shape[1:] != self.shape:
            raise ValueError(f"Expected rows of shape [N, *{self.shape}], got an array of shape {rows.shape}.")
        if len(rows) == 0:
            return
        # Distances from the batch's own mean: a sum of squares from 0 would cancel where the mean is large.
        mean = rows.mean(axis=0)
        centred = rows - mean
        self._join(len(rows), mean, np.square(centred).sum(axis=0))

    def merge(self, other: RunningMoments) -> None:
        """Add the rows of `other`, which does not change.

        Raises:
            ValueError: `other` has another shape.
        """
        if other.shape != self.shape:
            raise ValueError(f"Cannot merge moments of shape {other.shape} into moments of shape {self.shape}.")
        if other.count:
            self._join(other.count, other.mean, other.squares)

    def _join(self, count: int, mean: np.ndarray, squares: np.ndarray) -> None:
        """Add `count` > 0 rows with these moments, by the update of Chan et al. 1979 for two samples."""
        total = self.count + count
        delta = mean - self._mean
        self._mean = np.asarray(self._mean + delta * (count / total))
        between = np.square(delta) * (self.count * (count / total))
        self.squares = np.asarray(self.squares + squares + between)
        self.count = total

    def get_state(self) -> dict[str, Any]:
        """Return `{"count": int, "mean": [*shape], "squares": [*shape]}`, as copies."""
        return {"count": self.count, "mean": self._mean.copy(), "squares": self.squares.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `get_state` returned.

        Raises:
            KeyError: The state lacks an entry.
            ValueError: The state has another shape.
        """
        mean = np.array(state["mean"], np.float64)
        squares = np.array(state["squares"], np.float64)
        if mean.shape != self.shape or squares.shape != self.shape:
            raise ValueError(f"State has moments of shape {mean.shape} and {squares.shape}, expected {self.shape}.")
        self.count = int(state["count"])
        self._mean = mean
        self.squares = squares


def explained_variance(pred: npt.ArrayLike, target: npt.ArrayLike) -> float:
    """Return the explained variance `1 - Var(target - pred) / Var(target)` of predictions.

    1 is perfect, 0 is as good as a constant, and negative is worse than a constant. The result is NaN if the target
    does not vary or is empty.

    Raises:
        ValueError: `pred` and `target` have different shapes.
    """
    pred = np.asarray(pred, dtype=np.float64)
    target = np.asarray(target, dtype=np.float64)
    if pred.shape != target.shape:
        raise ValueError(f"pred and target must have one shape, got {pred.shape} and {target.shape}.")
    # Written with `not >`, so that a target with NaN gives NaN too.
    if target.size == 0 or not target.max() > target.min():
        return float("nan")
    return 1.0 - _sum_of_squares(target - pred) / _sum_of_squares(target)


def _sum_of_squares(values: np.ndarray) -> float:
    """Return the sum of squared distances from the mean, faster than `np.var` for the few numbers of a rollout."""
    distances = (values - values.sum() / values.size).reshape(-1)
    return float(distances @ distances)
