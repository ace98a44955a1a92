"""`RowShare`: the rows of parallel environments that belong to this rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor


def _alone(value: object) -> list[Any]:
    return [value]


@dataclass(frozen=True)
class RowShare:
    """One of `number` equal shares of B environments; the rows of rank 0 come first, then those of rank 1, and so on.

    Each rank draws random numbers for all B rows and keeps those of its share, so that a row gets the same numbers
    with any number of ranks. Steps are numbered `t * B + b` over all ranks.
    """

    rank: int = 0
    number: int = 1
    gather: Callable[[Any], list[Any]] = _alone
    """Returns the trees of all ranks, in the order of ranks; every rank must call it."""

    def of(self, rows: Tensor) -> Tensor:
        """Return the rows of this rank, `[B / number, ...]`, of the rows of all ranks, `[B, ...]`."""
        if self.number == 1:
            return rows
        each = len(rows) // self.number
        return rows[self.rank * each : (self.rank + 1) * each]

    def contains(self, steps: Tensor, num_envs: int) -> Tensor:
        """Return which of the numbered `steps` `[N]` belong to this rank, bool `[N]`. `num_envs`: of each rank."""
        return steps % (num_envs * self.number) // num_envs == self.rank

    def local_rows(self, steps: Tensor, num_envs: int) -> Tensor:
        """Return numbered `steps` `[N]` of this rank as rows `t * num_envs + b` of its storage, int64 `[N]`."""
        return steps // (num_envs * self.number) * num_envs + steps % num_envs


ALL_ROWS = RowShare()
"""The share of a process without other ranks."""
