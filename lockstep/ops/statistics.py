"""Running moments that merge over shards, and explained variance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class RunningMoments:
    """Count, mean and variance of everything seen, in one pass and without storing it.

    Batches and other objects' moments are joined by the formulas of Chan, Golub and LeVeque 1979 ("Updating
    formulae and a pairwise algorithm for computing sample variances"), so the result does not depend on how
    the data were cut into batches and shards, up to float64 rounding. The variance is the population's
    (divided by `count`).
    """

    def __init__(self, shape: Sequence[int] = (), dtype: npt.DTypeLike = np.float64) -> None:
        """Begin with moments of elements of `shape`, one for each entry; `dtype` is that of the sums."""
        self.shape = tuple(int(n) for n in shape)
        self.dtype = np.dtype(dtype)
        self.count = 0
        self._mean = np.zeros(self.shape, dtype=self.dtype)
        self.squares = np.zeros(self.shape, dtype=self.dtype)
        """`[*shape]`, sum of squared distances from the mean"""
        self._scale_cache: dict[float, tuple[np.ndarray, np.ndarray]] = {}

    @property
    def mean(self) -> np.ndarray:
        """`[*shape]`; zero before the first row. A copy."""
        return self._mean.copy()

    @property
    def var(self) -> np.ndarray:
        """`[*shape]`, population variance; one before the first row, so that nothing is scaled then."""
        if self.count == 0:
            return np.ones(self.shape, dtype=self.dtype)
        return np.asarray(self.squares / self.count)

    @property
    def std(self) -> np.ndarray:
        """`[*shape]`, square root of `var`."""
        return np.asarray(np.sqrt(self.var), dtype=self.dtype)

    def update(self, x: npt.ArrayLike) -> None:
        """Take in rows `x` `[N, *shape]`; N may be 0.

        Raises:
            ValueError: the rows have another shape.
        """
        rows = np.asarray(x, dtype=self.dtype)
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
        self._mean = np.asarray(self._mean + delta * (count / total), dtype=self.dtype)
        between = np.square(delta) * (self.count * (count / total))
        self.squares = np.asarray(self.squares + squares + between, dtype=self.dtype)
        self.count = total
        self._scale_cache.clear()

    @overload
    def normalize(self, x: np.ndarray, clip: float | None = None, epsilon: float = 1e-8) -> np.ndarray: ...
    @overload
    def normalize(self, x: Tensor, clip: float | None = None, epsilon: float = 1e-8) -> Tensor: ...
    def normalize(
        self, x: np.ndarray | Tensor, clip: float | None = None, epsilon: float = 1e-8
    ) -> np.ndarray | Tensor:
        """Return `(x - mean) / sqrt(var + epsilon)`, limited to [-clip, clip]; `x` is `[..., *shape]`.

        float64 input stays float64, anything else comes back as float32; a tensor stays on its device. Does
        not change the moments.
        """
        mean, inverse_std = self._scale(epsilon)
        if isinstance(x, Tensor):
            dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
            shift = torch.as_tensor(mean, dtype=dtype, device=x.device)
            factor = torch.as_tensor(inverse_std, dtype=dtype, device=x.device)
            scaled = (x.to(dtype) - shift) * factor
            return scaled if clip is None else scaled.clamp(-clip, clip)
        kind = np.float64 if x.dtype == np.float64 else np.float32
        result = np.subtract(x, mean.astype(kind), dtype=kind)
        result = np.multiply(result, inverse_std.astype(kind), dtype=kind)
        return result if clip is None else np.clip(result, -clip, clip)

    def _scale(self, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
        if epsilon not in self._scale_cache:
            self._scale_cache[epsilon] = (self._mean, np.asarray(1.0 / np.sqrt(self.var + epsilon)))
        return self._scale_cache[epsilon]

    def get_state(self) -> dict[str, Any]:
        """Return `{"count": int, "mean": [*shape], "squares": [*shape]}`; copies."""
        return {"count": self.count, "mean": self._mean.copy(), "squares": self.squares.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`get_state` returned.

        Raises:
            KeyError: entries are missing.
            ValueError: the state is of another shape.
        """
        mean = np.array(state["mean"], dtype=self.dtype)
        squares = np.array(state["squares"], dtype=self.dtype)
        if mean.shape != self.shape or squares.shape != self.shape:
            raise ValueError(f"State has moments of shape {mean.shape} and {squares.shape}, expected {self.shape}.")
        self.count, self._mean, self.squares = int(state["count"]), mean, squares
        self._scale_cache.clear()


def _squares(values: np.ndarray) -> float:
    """Return the sum of squared distances from the mean (faster than `np.var` for the few numbers of a rollout)."""
    apart = (values - values.sum() / values.size).reshape(-1)
    return float(apart @ apart)


@overload
def explained_variance(pred: Tensor, target: Tensor) -> Tensor: ...
@overload
def explained_variance(pred: npt.ArrayLike, target: npt.ArrayLike) -> float: ...
def explained_variance(pred: Any, target: Any) -> Tensor | float:
    """Return `1 - Var(target - pred) / Var(target)`: 1 = perfect, 0 = no better than a constant, negative = worse.

    Undefined, so NaN, where the target does not vary or there are no rows.

    Args:
        pred, target: same shape; arrays, or both tensors.

    Returns:
        A float for arrays, a tensor without dimensions (on the same device, not synchronised) for tensors.

    Raises:
        ValueError: shapes differ.
    """
    if not isinstance(target, Tensor):
        pred, target = np.asarray(pred, dtype=np.float64), np.asarray(target, dtype=np.float64)
    if pred.shape != target.shape:
        raise ValueError(f"pred and target must have one shape, got {tuple(pred.shape)} and {tuple(target.shape)}.")
    if isinstance(target, Tensor):
        if target.numel() == 0:
            return torch.full((), torch.nan, device=target.device)
        ratio = 1.0 - (target - pred).var(correction=0) / target.var(correction=0)
        # Rounding can give equal numbers a variance above zero, so look at the numbers themselves.
        return torch.where(target.max() > target.min(), ratio, torch.nan)
    if target.size == 0 or not target.max() > target.min():
        return float("nan")
    return float(1.0 - _squares(target - pred) / _squares(target))
