"""Prioritised replay: rows with large errors are drawn more often, and importance weights correct for that."""

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
    """Return the schedule of beta over the number of rows added. `ValueError` for a value below 0."""
    schedule = Schedule(beta, "beta")
    points: Any = schedule.specification
    if callable(points):
        values = []  # a function is not evaluated here: its values are not known before the steps
    elif is_number(points):
        values = [points]
    else:
        values = [value for _, value in points]
    if min(values, default=0.0) < 0.0:
        raise ValueError(f"beta={beta!r} is not allowed; it must be at least 0 (0 makes up for nothing)")
    return schedule


class BasePriorities:
    """Options that priorities of arrays and of tensors have in common.

    Args:
        alpha: exponent of the errors, at least 0; 0 draws uniformly.
        beta: exponent of the importance weights, at least 0: a number, or a schedule over the number of rows added.
        epsilon: positive number added to each error, so that every row can be drawn.

    Raises:
        ValueError: an option that is not allowed.
    """

    def __init__(self, alpha: float, beta: ScheduleLike, epsilon: float) -> None:
        if not (is_number(alpha) and alpha >= 0.0):
            raise ValueError(f"alpha={alpha!r} is not allowed; it must be at least 0 (0 draws uniformly)")
        if not (is_number(epsilon) and epsilon > 0.0):
            raise ValueError(f"epsilon={epsilon!r} is not allowed; it must be above 0, so that every row is drawn")
        self.alpha = float(alpha)
        self.epsilon = float(epsilon)
        self.beta = _schedule_of_beta(beta)

    def options(self) -> dict[str, Any]:
        """Return the options, by the names of the constructor's arguments."""
        return {"alpha": self.alpha, "epsilon": self.epsilon, "beta": self.beta.specification}


class Priorities(BasePriorities):
    """Proportional prioritisation (Schaul et al. 2016, arXiv:1511.05952, section 3.3 and 3.4).

    With `q_i = (|error_i| + epsilon)^alpha`, row `i` of `N` is drawn with probability `p_i = q_i / sum_k q_k`, and its
    loss has the weight `w_i = (N p_i)^-beta / max_k (N p_k)^-beta`, where `k` runs over the rows of the batch. New rows
    get the largest error seen so far, so that each is likely to be drawn once before its error is known.

    `beta` is a number or a schedule over the number of rows added (for an `OfflineTrainer` over gradient steps). Other
    options and errors: see `BasePriorities`.
    """

    def __init__(self, num_rows: int, alpha: float = 0.6, beta: ScheduleLike = 0.4, epsilon: float = 1e-6) -> None:
        super().__init__(alpha, beta, epsilon)
        self.tree = SumTree(num_rows)
        """The numbers `q` of all rows, 0 for a row that holds no transition."""
        self.largest = 1.0
        """Largest error so far, including `epsilon`."""
        self._priority_of_new = 1.0
        """`largest ** alpha`, kept because every row that is added needs it."""
        self._beta_set: ScheduleLike | None = None
        """The argument of `set_beta`. It is part of the state, because no option holds it."""
        self._beta_at: int | None = None
        """Position in the schedule of beta within `beta_at`, otherwise None."""

    def set_beta(self, beta: ScheduleLike) -> None:
        """Replace the schedule of beta. A function is not saved: no file can hold it."""
        self.beta = _schedule_of_beta(beta)
        self._beta_set = None if callable(beta) else self.beta.specification

    def clear(self) -> None:
        """Remove the priorities of all rows, but keep the largest error."""
        self.tree.clear()

    def add(self, rows: np.ndarray) -> None:
        """Give new rows the largest priority so far."""
        self.tree.set_trusted(rows, self._priority_of_new)

    @contextmanager
    def beta_at(self, step: int) -> Iterator[None]:
        """Evaluate the schedule of beta at `step` within this context. It is for data that do not grow."""
        self._beta_at = step
        try:
            yield
        finally:
            self._beta_at = None

    def weights(self, rows: np.ndarray, num_added: int) -> np.ndarray:
        """Return the importance weights of drawn rows, float32 [n].

        The schedule of beta is evaluated at `num_added`, or at the step of `beta_at` within its context.
        """
        step = num_added if self._beta_at is None else self._beta_at
        # In w_i / max_k w_k both N and the sum of all q cancel: (q_i / min_k q_k)^-beta remains.
        return self.tree.relative_powers(rows, self.beta(step))

    def update(self, rows: np.ndarray, errors: np.ndarray) -> None:
        """Set the priorities of rows from their errors [n] of any sign. If a row occurs twice, its last error counts.

        Raises:
            ValueError: the numbers of rows and errors differ, or an error is not finite.
        """
        errors = np.ascontiguousarray(errors).reshape(-1)
        if errors.shape != rows.shape:
            raise ValueError(f"{len(rows)} indices and {len(errors)} weights; give one for each")
        largest = self.tree.set_powers(rows, errors, self.epsilon, self.alpha)
        if largest is None:
            raise ValueError("update_weight got errors that are not finite: the loss has diverged")
        if largest > self.largest:
            self.largest = largest
            self._priority_of_new = self.largest**self.alpha

    def get_state(self, used: int) -> dict[str, Any]:
        """Return the priorities of the first `used` rows, the largest error, and the schedule of beta."""
        state = {"values": self.tree.values[:used].copy(), "largest": self.largest, "beta": self.beta.get_state()}
        return state if self._beta_set is None else {**state, "beta_set": self._beta_set}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""
        values = np.zeros(self.tree.size)
        values[: len(state["values"])] = state["values"]
        self.tree.load(values)
        self.largest = float(state["largest"])
        self._priority_of_new = self.largest**self.alpha
        if "beta_set" in state:
            self.set_beta(state["beta_set"])
        self.beta.set_state(state["beta"])


