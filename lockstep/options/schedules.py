"""Options that change with the number of environment steps: numbers, and stages of any other values."""

import bisect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from lockstep.options.checks import is_number, is_whole

ScheduleLike: TypeAlias = float | Sequence[Sequence[float]] | Callable[[int], float]
"""A number, `[[0, v0], [t1, v1], ...]`, or a function of the step."""

MOST_ABOVE_START = 10.0
"""Largest factor by which a function may exceed its value at step 0; see `Schedule`."""
MOST_FROM_ZERO = 1.0
"""Largest value of a function that begins with 0 (a warm-up)."""


class ConfiguredValueWarning(RuntimeWarning):
    """Warning that a checkpoint was saved with another value of an option, and that the configured one is used."""


_ALLOWED = "a number, a list of points [[0, v0], [t1, v1], ...], or a function of the step"


class Schedule:
    """Number that changes over time: a constant, piecewise linear between points, or any function of the step.

    After the last point the value is constant. A call with the number of environment steps sampled so far returns the
    value at that step and remembers the step, which is the schedule's state.

    A function of the step must not return a negative value, or one far above its value at step 0. Other libraries call
    such a function with `progress_remaining`, which falls from 1 to 0, instead of the step; here it would return huge
    learning rates. An object with the attribute `is_of_steps = True` may return any value that is not negative.

    Args:
        value: A number, points `[[0, v0], [t1, v1], ...]`, or a function of the step.
        name: Name of the scheduled option, for messages.

    Raises:
        ValueError: There are fewer than two points, the first is not at step 0, the steps do not rise, or a value is
            not finite. A function returned a negative value, or one far above its value at step 0.
        TypeError: The value has none of the three forms.
    """

    def __init__(self, value: "ScheduleLike | Schedule", name: str = "schedule") -> None:
        if isinstance(value, Schedule):
            value = value.specification
        self.name = name
        self.specification: ScheduleLike = value
        self._times: list[float] = []
        self._values: list[float] = []
        if callable(value):
            self._function: Callable[[int], float] | None = value
        elif is_number(value):
            self._function = None
            self._check_finite(value, 0)
        elif isinstance(value, list | tuple | np.ndarray):
            self._function = None
            self._times, self._values = self._checked_points(value)
        else:
            raise TypeError(f"{name} must be {_ALLOWED}; got {value!r}")
        self.timestep = 0
        """Step of the last call."""
        self._limit = math.inf  # the value at step 0 is needed first
        self.value = self.at(0)
        """Value at `timestep`."""
        if self._function is not None and not getattr(value, "is_of_steps", False):
            self._limit = MOST_ABOVE_START * self.value or MOST_FROM_ZERO

    def __repr__(self) -> str:
        return f"Schedule({self.specification!r}, name={self.name!r})"

    def __call__(self, t: int) -> float:
        """Return the value at step `t` >= 0, and remember the step."""
        self.value = self.at(t)
        self.timestep = int(t)
        return self.value

    def at(self, t: int) -> float:
        """Return the value at step `t`, without remembering the step."""
        if self._times:
            return self._between_points(t)
        if self._function is not None:
            return self._check_steps(self._check_finite(self._function(t), t), t)
        return float(self.specification)  # type: ignore[arg-type]

    @property
    def constant(self) -> bool:
        """Whether the schedule is one number."""
        return not self._times and self._function is None

    @property
    def rises_later(self) -> bool:
        """Whether a point after the current step has a value other than 0. False for a number and for a function."""
        return any(value for time, value in zip(self._times, self._values) if time > self.timestep)

    def get_state(self) -> dict[str, Any]:
        """Return the step of the last call and the value there."""
        return {"timestep": self.timestep, "value": self.value}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the saved step and value."""
        self.timestep = int(state["timestep"])
        self.value = float(state["value"])

    def follow(self, state: Mapping[str, Any]) -> float | None:
        """Move to a saved step, with the value that this schedule has there.

        Returns:
            The saved value if it differs, because the schedule was changed since; otherwise None.
        """
        self.set_state(state)
        saved_value = self.value
        self.value = self.at(self.timestep)
        return None if saved_value == self.value else saved_value

    def _between_points(self, t: int) -> float:
        """Return the value at step `t` on the line between the two points around it."""
        after = bisect.bisect_right(self._times, t)
        if after == len(self._times):
            return self._values[-1]
        begin, end = self._times[after - 1 : after + 1]
        first, last = self._values[after - 1 : after + 1]
        if t == begin:
            return first
        return float((last - first) / (end - begin) * (t - begin) + first)

    def _check_finite(self, value: object, t: int) -> float:
        """Return the value of step `t` as a float. Raises `ValueError` if it is not a finite number."""
        if not is_number(value) or not math.isfinite(value):
            raise ValueError(f"{self.name} must be a finite number at every step; at step {t} it is {value!r}")
        return float(value)

    def _check_steps(self, value: float, t: int) -> float:
        """Return a function's value at step `t`. Raises `ValueError` if it seems to be a function of something else."""
        if not 0.0 <= value <= self._limit:
            limit = "" if math.isinf(self._limit) else f" and at most {self._limit:g}, by its value at step 0"
            raise ValueError(
                f"{self.name}: the function gives {value:g} at step {t}; it must give at least 0{limit}. It is called "
                "with the number of steps done. Other libraries call such a function with progress_remaining, which "
                "falls from 1 to 0: write lambda step: f(max(0, 1 - step / total_steps)), or points [[0, v0], [t1, v1]]"
            )
        return value

    def _checked_points(self, points: Sequence[Any] | np.ndarray) -> tuple[list[float], list[float]]:
        """Return the steps and the values of the points. Raises `ValueError` if these do not make a schedule."""
        if len(points) < 2:
            raise ValueError(
                f"{self.name}: a schedule needs at least two points [[0, v0], [t1, v1], ...], got "
                f"{points!r}. For a constant value give the number itself."
            )
        for point in points:
            is_pair = isinstance(point, list | tuple | np.ndarray) and len(point) == 2 and all(map(is_number, point))
            if not is_pair or not all(math.isfinite(part) for part in point):
                raise ValueError(f"{self.name}: every point must be [step, value], two finite numbers; got {point!r}")
        times = [float(point[0]) for point in points]
        if times[0] != 0:
            raise ValueError(f"{self.name}: the first point must be at step 0, got {times[0]:g}")
        if any(later <= earlier for earlier, later in itertools.pairwise(times)):
            raise ValueError(f"{self.name}: the steps of the points must rise, got {times}")
        return times, [float(point[1]) for point in points]


# -- stages of values of any type ---


def stages_of(name: str, value: object) -> list[tuple[int, Any]]:
    """Return the stages of an option as pairs of the first step of a stage and its value.

    Args:
        name: Name of the option, for messages.
        value: Stages `[[0, v0], [step1, v1], ...]`. Anything else is the value of a single stage from step 0 on.

    Raises:
        ValueError: The steps do not rise, or do not begin with 0.
    """
    if not isinstance(value, list | tuple) or not value or not all(map(_is_stage, value)):
        return [(0, value)]
    steps = [step for step, _ in value]
    if steps[0] != 0 or any(later <= earlier for earlier, later in itertools.pairwise(steps)):
        raise ValueError(f"{name}={value!r} is not allowed; the steps of [[0, v0], [step1, v1], ...] must rise from 0")
    return [(int(step), part) for step, part in value]


def value_at_step(step: int, value: object) -> Any:
    """Return the value of an option's stage at an environment step. `value` is as in `stages_of`."""
    return [part for first, part in stages_of("stages", value) if first <= step][-1]


def _is_stage(part: object) -> bool:
    """Return whether `part` is a pair of a whole number and something else."""
    return isinstance(part, list | tuple) and len(part) == 2 and is_whole(part[0])
