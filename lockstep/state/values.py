"""What is no number, or not one that is allowed: each message has the name, the value and what is allowed; and what a
name that there is not may have meant.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np


def is_number(value: object) -> bool:
    """Is it an int or a float, Python's or NumPy's, and not True or False?"""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def suggestion(given: object, known: Iterable[str], *, elsewhere: Sequence[str] = (), most: int = 1) -> str:
    """For a name that is not known: up to `most` of those that it may have meant (or those by which other libraries
    mean the same, `elsewhere`), else all that there are.
    """
    names = list(dict.fromkeys(known))
    near = elsewhere or get_close_matches(str(given), names, n=most, cutoff=0.5)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {', '.join(names)}"


def check_whole(name: str, value: Any, least: int, *, optional: bool = False) -> Any:
    """Raises `ValueError` unless `value` is a whole number, Python's or NumPy's, of at least `least` (or None, where
    optional). Returns it as Python's.
    """
    if optional and value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        none = ", or None" if optional else ""
        raise ValueError(f"{name}={value!r} is not allowed; it must be a whole number, at least {least}{none}")
    return int(value)


def check_wholes(**values: Any) -> list[int]:
    """Raises `ValueError` unless each is a whole number of at least 1. Returns them as Python's."""
    return [check_whole(name, value, 1) for name, value in values.items()]


def check_number(name: str, value: Any, *, above: float = -math.inf) -> None:
    """Raises `ValueError` unless `value` is a finite number larger than `above`, or None."""
    if value is None:
        return
    if not is_number(value) or not math.isfinite(value) or value <= above:
        limit = "" if above == -math.inf else f" above {above:g}"
        raise ValueError(f"{name}={value!r} is not allowed; it must be a number{limit}, or None")
