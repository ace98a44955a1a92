"""Prioritised drawing: rows with large errors more often, and the weights that make up for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.ops import SumTree
from lockstep.ops.tensor_sum_tree import TensorSumTree
from lockstep.options.checks import is_number
from lockstep.state import Schedule, ScheduleLike


def _schedule_of_beta(beta: ScheduleLike) -> Schedule:
    """Return the schedule of beta over rows added. `ValueError` where it is below 0."""
    schedule = Schedule(beta, "beta")
    points: Any = schedule.specification
    values = [] if callable(points) else [points] if is_number(points) else [value for _, value in points]
    if min(values, default=0.0) < 0.0:
        raise ValueError(f"beta={beta!r} is not allowed; it must be at least 0 (0 makes up for nothing)")
    return schedule


class BasePriorities:
    """The options of priorities, of arrays and of tensors. `ValueError` for one that is not allowed."""

    def __init__(self, alpha: float, beta: ScheduleLike, epsilon: float) -> None:
        if not (is_number(alpha) and alpha >= 0.0):
            raise ValueError(f"alpha={alpha!r} is not allowed; it must be at least 0 (0 draws uniformly)")
        if not (is_number(epsilon) and epsilon > 0.0):
            raise ValueError(f"epsilon={epsilon!r} is not allowed; it must be above 0, so that every row is drawn")
        self.alpha, self.epsilon = float(alpha), float(epsilon)
        self.beta = _schedule_of_beta(beta)

    def options(self) -> dict[str, Any]:
        """Return what this was made with."""
        return {"alpha": self.alpha, "epsilon": self.epsilon, "beta": self.beta.specification}


class Priorities(BasePriorities):
    """Proportional prioritisation (Schaul et al. 2016, arXiv:1511.05952).

    Row `i` is drawn with probability `p[i] = q[i] / sum(q)`, `q = (|error| + epsilon) ** alpha`, and learned from with
    weight `(N * p[i]) ** -beta` divided by the largest weight of its batch. New rows get the largest error seen so far.
    `beta` is a number or a schedule over the number of rows added (an `OfflineTrainer`'s goes by gradient steps).
    """

    def __init__(self, num_rows: int, alpha: float = 0.6, beta: ScheduleLike = 0.4, epsilon: float = 1e-6) -> None:
        super().__init__(alpha, beta, epsilon)
        self.tree = SumTree(num_rows)
        self.largest = 1.0
        """largest error so far"""
        self._newest = 1.0
        self._beta_set: ScheduleLike | None = None
        """what `set_beta` was given; part of the state, as no option names it"""
        self._beta_at: int | None = None

    def set_beta(self, beta: ScheduleLike) -> None:
        """Replace the schedule of beta."""
        self.beta = _schedule_of_beta(beta)
        self._beta_set = None if callable(beta) else self.beta.specification

    def clear(self) -> None:
        """Take all rows their priorities; the largest error is kept."""
        self.tree.clear()

    def add(self, rows: np.ndarray) -> None:
        """Give new rows the largest priority so far."""
        self.tree.set_trusted(rows, self._newest)

    @contextmanager
    def beta_at(self, step: int) -> Iterator[None]:
        """Let beta stand at `step` of its schedule within this context: for data that do not grow."""
        self._beta_at = step
        try:
            yield
        finally:
            self._beta_at = None

    def weights(self, rows: np.ndarray, num_added: int) -> np.ndarray:
        """Return weights float32 [n], with beta at `num_added` of its schedule, or where `beta_at` says."""
        step = num_added if self._beta_at is None else self._beta_at
        # divided by the largest weight, that of the smallest priority, N and the total cancel out
        return self.tree.relative_powers(rows, self.beta(step))

    def update(self, rows: np.ndarray, errors: np.ndarray) -> None:
        """Set new errors [n] (any sign) of rows; of a row named twice the last counts."""
        errors = np.ascontiguousarray(errors).reshape(-1)
        if errors.shape != rows.shape:
            raise ValueError(f"{len(rows)} indices and {len(errors)} weights; give one for each")
        largest = self.tree.set_powers(rows, errors, self.epsilon, self.alpha)
        if largest is None:
            raise ValueError("update_weight got errors that are not finite: the loss has diverged")
        if largest > self.largest:
            self.largest = largest
            self._newest = self.largest**self.alpha

    def get_state(self, used: int) -> dict[str, Any]:
        """Return the first `used` rows' priorities, the largest error, beta's position, and beta where it was set."""
        state = {"values": self.tree.values[:used].copy(), "largest": self.largest, "beta": self.beta.get_state()}
        return state if self._beta_set is None else {**state, "beta_set": self._beta_set}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go back to what `get_state` gave."""
        values = np.zeros(self.tree.size)
        values[: len(state["values"])] = state["values"]
        self.tree.load(values)
        self.largest = float(state["largest"])
        self._newest = self.largest**self.alpha
        if "beta_set" in state:
            self.set_beta(state["beta_set"])
        self.beta.set_state(state["beta"])


class TensorPriorities(BasePriorities):
    """The numbers of `Priorities` on a device, for a `TensorReplay`; the host waits for none of them.

    They are in memory that stays where it is, so that CUDA graphs can read and write it. The position of the schedule
    of beta is the number of rows added.
    """

    row_bytes = 12
    """what a row takes"""

    def __init__(
        self,
        num_rows: int,
        device: torch.device,
        alpha: float = 0.6,
        beta: ScheduleLike = 0.4,
        epsilon: float = 1e-6,
    ) -> None:
        super().__init__(alpha, beta, epsilon)
        self.tree = TensorSumTree(num_rows, device)
        self.largest = torch.ones((), dtype=torch.float64, device=device)
        """0-d, largest error so far"""
        self._beta = torch.full((), self.beta.value, dtype=torch.float64, device=device)

    def clear(self) -> None:
        """Take all rows their priorities; the largest error is kept."""
        self.tree.clear()

    def add(self, rows: Tensor) -> None:
        """Give new rows `[N]` the largest priority so far."""
        self.tree.set(rows, (self.largest**self.alpha).expand(len(rows)))

    def count(self, number: int) -> None:
        """Have the host know that so many rows were added, and move beta there."""
        self._beta.fill_(self.beta(self.beta.timestep + number))

    def weights(self, rows: Tensor) -> Tensor:
        """Return weights float32 `[N]`, with the present beta."""
        return self.tree.relative_powers(rows, self._beta)

    def update(self, rows: Tensor, errors: Tensor) -> None:
        """Set new errors `[N]` (any sign) of rows `[N]`; of a row named twice the last counts.

        Errors that are not finite leave a row as it is.
        """
        largest = self.tree.set_powers(rows, errors, self.epsilon, self.alpha)
        self.largest.copy_(torch.maximum(self.largest, largest))

    def get_state(self, used: int) -> dict[str, Any]:
        """Return the first `used` rows' priorities, all sums, the largest error and beta's position."""
        return {"tree": self.tree.get_state(used), "largest": float(self.largest), "beta": self.beta.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go back to what `get_state` gave."""
        self.tree.set_state(state["tree"])
        self.largest.fill_(state["largest"])
        self.beta.set_state(state["beta"])
        self.count(0)
