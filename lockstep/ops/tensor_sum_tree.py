"""A sum tree of tensors on a device, which works without making the host wait.

`lockstep.ops.sum_tree` is the same structure on numpy arrays.

Each node is the sum of its `WIDTH` children. A draw descends level by level, for all its rows at once: it reads the
children of each row's node, takes their running sum and finds the child into which the remaining mass falls. A tree of
1,000,000 numbers has four levels. To draw N rows and to set them again takes 50 operations, and about 10 KiB are read
and written for each row.

One running sum over all numbers would take fewer operations. But it moves 32 MB in each draw however few rows are
drawn, and on CUDA it is added up in another order each time, so that a run could not be repeated bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

WIDTH = 64
"""Number of children of a node. A wider node makes fewer levels, and more numbers to read in each."""
SMALLEST, LARGEST = 2.0**-1022, 2.0**1023
"""Limits of the priorities that `set_powers` computes: the normal numbers of float64, so that none becomes 0 or inf."""


class TensorSumTree:
    """`size` non-negative float64 numbers on a device, which can be changed and drawn in proportion to their size.

    All are zero at first. The memory stays in place for the life of the tree, because CUDA graphs hold its address.

    Args:
        size: Number of numbers.
        device: Device of the tensors.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        depth = 1
        while WIDTH**depth < size:
            depth += 1
        # The top block holds only as many nodes as are needed; every block below has all its children.
        num_top_nodes = -(-size // WIDTH ** (depth - 1))
        shapes = [(1, num_top_nodes)] + [(num_top_nodes * WIDTH**k, WIDTH) for k in range(depth - 1)]
        self.levels = [torch.zeros(shape, dtype=torch.float64, device=device) for shape in reversed(shapes)]
        """`[blocks, children of a block]` of each level, from the numbers up to the top. Zeros fill the last block."""
        self._last = torch.zeros(size, dtype=torch.int32, device=device)
        """`[size]`, working memory of `set_powers`: for each number the position of its last error."""

    @property
    def values(self) -> Tensor:
        """`[size]`, a view of the numbers. Call `recompute_sums` after you have written to it."""
        return self.levels[0].view(-1)[: self.size]

    def set(self, rows: Tensor, values: Tensor) -> None:
        """Set the numbers at some rows, and their sums.

        Args:
            rows: int64 `[N]`. A row may occur several times if its value is the same each time: the order in which a
                device writes is not defined.
            values: float64 `[N]`.
        """
        self.levels[0].view(-1).index_copy_(0, rows, values)
        # Sums are always computed from all children, never corrected by a difference: so no rounding error piles up.
        for below, above in pairwise(self.levels):
            if len(rows) >= len(below):
                above.view(-1).copy_(below.sum(1))
            else:
                rows = rows // WIDTH
                above.view(-1).index_copy_(0, rows, below.index_select(0, rows).sum(1))

    def set_powers(self, rows: Tensor, errors: Tensor, epsilon: float, alpha: float) -> Tensor:
        """Set the numbers at some rows to `(|error| + epsilon) ** alpha`.

        An error that is not finite leaves its number as it is.

        Args:
            rows: int64 `[N]`. Of a row that occurs several times the last finite error counts.
            errors: `[N]`.
            epsilon: Smallest base of a power.
            alpha: Exponent.

        Returns:
            The largest `|error| + epsilon` of the finite errors, 0-d; 0 if there is none.
        """
        size = errors.abs().to(torch.float64) + epsilon
        is_finite = size.isfinite()
        largest = torch.where(is_finite, size, 0.0).max()

        # Find the position of each row's last finite error; -1 if it has none. All occurrences of a row then write the
        # same number, so the order of the writes does not matter.
        positions = torch.arange(len(rows), dtype=torch.int32, device=rows.device)
        self._last.index_fill_(0, rows, -1)
        self._last.scatter_reduce_(0, rows, torch.where(is_finite, positions, -1), "amax")
        last = self._last.index_select(0, rows)

        powers = size.pow(alpha).clamp(SMALLEST, LARGEST).index_select(0, last.clamp(min=0))
        self.set(rows, torch.where(last < 0, self.values.index_select(0, rows), powers))
        return largest

    def relative_powers(self, rows: Tensor, exponent: Tensor) -> Tensor:
        """Return `(number / smallest number) ** -exponent` of the numbers at `rows`, as float32 `[N]`."""
        values = self.values.index_select(0, rows)
        return (values / values.min()).pow(-exponent).to(torch.float32)

    def clear(self) -> None:
        """Set all numbers to 0."""
        self.values.zero_()
        self.recompute_sums()

    def recompute_sums(self) -> None:
        """Compute all sums from the numbers."""
        for below, above in pairwise(self.levels):
            above.view(-1).copy_(below.sum(1))

    def draw(self, uniforms: Tensor) -> Tensor:
        """Return rows drawn in proportion to their numbers, independently of one another.

        Rounding may lead to the row behind the right one, and so past the last number that is not 0: the caller limits
        the rows to those that hold something.

        Args:
            uniforms: float64 `[N]`, in [0, 1).

        Returns:
            int64 `[N]`.
        """
        # The mass that remains to be passed below the node that has been reached, for each draw.
        remaining = (uniforms * self.levels[-1].sum()).unsqueeze(1)
        nodes = torch.zeros_like(remaining, dtype=torch.int64)
        for level in reversed(self.levels):
            children = level.index_select(0, nodes.squeeze(1))
            sums = children.cumsum(1)
            child = torch.searchsorted(sums, remaining, right=True).clamp_(max=children.shape[1] - 1)
            passed = sums.gather(1, child) - children.gather(1, child)
            remaining = remaining - passed
            nodes = torch.add(child, nodes, alpha=WIDTH)
        return nodes.squeeze(1)

    def get_state(self, used: int) -> dict[str, Any]:
        """Return the first `used` numbers, and all sums.

        The sums are saved as well because their bits depend on the order of addition, which may differ after loading.
        """
        sums = [level.cpu().numpy().copy() for level in self.levels[1:]]
        return {"values": self.values[:used].cpu().numpy().copy(), "sums": sums}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the numbers and sums that `get_state` returned. Numbers beyond them become 0."""
        values = torch.as_tensor(state["values"])
        self.values.zero_()
        self.values[: len(values)].copy_(values)
        for level, sums in zip(self.levels[1:], state["sums"], strict=True):
            level.copy_(torch.as_tensor(sums))
