"""Options that change with the number of environment steps: numbers such as a learning rate, and any other values."""

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
"""a function may not exceed its value at step 0 by more than this factor; see `Schedule`"""
MOST_FROM_ZERO = 1.0
"""the same for a function that begins with 0 (a warm-up)"""


class ConfiguredValueWarning(RuntimeWarning):
    """A checkpoint was made with another value of an option; the configured one is in force."""


_ALLOWED = "a number, a list of points [[0, v0], [t1, v1], ...], or a function of the step"


class Schedule:
    """A value over time: constant, piecewise linear (constant after its last point), or any function.

    Calling it with the number of environment steps sampled so far returns the value there and remembers the
    position, which is its state.

    A function of the step is refused at a negative value and at one far above its value at step 0: other libraries
    call it with `progress_remaining` (from 1 down to 0) instead of steps, and such a function trains with huge rates
    here.

    Args:
        value: a number, points `[[0, v0], [t1, v1], ...]`, or a callable of the step.
        name: what it schedules, for messages.

    Raises:
        ValueError: fewer than two points, first point not at 0, times that do not rise, a value that is not
            finite; of a function also a negative value, or one far above that at step 0.
        TypeError: anything else than these three forms.
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
        self._limit = math.inf
        self.timestep = 0
        """the last position"""
        self.value = self.at(0)
        """the value there"""
        if self._function is not None:
            self._limit = MOST_ABOVE_START * self.value or MOST_FROM_ZERO

    def __repr__(self) -> str:
        return f"Schedule({self.specification!r}, name={self.name!r})"

    def __call__(self, t: int) -> float:
        """Return the value at step `t` (zero or larger); `t` becomes the position."""
        self.value = self.at(t)
        self.timestep = int(t)
        return self.value

    def at(self, t: int) -> float:
        """Return the value at step `t`; the position stays where it is."""
        if self._times:
            return self._between_points(t)
        if self._function is not None:
            return self._check_steps(self._check_finite(self._function(t), t), t)
        return float(self.specification)  # type: ignore[arg-type]

    @property
    def constant(self) -> bool:
        """Whether it was given as one number."""
        return not self._times and self._function is None

    @property
    def rises_later(self) -> bool:
        """Whether a later point has a value other than 0; False for a number and for a function."""
        return any(value for time, value in zip(self._times, self._values) if time > self.timestep)

    def get_state(self) -> dict[str, Any]:
        """Return the position and the value there."""
        return {"timestep": self.timestep, "value": self.value}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Return to a saved position."""
        self.timestep, self.value = int(state["timestep"]), float(state["value"])

    def follow(self, state: Mapping[str, Any]) -> float | None:
        """Move to a saved position, with the value that this schedule has there.

        Returns the saved value where it is another: the schedule was changed since.
        """
        self.set_state(state)
        saved, self.value = self.value, self.at(self.timestep)
        return None if saved == self.value else saved

    def _between_points(self, t: int) -> float:
        times, values = self._times, self._values
        after = bisect.bisect_right(times, t)
        if after == len(times):
            return values[-1]
        begin, end = times[after - 1 : after + 1]
        if t == begin:
            return values[after - 1]
        return float((values[after] - values[after - 1]) / (end - begin) * (t - begin) + values[after - 1])

    def _check_finite(self, value: object, t: int) -> float:
        if not is_number(value) or not math.isfinite(value):
            raise ValueError(f"{self.name} must be a finite number at every step; at step {t} it is {value!r}")
        return float(value)

    def _check_steps(self, value: float, t: int) -> float:
        if not 0.0 <= value <= self._limit:
            limit = "" if math.isinf(self._limit) else f" and at most {self._limit:g}, by its value at step 0"
            raise ValueError(
                f"{self.name}: the function gives {value:g} at step {t}; it must give at least 0{limit}. It is called "
                "with the number of steps done. Other libraries call such a function with progress_remaining, which "
                "falls from 1 to 0: write lambda step: f(max(0, 1 - step / total_steps)), or points [[0, v0], [t1, v1]]"
            )
        return value

    def _checked_points(self, points: Sequence[Any] | np.ndarray) -> tuple[list[float], list[float]]:
        if len(points) < 2:
            raise ValueError(
                f"{self.name}: a schedule needs at least two points [[0, v0], [t1, v1], ...], got "
                f"{points!r}. For a constant value give the number itself."
            )
        for point in points:
            sound = isinstance(point, list | tuple | np.ndarray) and len(point) == 2 and all(map(is_number, point))
            if not sound or not all(math.isfinite(part) for part in point):
                raise ValueError(f"{self.name}: every point must be [step, value], two finite numbers; got {point!r}")
        times = [float(point[0]) for point in points]
        if times[0] != 0:
            raise ValueError(f"{self.name}: the first point must be at step 0, got {times[0]:g}")
        if any(later <= earlier for earlier, later in itertools.pairwise(times)):
            raise ValueError(f"{self.name}: the steps of the points must rise, got {times}")
        return times, [float(point[1]) for point in points]


# -- values of any kind ---


def stages_of(name: str, value: object) -> list[tuple[int, Any]]:
    """Return `[[0, v0], [step1, v1], ...]` as pairs; anything else is one value from step 0 on.

    `ValueError` with `name` for steps that are no whole numbers, do not rise, or do not begin with 0.
    """
    if not isinstance(value, list | tuple) or not value or not all(map(_is_stage, value)):
        return [(0, value)]
    steps = [step for step, _ in value]
    if steps[0] != 0 or any(later <= earlier for earlier, later in itertools.pairwise(steps)):
        raise ValueError(f"{name}={value!r} is not allowed; the steps of [[0, v0], [step1, v1], ...] must rise from 0")
    return [(int(step), part) for step, part in value]


def value_at(step: int, value: object) -> Any:
    """Return the value in force at an environment step, of what `stages_of` takes."""
    return [part for first, part in stages_of("stages", value) if first <= step][-1]


def _is_stage(part: object) -> bool:
    return isinstance(part, list | tuple) and len(part) == 2 and is_whole(part[0])
