"""Keyword types of the options declared in this folder."""

# Written by `python tests/architecture/keyword_types.py` from the fields of the sections: do not edit.

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

from gymnasium import spaces

from lockstep.data.actions import ActionForm
from lockstep.options.schedules import ScheduleLike
from lockstep.replay.hindsight import Hindsight


class ReplayOptions(TypedDict, total=False):
    """Options of `ReplaySection`."""

    capacity: int
    learning_starts: int
    update_per_step: float
    n_step: int
    sequence_length: int | None
    burn_in: int | None
    prioritized: bool
    alpha: float
    beta: ScheduleLike
    her: bool
    her_future_k: float
    her_strategy: Literal["future", "final", "episode"]
    ignore_obs_next: bool
    storage: Literal["memory", "memmap"]


class BufferOptions(TypedDict, total=False):
    """Options of `ReplayBuffer`."""

    stack_num: int
    ignore_obs_next: bool
    save_only_last_obs: bool
    sample_avail: bool
    n_step: int
    gamma: float
    sequence_length: int | None
    burn_in: int
    seed: int
    storage: str
    directory: str | Path | None
    observation_space: spaces.Space[Any] | None
    action_space: spaces.Space[Any] | None
    action_form: ActionForm | None


class VectorBufferOptions(BufferOptions, total=False):
    """Options of `ReplayBuffer`."""

    priorities: Mapping[str, Any] | None
    hindsight: Hindsight | None


class AnyBufferOptions(VectorBufferOptions, total=False):
    """Options of `ReplayBuffer`."""

    buffer_num: int
