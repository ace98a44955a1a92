"""`RowShare`: which rows of side by side environments one of several ranks has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor


def _alone(value: object) -> list[Any]:
    return [value]


@dataclass(frozen=True)
class RowShare:
    """One of `number` equal shares of B environments, whose rows lie side by side by rank.

    What is drawn for a row is drawn for all of them by each rank, which takes its own: so a row has the same numbers
    however many ranks there are. Steps are numbered `t * B + b` over all ranks.
    """

    rank: int = 0
    number: int = 1
    gather: Callable[[Any], list[Any]] = _alone
    """gives a tree of each rank, by rank; all ranks call it alike"""

    def of(self, rows: Tensor) -> Tensor:
        """Return the own rows of what all have, `[B, ...]`."""
        if self.number == 1:
            return rows
        each = len(rows) // self.number
        return rows[self.rank * each : (self.rank + 1) * each]

    def has(self, steps: Tensor, num_envs: int) -> Tensor:
        """Return which of the numbered `steps` `[N]` are own ones, bool `[N]`. `num_envs`: of each rank."""
        return steps % (num_envs * self.number) // num_envs == self.rank

    def own(self, steps: Tensor, num_envs: int) -> Tensor:
        """Return own numbered `steps` `[N]` as rows `t * num_envs + b` of what the rank has."""
        return steps // (num_envs * self.number) * num_envs + steps % num_envs


ALL_ROWS = RowShare()
"""of a process alone"""
