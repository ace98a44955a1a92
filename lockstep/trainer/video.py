"""Aliases of names that have moved to `lockstep.runs.video`, for programs that import them from here."""

from __future__ import annotations

from typing import Any

from lockstep.state.moved import moved_name

_MOVED = dict.fromkeys(("VideoCallback", "record_video"), "lockstep.runs")


def __getattr__(name: str) -> Any:
    """Find names that are in `lockstep.runs` now."""
    return moved_name(__name__, name, _MOVED)
