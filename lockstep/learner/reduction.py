"""How learners meet: sums over all of them. One learner alone adds nothing."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Reducer(Protocol):
    """Adds tensors over all learners, in place; every learner then holds the same bits."""

    world_size: int
    rank: int

    def sum_(self, tensor: Tensor) -> Tensor:
        """The sum over all learners, in place."""
        ...


class LocalReducer:
    """One learner in one process: every sum is already complete."""

    world_size = 1
    rank = 0

    def sum_(self, tensor: Tensor) -> Tensor:
        """`tensor` itself."""
        return tensor
