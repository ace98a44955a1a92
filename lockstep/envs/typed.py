"""Keyword types of the options declared in this folder."""

# Written by `python tests/architecture/keyword_types.py` from the fields of the sections: do not edit.

from __future__ import annotations

from typing import Any, TypedDict


class EnvironmentOptions(TypedDict, total=False):
    """Options of `EnvironmentSection`."""

    env_config: dict[str, Any]
    observation_space: Any
    action_space: Any
    normalize_observations: bool
    clip_observations: float
    normalize_rewards: bool
    clip_rewards: float | None
    rescale_actions: bool
    clip_actions: bool
    frame_stack: int
