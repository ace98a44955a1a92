"""`TensorMoments`: running moments in tensors on a device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lockstep.ops.statistics import RunningMoments


class TensorMoments:
    """The same as `RunningMoments` on a device, in float64. No method but `read` makes the host wait.

    All tensors are changed in place and keep their addresses, so that CUDA graphs can read and write them.

    Args:
        shape: Shape of a row. Each entry has its own mean and variance.
        device: The device.
    """

    def __init__(self, shape: Sequence[int], device: torch.device) -> None:
        self.shape = tuple(shape)
        size = math.prod(self.shape)
        self.numbers = torch.zeros(1 + 2 * size, dtype=torch.float64, device=device)
        """`[1 + 2 * size]`: count, mean and squares in one tensor, for copies to the host and back."""
        self.count = self.numbers[0]
        self.mean = self.numbers[1 : 1 + size].view(self.shape)
        self.squares = self.numbers[1 + size :].view(self.shape)

    @property
    def var(self) -> Tensor:
        """Population variance `[*shape]`. One before the first row."""
        return torch.where(self.count > 0, self.squares / self.count.clamp(min=1.0), 1.0)

    def update(self, rows: Tensor) -> None:
        """Add rows `[N, *shape]`, at least one."""
        # `[size, N]`: torch sums adjacent numbers in the same order for every number of columns, so a tree of
        # observations and its flat form get identical statistics.
        columns = rows.to(torch.float64).reshape(len(rows), -1).T.contiguous()
        mean = columns.mean(-1, keepdim=True)
        squares = (columns - mean).square_().sum(-1)
        self._join(len(rows), mean.view(self.shape), squares.view(self.shape))

    def merge(self, other: TensorMoments) -> None:
        """Add the rows of `other`, of which there may be none."""
        self._join(other.count, other.mean, other.squares)

    def _join(self, count: int | Tensor, mean: Tensor, squares: Tensor) -> None:
        """Add `count` rows with these moments, by the update of Chan et al. 1979 for two samples."""
        total = self.count + count
        weight = count / total.clamp(min=1.0)
        delta = mean - self.mean
        between = delta.square() * (self.count * weight)
        self.squares.add_(squares).add_(between)
        self.mean.add_(delta * weight)
        self.count.copy_(total)

    def clear(self) -> None:
        """Remove all rows."""
        self.numbers.zero_()

    def read(self) -> RunningMoments:
        """Return the moments on the host, which waits for the device."""
        numbers = self.numbers.cpu().numpy()
        mean, squares = numbers[1:].reshape(2, *self.shape)
        count = numbers[0]
        found = RunningMoments(self.shape)
        found.set_state({"count": count, "mean": mean, "squares": squares})
        return found

    def write(self, moments: RunningMoments) -> None:
        """Replace the moments by the host's."""
        numbers = np.concatenate([[moments.count], moments.mean.reshape(-1), moments.squares.reshape(-1)])
        self.numbers.copy_(torch.from_numpy(numbers))
