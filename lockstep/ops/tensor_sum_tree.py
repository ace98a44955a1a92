"""A sum tree of tensors on a device, which the host does not wait for (`lockstep.ops.sum_tree` has that of arrays).

Each node is the sum of `WIDTH` below it. A draw goes down level by level, for all its rows at once: it takes their
blocks, sums them up from the left and looks where the rest falls. Of 1,000,000 numbers there are four levels. To draw
N rows of them and to set them again takes 50 operations, and some 10 KiB for each row are read and written. One running
sum over all numbers takes fewer operations, but moves 32 MB in each draw however few rows are drawn, and on CUDA it is
added up in another order each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

WIDTH = 64
"""children of a node: more of them are fewer levels, and more to be read in each"""
SMALLEST, LARGEST = 2.0**-1022, 2.0**1023
"""powers of errors are kept between these"""


class TensorSumTree:
    """`size` non-negative numbers (float64) on a device, all zero at first; in memory that stays where it is."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size, depth = size, 1
        while WIDTH**depth < size:
            depth += 1
        top = -(-size // WIDTH ** (depth - 1))
        shapes = [(1, top)] + [(top * WIDTH**k, WIDTH) for k in range(depth - 1)]
        self.levels = [torch.zeros(shape, dtype=torch.float64, device=device) for shape in reversed(shapes)]
        """`[blocks, children of each]`, the numbers first; zeros fill the last blocks"""
        self._last = torch.zeros(size, dtype=torch.int32, device=device)
        """[size], which of the errors being set is a number's last one"""

    @property
    def values(self) -> Tensor:
        """`[size]`, a view; call `recompute_sums` after writing to it."""
        return self.levels[0].view(-1)[: self.size]

    def set(self, rows: Tensor, values: Tensor) -> None:
        """Set the numbers at `rows`, int64 `[N]`, to `values` `[N]`; a row named twice has the same value each time."""
        self.levels[0].view(-1).index_copy_(0, rows, values)
        for below, above in pairwise(self.levels):
            if len(rows) >= len(below):
                above.view(-1).copy_(below.sum(1))
            else:
                rows = rows // WIDTH
                above.view(-1).index_copy_(0, rows, below.index_select(0, rows).sum(1))

    def set_powers(self, rows: Tensor, errors: Tensor, epsilon: float, alpha: float) -> Tensor:
        """Set `(|error| + epsilon) ** alpha` at `rows`, int64 `[N]`; of a row named twice the last error counts.

        Errors that are not finite leave a number as it is.

        Returns:
            The largest `|error| + epsilon` of the finite ones, 0-d; 0 where there is none.
        """
        size = errors.abs().to(torch.float64) + epsilon
        sound = size.isfinite()
        largest = torch.where(sound, size, 0.0).max()
        numbers = torch.arange(len(rows), dtype=torch.int32, device=rows.device)
        self._last.index_fill_(0, rows, -1)
        self._last.scatter_reduce_(0, rows, torch.where(sound, numbers, -1), "amax")
        last = self._last.index_select(0, rows)  # a row named twice is written twice, so with one value
        new = size.pow(alpha).clamp(SMALLEST, LARGEST).index_select(0, last.clamp(min=0))
        self.set(rows, torch.where(last < 0, self.values.index_select(0, rows), new))
        return largest

    def relative_powers(self, rows: Tensor, exponent: Tensor) -> Tensor:
        """Return `(number / smallest of these) ** -exponent` at `rows`; float32 `[N]`."""
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
        """Return rows drawn in proportion to their numbers, int64 `[N]`.

        Rounding may lead to the row behind the right one, and so past the last number that is not 0.

        Args:
            uniforms: `[N]` float64 in [0, 1).
        """
        rest = (uniforms * self.levels[-1].sum()).unsqueeze(1)
        rows = torch.zeros_like(rest, dtype=torch.int64)
        for level in reversed(self.levels):
            parts = level.index_select(0, rows.squeeze(1))
            sums = parts.cumsum(1)
            place = torch.searchsorted(sums, rest, right=True).clamp_(max=parts.shape[1] - 1)
            rest = rest - (sums.gather(1, place) - parts.gather(1, place))
            rows = torch.add(place, rows, alpha=WIDTH)
        return rows.squeeze(1)

    def get_state(self, used: int) -> dict[str, Any]:
        """Return the first `used` numbers, and the sums as they are: added up in another order they would differ."""
        sums = [level.cpu().numpy().copy() for level in self.levels[1:]]
        return {"values": self.values[:used].cpu().numpy().copy(), "sums": sums}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go back to what `get_state` gave."""
        values = torch.as_tensor(state["values"])
        self.values.zero_()
        self.values[: len(values)].copy_(values)
        for level, sums in zip(self.levels[1:], state["sums"], strict=True):
            level.copy_(torch.as_tensor(sums))
