"""Trainers that make some epochs, and how far apart their weights are then."""

from __future__ import annotations

from typing import Any

import numpy as np


def steps(trainer: Any, number: int) -> Any:
    """Return the trainer after so many epochs."""
    for _ in range(number):
        next(trainer)
    return trainer


def weights(trainer: Any) -> dict[str, np.ndarray]:
    """Return the weights of its modules, by module and name."""
    found = trainer.policy.learner_group.get_weights()
    return {f"{module}/{name}": value for module, part in found.items() for name, value in part.items()}


def difference(one: Any, other: Any) -> float:
    """Return how far the weights of two trainers are apart at most."""
    left, right = weights(one), weights(other)
    assert left.keys() == right.keys()
    return max(float(np.abs(left[name] - right[name]).max(initial=0.0)) for name in left)
