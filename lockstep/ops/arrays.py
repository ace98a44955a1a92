"""Array operations whose name or arguments differ between numpy and torch, for transforms that accept both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = Any
"""A numpy array or a torch tensor."""


def torch_dtype(dtype: npt.DTypeLike) -> torch.dtype:
    """Return the torch dtype that corresponds to a numpy dtype."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


def as_dtype(x: Array, dtype: npt.DTypeLike) -> Array:
    """Return `x` converted to a numpy dtype. An array that already has the dtype is returned without a copy."""
    if isinstance(x, torch.Tensor):
        return x.to(torch_dtype(dtype))
    return x.astype(dtype, copy=False)


def constant_like(constant: npt.NDArray[Any], x: Array) -> Array:
    """Return `constant` in the kind of `x`: as an array, or as a tensor on the device of `x`."""
    if isinstance(x, torch.Tensor):
        return torch.from_numpy(constant).to(x.device)
    return constant


class Constant:
    """Constant array that can be read as a tensor on any device.

    The tensor of each device is made once and kept: on a GPU a copy in every call would make the host wait.

    Args:
        array: The values. They must not change afterwards.
    """

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array = array
        self._tensors: dict[torch.device, torch.Tensor] = {}

    def like(self, x: Array) -> Array:
        """Return the constant in the kind of `x`: as an array, or as a tensor on the device of `x`."""
        if not isinstance(x, torch.Tensor):
            return self.array
        if x.device.type == "cpu":
            # Shares the array's memory, so there is nothing to keep.
            return torch.from_numpy(self.array)
        if x.device not in self._tensors:
            self._tensors[x.device] = torch.from_numpy(self.array).to(x.device)
        return self._tensors[x.device]


def clip(x: Array, low: Array, high: Array) -> Array:
    """Return `x` limited to the interval [low, high]. All three are arrays, or all three are tensors."""
    if isinstance(x, torch.Tensor):
        return torch.minimum(torch.maximum(x, low), high)
    return np.minimum(np.maximum(x, low), high)


def split_columns(x: Array, widths: Sequence[int]) -> Sequence[Array]:
    """Return consecutive parts of the last dimension of `x`, one for each of `widths`."""
    if isinstance(x, torch.Tensor):
        return x.split(list(widths), dim=-1)
    # numpy takes the positions of the cuts, torch the widths.
    cuts = np.cumsum(widths)[:-1]
    return np.split(x, cuts, axis=-1)


def move_axis(x: Array, source: int, destination: int) -> Array:
    """Return a view of `x` with dimension `source` moved to position `destination`."""
    if isinstance(x, torch.Tensor):
        return x.movedim(source, destination)
    return np.moveaxis(x, source, destination)
