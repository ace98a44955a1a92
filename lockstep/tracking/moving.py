"""A moving average for displays, and running moments under the name that Tianshou's users know."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lockstep.ops.statistics import RunningMoments
from lockstep.state.checks import check_whole, is_number


class MovAvg:
    """Mean and deviation of the last `size` numbers; NaN and infinities are ignored.

    Raises `ValueError`: `size` is no whole number of at least 1.
    """

    def __init__(self, size: int = 100) -> None:
        self.size: int = check_whole("size", size, 1)
        self._numbers: deque[float] = deque(maxlen=self.size)

    def add(self, numbers: "float | np.ndarray | torch.Tensor | Iterable[float]") -> float:
        """Add one number or several; returns the new mean."""
        if isinstance(numbers, torch.Tensor):
            numbers = numbers.detach().cpu().numpy()
        values = numbers if isinstance(numbers, np.ndarray | list | tuple | float | int) else list(numbers)
        flat = np.asarray(values, dtype=np.float64).reshape(-1)
        self._numbers.extend(flat[np.isfinite(flat)].tolist())
        return self.get()

    def get(self) -> float:
        """Return the mean; 0 before the first number."""
        return float(np.mean(self._numbers)) if self._numbers else 0.0

    mean = get

    def std(self) -> float:
        """Return the population standard deviation; 0 before the first number."""
        return float(np.std(self._numbers)) if self._numbers else 0.0

    def __len__(self) -> int:
        return len(self._numbers)


class RunningMeanStd:
    """Mean and deviation of all rows seen, and what they are scaled with; over `RunningMoments`.

    `shape` is that of a row; None takes it from the first rows.
    `norm(x)` is `(x - mean) / sqrt(var + eps)`, limited to `[-clip_max, clip_max]` (None: not limited). Before the
    first row mean is 0 and var is 1.

    Raises `ValueError`: rows of another shape than `shape`; `eps` or `clip_max` is no number above 0; `shape` is no
    tuple.
    """

    def __init__(
        self, shape: tuple[int, ...] | None = None, *, clip_max: float | None = 10.0, eps: float = 1e-8
    ) -> None:
        options: list[tuple[str, Any, str]] = [("eps", eps, ""), ("clip_max", clip_max, ", or None")]
        for name, value, none in options:
            if not (none and value is None) and not (is_number(value) and value > 0):
                raise ValueError(f"{name}={value!r} is not allowed; it must be a number above 0{none}")
        if shape is not None and not isinstance(shape, tuple):
            raise ValueError(f"shape={shape!r} is not allowed; it must be a tuple, () for single numbers, or None")
        self.clip_max, self.eps = clip_max, eps
        self._any_shape = shape is None
        self.moments = RunningMoments(shape or ())

    def _take_shape(self, shape: tuple[int, ...]) -> None:
        if self._any_shape and not self.count and shape != self.moments.shape:
            self.moments = RunningMoments(shape)

    @property
    def mean(self) -> np.ndarray:
        """`[*shape]`."""
        return self.moments.mean

    @property
    def var(self) -> np.ndarray:
        """`[*shape]`, population variance."""
        return self.moments.var

    @property
    def count(self) -> int:
        """Rows seen."""
        return self.moments.count

    def update(self, rows: npt.ArrayLike) -> None:
        """Take in rows `[N, *shape]`; how they are cut into calls makes no difference.

        An empty list changes nothing.
        """
        array = np.asarray(rows, dtype=np.float64)
        if array.shape == (0,):
            return
        self._take_shape(array.shape[1:])
        self.moments.update(array)

    def merge(self, other: "RunningMeanStd") -> None:
        """Take in everything that `other` has seen; `other` is not changed. `ValueError` for another shape."""
        if other.count:
            self._take_shape(other.moments.shape)
            self.moments.merge(other.moments)

    def get_state(self) -> dict[str, Any]:
        """Return the moments as copies; `clip_max` and `eps` are options."""
        return self.moments.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `get_state`. `KeyError` where entries are missing, `ValueError` for another shape."""
        moments = RunningMoments(np.shape(state["mean"])) if self._any_shape and "mean" in state else self.moments
        moments.set_state(state)
        self.moments = moments

    def norm(self, x: npt.ArrayLike) -> np.ndarray:
        """Return `x`, `[..., *shape]`, scaled; the moments are not changed."""
        return np.asarray(self.moments.normalize(np.asarray(x), self.clip_max, self.eps))
