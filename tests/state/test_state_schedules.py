"""Schedules: values, refusals, state."""

import math

import numpy as np
import pytest

from lockstep.state import Schedule

POINTS = [[0, 1.0], [10, 0.0], [30, 4.0]]


def test_a_number_is_constant() -> None:
    for number in (3e-4, 1, np.float32(0.5), np.int64(2)):
        schedule = Schedule(number)
        assert schedule.constant
        assert schedule(0) == schedule(10**9) == schedule.value == float(number)
        assert type(schedule(5)) is float


def test_points_are_joined_by_lines_and_constant_after_the_last() -> None:
    for points in (POINTS, tuple(map(tuple, POINTS)), np.array(POINTS)):
        schedule = Schedule(Schedule(points))
        assert not schedule.constant
        assert schedule.value == 1.0
        given = [0, 5, 10, 15, 30, 31, 10**9]
        assert [schedule(t) for t in given] == [1.0, 0.5, 0.0, 1.0, 4.0, 4.0, 4.0]


def test_points_give_what_numpy_interpolates_as_a_plain_number() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        times = np.r_[0, rng.integers(1, 1000, rng.integers(1, 5)).cumsum()].astype(float)
        values = rng.standard_normal(len(times))
        schedule = Schedule(np.stack([times, values], 1).tolist())
        for step in (*rng.integers(0, int(times[-1]) + 9, 20), *times.astype(int)):
            assert type(schedule(step)) is float
            assert schedule(step) == np.interp(step, times, values)
    assert Schedule([[0, -1e308], [1, 1e308]])(0) == -1e308


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ([], ValueError, "at least two points"),
        ([[0, 1.0]], ValueError, "at least two points"),
        ([[1, 1.0], [10, 0.0]], ValueError, "first point must be at step 0"),
        ([[-5, 1.0], [10, 0.0]], ValueError, "first point must be at step 0"),
        ([[0, 1.0], [10, 0.0], [10, 1.0]], ValueError, "must rise"),
        ([[0, 1.0], [10, 0.0], [5, 1.0]], ValueError, "must rise"),
        ([[0, 1.0], [10, math.nan]], ValueError, "two finite numbers"),
        ([[0, 1.0], [math.inf, 0.0]], ValueError, "two finite numbers"),
        ([[0, 1.0], [10]], ValueError, r"every point must be \[step, value\]"),
        ([0, 1], ValueError, r"every point must be \[step, value\]"),
        ([[0, "1"], [10, 2]], ValueError, r"every point must be \[step, value\]"),
        (math.nan, ValueError, "finite number"),
        (math.inf, ValueError, "finite number"),
        (lambda t: math.nan, ValueError, "at step 0 it is nan"),
        (lambda t: "x", ValueError, "at step 0 it is 'x'"),
        ("0.1", TypeError, "must be a number, a list of points"),
        (None, TypeError, "must be a number, a list of points"),
        (True, TypeError, "must be a number, a list of points"),
    ],
)
def test_refusals_say_what_is_scheduled_and_what_is_allowed(
    value: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        Schedule(value, name="entropy_coeff")
    assert "entropy_coeff" in str(caught.value)


def test_a_function_that_fails_later_is_refused() -> None:
    schedule = Schedule(lambda t: math.inf if t > 5 else 1.0, name="lr")
    schedule(5)
    with pytest.raises(ValueError, match=r"lr .* at step 6 it is inf"):
        schedule(6)
    assert schedule.timestep == 5


def test_the_position_is_the_state() -> None:
    schedule = Schedule(POINTS)
    schedule(15)
    resumed = Schedule(POINTS)
    resumed.set_state(schedule.get_state())
    assert (resumed.timestep, resumed.value) == (15, 1.0)


def test_a_progress_schedule_of_another_library_is_refused_when_used():
    for function in (lambda progress: 1e-3 * progress, lambda progress: 1e-4 + 3e-4 * progress):
        schedule = Schedule(function, name="lr")
        with pytest.raises(ValueError, match=r"lr: the function gives \S+ at step 2048; .*progress_remaining"):
            schedule(2048)
    with pytest.raises(ValueError, match=r"gives -1 at step 3; it must give at least 0 .*progress_remaining"):
        Schedule(lambda step: 2.0 - step)(3)


def test_a_function_may_warm_up_from_0_and_rise_to_ten_times_its_start():
    assert Schedule(lambda step: min(1.0, step / 1000) * 3e-4)(5000) == 3e-4
    schedule = Schedule(lambda step: 1e-4 + min(step, 9) * 1e-4)
    assert not schedule.constant
    assert schedule(50) == pytest.approx(1e-3)