class TensorPriorities(BasePriorities):
    """The same as `Priorities` on a device, for a `TensorReplay`. The host never waits for its numbers.

    All tensors keep their addresses, so that CUDA graphs can read and write them. The schedule of beta advances with
    `count`.
    """

    row_bytes = 12
    """Memory of the priority of one row, in bytes."""

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
        """Largest error so far, including `epsilon`; 0-d."""
        self._beta = torch.full((), self.beta.value, dtype=torch.float64, device=device)
        """Present value of beta for the device; 0-d. A captured graph reads it, hence it is filled and not replaced."""

    def clear(self) -> None:
        """Remove the priorities of all rows, but keep the largest error."""
        self.tree.clear()

    def add(self, rows: Tensor) -> None:
        """Give new rows `[N]` the largest priority so far."""
        self.tree.set(rows, (self.largest**self.alpha).expand(len(rows)))

    def count(self, number: int) -> None:
        """Advance the schedule of beta by a number of rows added, which may be negative."""
        self._beta.fill_(self.beta(self.beta.timestep + number))

    def weights(self, rows: Tensor) -> Tensor:
        """Return the importance weights of rows with the present beta, float32 `[N]`."""
        return self.tree.relative_powers(rows, self._beta)

    def update(self, rows: Tensor, errors: Tensor) -> None:
        """Set the priorities of rows from their errors `[N]` of any sign. If a row occurs twice, its last error counts.

        An error that is not finite leaves its row as it is: raising here would make the host wait for the device.
        """
        largest = self.tree.set_powers(rows, errors, self.epsilon, self.alpha)
        self.largest.copy_(torch.maximum(self.largest, largest))

    def get_state(self, used: int) -> dict[str, Any]:
        """Return the priorities of the first `used` rows, all sums, the largest error, and the schedule of beta."""
        return {"tree": self.tree.get_state(used), "largest": float(self.largest), "beta": self.beta.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""
        self.tree.set_state(state["tree"])
        self.largest.fill_(state["largest"])
        self.beta.set_state(state["beta"])
        self.count(0)  # brings beta to the device
