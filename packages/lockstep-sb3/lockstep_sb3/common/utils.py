"""Random seeds, and schedules over the progress that remains, which falls from 1 to 0."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch


def set_random_seed(seed: int, using_cuda: bool = False) -> None:
    """Seed Python, NumPy and torch; Lockstep's own random numbers come from the `seed` of an algorithm."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


@dataclass(frozen=True)
class LinearSchedule:
    """A straight line from `start` to `end` over the first `end_fraction` of the run."""

    start: float
    end: float
    end_fraction: float

    def __call__(self, progress_remaining: float) -> float:
        return self.start + min(1.0, (1.0 - progress_remaining) / self.end_fraction) * (self.end - self.start)


get_linear_fn = LinearSchedule


@dataclass
class OverSteps:
    """A schedule over the progress that remains as one over steps, of a run whose length stands in `total[0]`."""

    function: Callable[[float], float]
    total: list[int]

    def __call__(self, step: int) -> float:
        return float(self.function(max(0.0, 1.0 - step / self.total[0]) if self.total[0] else 1.0))
