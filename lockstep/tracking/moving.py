"""A moving average for displays, and running moments under the name that Tianshou's users know."""

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lockstep.ops.statistics import RunningMoments
from lockstep.state.values import check_whole, is_number


class MovAvg:
    """Mean and deviation of the last `size` numbers; NaN and infinities are ignored.

    Raises:
        ValueError: `size` is no whole number of at least 1.
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
        """The mean; 0 before the first number."""
        return float(np.mean(self._numbers)) if self._numbers else 0.0

    mean = get

    def std(self) -> float:
        """The population standard deviation; 0 before the first number."""
        return float(np.std(self._numbers)) if self._numbers else 0.0

    def __len__(self) -> int:
        return len(self._numbers)


class RunningMeanStd:
    """Mean and deviation of all rows seen, and what they are scaled with; over `RunningMoments`.

    `norm(x)` is `(x - mean) / sqrt(var + eps)`, limited to `[-clip_max, clip_max]` (None: not limited). Before the
    first row mean is 0 and var is 1.

    Raises:
        ValueError: rows of another shape than `shape`; `eps` or `clip_max` is no number above 0; `shape` is no tuple.
    """

    def __init__(self, shape: tuple[int, ...] = (), *, clip_max: float | None = 10.0, eps: float = 1e-8) -> None:
        options: list[tuple[str, Any, str]] = [("eps", eps, ""), ("clip_max", clip_max, ", or None")]
        for name, value, none in options:
            if not (none and value is None) and not (is_number(value) and value > 0):
                raise ValueError(f"{name}={value!r} is not allowed; it must be a number above 0{none}")
        if not isinstance(shape, tuple):
            raise ValueError(f"shape={shape!r} is not allowed; it must be a tuple, () for single numbers")
        self.clip_max, self.eps = clip_max, eps
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
        """Take in rows `[N, *shape]`; how they are cut into calls makes no difference."""
        self.moments.update(rows)

    def norm(self, x: npt.ArrayLike) -> np.ndarray:
        """`[..., *shape]`, scaled; the moments are not changed."""
        return np.asarray(self.moments.normalize(np.asarray(x), self.clip_max, self.eps))
