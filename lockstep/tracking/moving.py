"""A moving average for displays, and running moments under the name that Tianshou's users know."""

from collections import deque
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch

from lockstep.ops.statistics import RunningMoments


class MovAvg:
    """Mean and deviation of the last `size` numbers; NaN and infinities are ignored.

    Raises:
        ValueError: `size` is below 1.
    """

    def __init__(self, size: int = 100) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size!r}")
        self.size = size
        self._numbers: deque[float] = deque(maxlen=size)

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
        ValueError: rows of another shape than `shape`; `eps` or `clip_max` is not above 0.
    """

    def __init__(self, shape: tuple[int, ...] = (), *, clip_max: float | None = 10.0, eps: float = 1e-8) -> None:
        for name, value in (("eps", eps), ("clip_max", clip_max)):
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value!r} is not allowed; it must be above 0")
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
