"""A sum tree: numbers that can be changed, and drawn in proportion to their size, in `O(log n)`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class SumTree:
    """`size` non-negative numbers (float64), all zero at first.

    It is the structure behind proportional prioritisation (Schaul et al. 2016, arXiv:1511.05952, appendix B.2.1).
    """

    def __init__(self, size: int) -> None:
        from lockstep.ops import _tree_kernels

        self._kernels = _tree_kernels
        self.size = size
        sizes = [size]
        while sizes[-1] > 1 or len(sizes) == 1:
            sizes[-1] += -sizes[-1] % 4
            sizes.append(sizes[-1] // 4)
        self._levels = np.concatenate([[0], np.cumsum(sizes[:-1])]).astype(np.uint64)
        self._tree = np.zeros(sum(sizes), np.float64)

    @property
    def total(self) -> float:
        """Sum of all numbers."""
        return float(self._tree[-1])

    @property
    def values(self) -> np.ndarray:
        """`[size]` float64, a view that must not be written to."""
        view = self._tree[: self.size]
        view.flags.writeable = False
        return view

    def __getitem__(self, indices: npt.ArrayLike) -> np.ndarray:
        """Return the numbers at `indices` (int)."""
        return self._tree[self._checked(indices)]

    def __setitem__(self, indices: npt.ArrayLike, values: npt.ArrayLike) -> None:
        """Set the numbers at `indices` `[n]` to `values` (`[n]` or one for all); of an index named twice the last
        stays.

        Raises:
            IndexError: an index outside of `0 .. size - 1`.
            ValueError: a number that is negative, infinite or NaN, or not as many numbers as indices.
        """
        where = np.atleast_1d(self._checked(indices))
        new = np.asarray(values, np.float64)
        if not (np.isfinite(new).all() and (new >= 0.0).all()):
            raise ValueError("a sum tree holds finite numbers of at least 0; some of those given are not")
        if new.ndim == 0:
            self._kernels.assign_one(self._tree, self._levels, where, float(new))
            return
        if new.shape != where.shape or new.ndim != 1:
            raise ValueError(f"{where.shape} indices and {new.shape} numbers; give one number for each, or one for all")
        self._kernels.assign(self._tree, self._levels, where, np.ascontiguousarray(new))

    def set_trusted(self, indices: np.ndarray, value: float) -> None:
        """Set the numbers at indices known to be sound, int64 `[n]`, to one float."""
        self._kernels.assign_one(self._tree, self._levels, indices, value)

    def set_powers(self, indices: np.ndarray, errors: np.ndarray, epsilon: float, alpha: float) -> float | None:
        """Set `(|error| + epsilon) ** alpha` at indices known to be sound, int64 `[n]`; `errors` float `[n]`.

        Returns:
            The largest `|error| + epsilon`; None, and nothing is set, where an error is not finite.
        """
        largest = self._kernels.set_powers(self._tree, self._levels, indices, errors, epsilon, alpha)
        return None if largest < 0.0 else largest

    def relative_powers(self, indices: np.ndarray, exponent: float) -> np.ndarray:
        """Return `(number / smallest of these) ** -exponent` at indices known to be sound; float32 `[n]`."""
        out = np.empty(len(indices), np.float32)
        self._kernels.relative_powers(self._tree, indices, -exponent, out)
        return out

    def find(self, masses: npt.ArrayLike) -> np.ndarray:
        """Return the index `i` with `sum(values[:i]) <= mass < sum(values[:i + 1])` for each mass; int64.

        A number that is 0 is never found; the total itself falls to the last one that is not.

        Raises:
            ValueError: a mass that is NaN or outside `[0, total]`, or all numbers are 0.
        """
        masses = np.ascontiguousarray(np.atleast_1d(masses), np.float64)
        self._check_total()
        outside = ~((masses >= 0.0) & (masses <= self.total))  # true of NaN too
        if outside.any():
            raise ValueError(f"masses must lie in 0 .. {self.total}, the total; got {float(masses[outside][0])}")
        found = np.empty(masses.shape, np.int64)
        self._kernels.find(self._tree, self._levels, masses, 1.0, found)
        return found

    def draw(self, uniforms: np.ndarray) -> np.ndarray:
        """Return indices drawn in proportion to their numbers, independently of one another.

        Args:
            uniforms: `[n]` float64 in [0, 1).

        Returns:
            int64 `[n]`. `ValueError` where all numbers are 0.
        """
        total = self._check_total()
        found = np.empty(uniforms.shape, np.int64)
        self._kernels.find(self._tree, self._levels, uniforms, total, found)
        return found

    def clear(self) -> None:
        """Set all numbers to 0."""
        self._tree[:] = 0.0

    def load(self, values: npt.ArrayLike) -> None:
        """Replace all numbers by `values` `[size]`; checks as in `tree[...] = values`."""
        new = np.asarray(values, np.float64)
        if new.shape != (self.size,) or not (np.isfinite(new).all() and (new >= 0.0).all()):
            raise ValueError(f"expected {self.size} finite numbers of at least 0, got an array of shape {new.shape}")
        self._tree[: self.size] = new
        self._kernels.rebuild(self._tree, self._levels)

    def _checked(self, indices: npt.ArrayLike) -> np.ndarray:
        where = np.asarray(indices)
        if where.dtype.kind not in "iu":
            raise IndexError(f"indices must be whole numbers, got {where.dtype}")
        if where.size and (where.min() < 0 or where.max() >= self.size):
            raise IndexError(f"indices must lie in 0 .. {self.size - 1}, got {where.min()} .. {where.max()}")
        return where.astype(np.int64, copy=False)

    def _check_total(self) -> np.float64:
        total: np.float64 = self._tree[-1]
        if not total > 0.0:
            raise ValueError("all numbers of the sum tree are 0: nothing can be drawn")
        return total
