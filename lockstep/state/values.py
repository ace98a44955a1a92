"""What is no number, or not one that is allowed: each message has the name, the value and what is allowed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def is_number(value: object) -> bool:
    """Is it an int or a float, Python's or NumPy's, and not True or False?"""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


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
