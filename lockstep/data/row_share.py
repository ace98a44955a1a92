"""`RowShare`: the parallel environments that belong to one rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor


def _gather_alone(value: object) -> list[Any]:
    return [value]


@dataclass(frozen=True)
class RowShare:
    """One of `number` equal shares of B environments. Rank 0 has the first rows, rank 1 the next ones, and so on.

    Each rank draws random numbers for all B rows and uses those of its own share. So a row gets the same numbers for
    every number of ranks.

    A step is numbered `t * B + b`, with B counted over all ranks.
    """

    rank: int = 0
    number: int = 1
    """Number of ranks."""
    gather: Callable[[Any], list[Any]] = _gather_alone
    """Returns the trees of all ranks, in the order of ranks. Every rank must call it."""

    def of(self, rows: Tensor) -> Tensor:
        """Return this rank's part `[B / number, ...]` of the rows of all ranks, `[B, ...]`."""
        if self.number == 1:
            return rows
        num_envs = len(rows) // self.number
        return rows[self.rank * num_envs : (self.rank + 1) * num_envs]

    def contains(self, steps: Tensor, num_envs: int) -> Tensor:
        """Return a bool mask `[N]` of the step numbers `[N]` that belong to this rank.

        `num_envs` is the number of environments of each rank.
        """
        return steps % (num_envs * self.number) // num_envs == self.rank

    def local_rows(self, steps: Tensor, num_envs: int) -> Tensor:
        """Return the rows `t * num_envs + b` of this rank's storage, int64 `[N]`, that hold its `steps` `[N]`."""
        t = steps // (num_envs * self.number)
        return t * num_envs + steps % num_envs


ALL_ROWS = RowShare()
"""Share of a process that has no other ranks: all rows."""
