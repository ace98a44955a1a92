"""Texts of numbers as people read them: sizes, durations, and counts with their noun."""

from __future__ import annotations


def size_text(num_bytes: int) -> str:
    """Return a size with its unit, such as `"36.0 KiB"`."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def duration_text(seconds: float) -> str:
    """Return a duration with its unit: `"25 s"`, `"12 min"` or `"3.5 h"`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def count_text(number: int, singular: str, plural: str) -> str:
    """Return a number with its noun: `"1 thread"` or `"12 threads"`."""
    noun = singular if number == 1 else plural
    return f"{number:,} {noun}"
