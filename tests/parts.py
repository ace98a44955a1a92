"""Which cases of a table, and how many examples of a property, the fast suite runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet
from hypothesis import settings


def fast_if(chosen: Callable[..., object], cases: Iterable[Any]) -> list[ParameterSet]:
    """Return the cases of a table as parameters; `make test-long` runs those for which `chosen(*case)` is false.

    A case is a tuple of values, or one value. Names of cases stay as they are without this.
    """
    found = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        found.append(pytest.param(*values, marks=() if chosen(*values) else pytest.mark.long))
    return found


def one_in(number: int, cases: Iterable[Any]) -> list[ParameterSet]:
    """Return the cases of a table as parameters; the fast suite runs the first of each `number`, `make test-long` all
    others.
    """
    places = iter(range(10**6))
    return fast_if(lambda *_: next(places) % number == 0, cases)


def examples(number: int, **options: Any) -> settings:
    """Return settings of a property: `make test-long` tries `number` examples, the fast suite a quarter of them.

    The profiles that say so are in `conftest.py`.
    """
    return settings(max_examples=max(1, number * settings.default.max_examples // 100), **options)
