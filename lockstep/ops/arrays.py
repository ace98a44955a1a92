"""Operations that numpy arrays and torch tensors name differently, for transforms that take both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = Any
"""a numpy array or a torch tensor"""


def torch_dtype(dtype: npt.DTypeLike) -> torch.dtype:
    """Return torch's name of a numpy dtype."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


def as_dtype(x: Array, dtype: npt.DTypeLike) -> Array:
    """Return `x` in a numpy dtype; no copy where it has that already."""
    return x.to(torch_dtype(dtype)) if isinstance(x, torch.Tensor) else x.astype(dtype, copy=False)


def constant_like(constant: npt.NDArray[Any], x: Array) -> Array:
    """Return a constant as what `x` is: an array, or a tensor on its device."""
    return torch.from_numpy(constant).to(x.device) if isinstance(x, torch.Tensor) else constant


class Constant:
    """An array that is there as a tensor as well, on each device where it was asked for: it is copied once."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array = array
        self._tensors: dict[torch.device, torch.Tensor] = {}

    def like(self, x: Array) -> Array:
        """Return it as what `x` is: an array, or a tensor on its device."""
        if not isinstance(x, torch.Tensor):
            return self.array
        if x.device.type == "cpu":
            return torch.from_numpy(self.array)
        if x.device not in self._tensors:
            self._tensors[x.device] = torch.from_numpy(self.array).to(x.device)
        return self._tensors[x.device]


def clip(x: Array, low: Array, high: Array) -> Array:
    """Return `x` within [low, high], which are of its kind."""
    if isinstance(x, torch.Tensor):
        return torch.minimum(torch.maximum(x, low), high)
    return np.minimum(np.maximum(x, low), high)


def split_columns(x: Array, widths: Sequence[int]) -> Sequence[Array]:
    """Return the parts of the last dimension, of these widths."""
    if isinstance(x, torch.Tensor):
        return x.split(list(widths), dim=-1)
    return np.split(x, np.cumsum(widths)[:-1], axis=-1)


def move_axis(x: Array, source: int, destination: int) -> Array:
    """Return a view of `x` with one dimension in another place."""
    return x.movedim(source, destination) if isinstance(x, torch.Tensor) else np.moveaxis(x, source, destination)
