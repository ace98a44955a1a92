"""What a replay buffer can be asked for, checked."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from lockstep.state.checks import is_number


@dataclass(frozen=True)
class ReplayOptions:
    """Options of `ReplayBuffer` that are plain values; see there."""

    size: int
    buffer_num: int = 1
    stack_num: int = 1
    ignore_obs_next: bool = False
    save_only_last_obs: bool = False
    sample_avail: bool = False
    n_step: int = 1
    gamma: float = 0.99

    def __post_init__(self) -> None:
        for name in ("size", "buffer_num", "stack_num", "n_step"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name}={value!r} is not allowed; it must be a whole number, at least 1")
        for name in ("ignore_obs_next", "save_only_last_obs", "sample_avail"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name}={getattr(self, name)!r} is not allowed; it must be True or False")
        if not (is_number(self.gamma) and 0.0 <= self.gamma <= 1.0):
            raise ValueError(f"gamma={self.gamma!r} is not allowed; it must lie in [0, 1]")
        if self.buffer_num > self.size:
            raise ValueError(f"size={self.size} is less than one row for each of buffer_num={self.buffer_num}")
        if self.sample_avail and self.stack_num == 1:
            raise ValueError("sample_avail=True chooses rows by their stacks; it needs stack_num of at least 2")

    def keywords(self) -> dict[str, Any]:
        """The options as keywords of `ReplayBuffer`, all but `size`."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "size"}

    @property
    def rows_each(self) -> int:
        """Rows of one sub-buffer."""
        return -(-self.size // self.buffer_num)
