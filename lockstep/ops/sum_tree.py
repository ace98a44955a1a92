"""A sum tree: numbers that can be changed, and drawn in proportion to their size, in `O(log n)` operations.

`lockstep.ops._tree_kernels` describes the memory layout. `lockstep.ops.tensor_sum_tree` is the same structure on a
device.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class SumTree:
    """`size` non-negative float64 numbers, which can be changed and drawn in proportion to their size.

    All are zero at first. This is the structure behind proportional prioritisation (Schaul et al. 2016,
    arXiv:1511.05952, appendix B.2.1).

    Args:
        size: Number of numbers.
    """

    def __init__(self, size: int) -> None:
        # Imports numba, which programs without prioritised replay need not pay for.
        from lockstep.ops import _tree_kernels

        self._kernels = _tree_kernels
        self.size = size

        # Every level but the root is padded to a multiple of four, the number of children of a node. A tree of one
        # number has a root above it as well.
        sizes = [size]
        while sizes[-1] > 1 or len(sizes) == 1:
            sizes[-1] += -sizes[-1] % 4
            sizes.append(sizes[-1] // 4)
        self._levels = np.concatenate([[0], np.cumsum(sizes[:-1])]).astype(np.uint64)
        """`[L]`, where each level begins in `_tree`."""
        self._tree = np.zeros(sum(sizes), np.float64)
        """The numbers, then the sums of each four, up to the total."""

    @property
    def total(self) -> float:
        """Sum of all numbers."""
        return float(self._tree[-1])

    @property
    def values(self) -> np.ndarray:
        """The numbers, float64 `[size]`: a read-only view."""
        view = self._tree[: self.size]
        view.flags.writeable = False
        return view

    def __getitem__(self, indices: npt.ArrayLike) -> np.ndarray:
        """Return the numbers at `indices` (int)."""
        return self._tree[self._checked(indices)]

    def __setitem__(self, indices: npt.ArrayLike, values: npt.ArrayLike) -> None:
        """Set the numbers at `indices` `[n]` to `values`, which are `[n]` or one number for all.

        If an index occurs several times, its last value counts.

        Raises:
            IndexError: An index is outside of `0 .. size - 1`.
            ValueError: A number is negative, infinite or NaN, or there are not as many numbers as indices.
        """
        leaves = np.atleast_1d(self._checked(indices))
        new = np.asarray(values, np.float64)
        if not (np.isfinite(new).all() and (new >= 0.0).all()):
            raise ValueError("a sum tree holds finite numbers of at least 0; some of those given are not")
        if new.ndim == 0:
            self._kernels.assign_one(self._tree, self._levels, leaves, float(new))
            return
        if new.shape != leaves.shape or new.ndim != 1:
            raise ValueError(
                f"{leaves.shape} indices and {new.shape} numbers; give one number for each, or one for all"
            )
        self._kernels.assign(self._tree, self._levels, leaves, np.ascontiguousarray(new))

    def set_trusted(self, indices: np.ndarray, value: float) -> None:
        """Set the numbers at `indices`, int64 `[n]`, to `value`. Nothing is checked."""
        self._kernels.assign_one(self._tree, self._levels, indices, value)

    def set_powers(self, indices: np.ndarray, errors: np.ndarray, epsilon: float, alpha: float) -> float | None:
        """Set the numbers at some indices to `(|error| + epsilon) ** alpha`.

        Args:
            indices: int64 `[n]`. They are not checked.
            errors: float `[n]`.
            epsilon: Smallest base of a power.
            alpha: Exponent.

        Returns:
            The largest `|error| + epsilon`. If an error is not finite, nothing is set and the result is None.
        """
        largest = self._kernels.set_powers(self._tree, self._levels, indices, errors, epsilon, alpha)
        return None if largest < 0.0 else largest

    def relative_powers(self, indices: np.ndarray, exponent: float) -> np.ndarray:
        """Return `(number / smallest number) ** -exponent` of the numbers at some indices.

        Args:
            indices: int64 `[n]`. They are not checked.
            exponent: The exponent, which is negated.

        Returns:
            float32 `[n]`.
        """
        out = np.empty(len(indices), np.float32)
        self._kernels.relative_powers(self._tree, indices, -exponent, out)
        return out

    def find(self, masses: npt.ArrayLike) -> np.ndarray:
        """Return for each mass the index `i` with `sum(values[:i]) <= mass < sum(values[:i + 1])`, as int64.

        The index of a number that is 0 is never returned. The mass `total` gives the last number that is not 0.

        Raises:
            ValueError: A mass is NaN or outside `[0, total]`, or all numbers are 0.
        """
        masses = np.ascontiguousarray(np.atleast_1d(masses), np.float64)
        self._check_total()
        outside = ~((masses >= 0.0) & (masses <= self.total))  # true of NaN too
        if outside.any():
            raise ValueError(f"masses must lie in 0 .. {self.total}, the total; got {float(masses[outside][0])}")
        indices = np.empty(masses.shape, np.int64)
        self._kernels.find(self._tree, self._levels, masses, 1.0, indices)
        return indices

    def draw(self, uniforms: np.ndarray) -> np.ndarray:
        """Return indices drawn in proportion to their numbers, independently of one another.

        Args:
            uniforms: float64 `[n]`, in [0, 1).

        Returns:
            int64 `[n]`.

        Raises:
            ValueError: All numbers are 0.
        """
        total = self._check_total()
        indices = np.empty(uniforms.shape, np.int64)
        self._kernels.find(self._tree, self._levels, uniforms, total, indices)
        return indices

    def clear(self) -> None:
        """Set all numbers to 0."""
        self._tree[:] = 0.0

    def load(self, values: npt.ArrayLike) -> None:
        """Replace all numbers by `values` `[size]`.

        Raises:
            ValueError: A number is negative, infinite or NaN, or there are not `size` of them.
        """
        new = np.asarray(values, np.float64)
        if new.shape != (self.size,) or not (np.isfinite(new).all() and (new >= 0.0).all()):
            raise ValueError(f"expected {self.size} finite numbers of at least 0, got an array of shape {new.shape}")
        self._tree[: self.size] = new
        self._kernels.rebuild(self._tree, self._levels)

    def _checked(self, indices: npt.ArrayLike) -> np.ndarray:
        """Return `indices` as int64. The kernels do not check bounds: an index outside would write to other memory."""
        array = np.asarray(indices)
        if array.dtype.kind not in "iu":
            raise IndexError(f"indices must be whole numbers, got {array.dtype}")
        if array.size and (array.min() < 0 or array.max() >= self.size):
            raise IndexError(f"indices must lie in 0 .. {self.size - 1}, got {array.min()} .. {array.max()}")
        return array.astype(np.int64, copy=False)

    def _check_total(self) -> np.float64:
        """Return the sum of all numbers. Raises `ValueError` if it is 0, where a draw would have no meaning."""
        total: np.float64 = self._tree[-1]
        if not total > 0.0:
            raise ValueError("all numbers of the sum tree are 0: nothing can be drawn")
        return total
