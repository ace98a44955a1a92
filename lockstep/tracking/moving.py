"""A moving average for displays."""

from collections import deque
from collections.abc import Iterable

import numpy as np
import torch


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
