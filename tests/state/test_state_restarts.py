"""`RestartBudget`: limits of a run and of a time."""

import re

import pytest

from lockstep.options.restarts import RestartBudget, RestartLimits


def test_workers_restart_within_their_window_and_the_limits_of_the_run():
    now = [0.0]
    budget = RestartBudget(RestartLimits(in_run=3, in_window=1, window_s=60.0), clock=lambda: now[0])
    assert budget.take("a") is None
    assert budget.take("a") == "1 restarts in the last 60 s, at most 1 are allowed"
    assert budget.take("b") is None
    now[0] = 60.0
    assert budget.take("a") is None
    assert budget.take("c") == "3 restarts in this run, at most 3 are allowed"
    assert budget.num_restarts == 3


def test_no_restart_is_allowed_where_a_limit_is_zero():
    assert RestartBudget(RestartLimits(in_run=0)).take(0) == "0 restarts in this run, at most 0 are allowed"
    assert RestartBudget(RestartLimits(in_window=0)).take(0) is not None


@pytest.mark.parametrize(
    "name, value",
    [
        *((name, value) for name in ("in_run", "in_window") for value in (-1, 1.5, True, "10", None)),
        *(("window_s", value) for value in (0, -1.0, "60", None, float("nan"))),
    ],
)
def test_a_limit_that_is_not_allowed_is_refused_with_name_and_value(name, value):
    with pytest.raises(ValueError, match=re.escape(f"{name}={value!r} is not allowed; it must be a ")):
        RestartLimits(**{name: value})
