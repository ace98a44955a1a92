"""Random seeds, and schedules over the remaining progress, which falls from 1 to 0."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lockstep_sb3.common.moved import moved_name


def set_random_seed(seed: int, using_cuda: bool = False) -> None:
    """Seed Python, NumPy and torch. Lockstep's own random numbers depend on the option `seed` of an algorithm only."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


@dataclass(frozen=True)
class LinearSchedule:
    """Schedule that is linear from `start` to `end` over the first `end_fraction` of the run, and then constant."""

    start: float
    end: float
    end_fraction: float

    def __call__(self, progress_remaining: float) -> float:
        return self.start + min(1.0, (1.0 - progress_remaining) / self.end_fraction) * (self.end - self.start)


get_linear_fn = LinearSchedule


@dataclass
class StepSchedule:
    """Schedule over environment steps, made from a `function` of the remaining progress.

    `total[0]` is the number of steps of the run. It is 0 before `learn`, when the remaining progress is 1.
    """

    function: Callable[[float], float]
    total: list[int]

    def __call__(self, step: int) -> float:
        progress_remaining = max(0.0, 1.0 - step / self.total[0]) if self.total[0] else 1.0
        return float(self.function(progress_remaining))


_MOVED = {"OverSteps": "lockstep_sb3.common.utils:StepSchedule"}
"""Places of names that have changed."""


def __getattr__(name: str) -> Any:
    """Return an object by its old name."""
    return moved_name(__name__, name, _MOVED)
