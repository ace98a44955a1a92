"""Running moments that merge over shards, and explained variance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


class RunningMoments:
    """Count, mean and variance of everything seen, in one pass and without storing it.

    Batches and other objects' moments are joined by the formulas of Chan, Golub and LeVeque 1979 ("Updating
    formulae and a pairwise algorithm for computing sample variances"), so the result does not depend on how
    the data were cut into batches and shards, up to float64 rounding. The variance is the population's
    (divided by `count`).
    """

    def __init__(self, shape: Sequence[int] = ()) -> None:
        """Begin with moments of elements of `shape`, one for each entry."""
        self.shape = tuple(int(n) for n in shape)
        self.count = 0
        self._mean = np.zeros(self.shape)
        self.squares = np.zeros(self.shape)
        """`[*shape]`, sum of squared distances from the mean"""

    @classmethod
    def of(cls, count: int, mean: np.ndarray, squares: np.ndarray) -> RunningMoments:
        """Return those of `count` rows with this mean and this sum of squared distances from it, `[*shape]` each."""
        moments = cls(mean.shape)
        moments._join(count, mean, squares)
        return moments

    @property
    def mean(self) -> np.ndarray:
        """`[*shape]`; zero before the first row. A copy."""
        return self._mean.copy()

    @property
    def var(self) -> np.ndarray:
        """`[*shape]`, population variance; one before the first row, so that nothing is scaled then."""
        if self.count == 0:
            return np.ones(self.shape)
        return np.asarray(self.squares / self.count)

    def update(self, x: npt.ArrayLike) -> None:
        """Take in rows `x` `[N, *shape]`; N may be 0.

        Raises:
            ValueError: the rows have another shape.
        """
        rows = np.asarray(x, dtype=np.float64)
        if rows.ndim == 0 or rows.shape[1:] != self.shape:
            raise ValueError(f"Expected rows of shape [N, *{self.shape}], got an array of shape {rows.shape}.")
        if len(rows) == 0:
            return
        mean = rows.mean(axis=0)
        centred = rows - mean
        self._join(len(rows), mean, np.square(centred).sum(axis=0))

    def merge(self, other: RunningMoments) -> None:
        """Take in everything that `other` has seen; `other` is not changed.

        Raises:
            ValueError: `other` has another shape.
        """
        if other.shape != self.shape:
            raise ValueError(f"Cannot merge moments of shape {other.shape} into moments of shape {self.shape}.")
        if other.count:
            self._join(other.count, other.mean, other.squares)

    def _join(self, count: int, mean: np.ndarray, squares: np.ndarray) -> None:
        total = self.count + count
        delta = mean - self._mean
        self._mean = np.asarray(self._mean + delta * (count / total))
        between = np.square(delta) * (self.count * (count / total))
        self.squares = np.asarray(self.squares + squares + between)
        self.count = total

    def get_state(self) -> dict[str, Any]:
        """Return `{"count": int, "mean": [*shape], "squares": [*shape]}`; copies."""
        return {"count": self.count, "mean": self._mean.copy(), "squares": self.squares.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `get_state` returned.

        Raises:
            KeyError: entries are missing.
            ValueError: the state is of another shape.
        """
        mean = np.array(state["mean"], np.float64)
        squares = np.array(state["squares"], np.float64)
        if mean.shape != self.shape or squares.shape != self.shape:
            raise ValueError(f"State has moments of shape {mean.shape} and {squares.shape}, expected {self.shape}.")
        self.count, self._mean, self.squares = int(state["count"]), mean, squares


def explained_variance(pred: npt.ArrayLike, target: npt.ArrayLike) -> float:
    """Return `1 - Var(target - pred) / Var(target)`: 1 = perfect, 0 = no better than a constant, negative = worse.

    Undefined, so NaN, where the target does not vary or there are no rows.

    Raises:
        ValueError: `pred` and `target` have different shapes.
    """
    pred, target = np.asarray(pred, dtype=np.float64), np.asarray(target, dtype=np.float64)
    if pred.shape != target.shape:
        raise ValueError(f"pred and target must have one shape, got {pred.shape} and {target.shape}.")
    if target.size == 0 or not target.max() > target.min():
        return float("nan")
    return 1.0 - _squares(target - pred) / _squares(target)


def _squares(values: np.ndarray) -> float:
    """Return the sum of squared distances from the mean (faster than `np.var` for the few numbers of a rollout)."""
    apart = (values - values.sum() / values.size).reshape(-1)
    return float(apart @ apart)
