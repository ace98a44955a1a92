"""Clipping of gradients: each element, each tensor's norm, or the norm of all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lockstep.learner.config import GradClipBy

ClipFunction = Callable[[Sequence[Tensor], float, GradClipBy, Tensor], None]


def global_norm(tensors: Sequence[Tensor]) -> Tensor:
    """0-d: Euclidean norm of all elements of all tensors."""
    if len(tensors) == 1:
        return torch.linalg.vector_norm(tensors[0])
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(t) for t in tensors]))


def clip_gradients_(tensors: Sequence[Tensor], limit: float, by: GradClipBy, norm: Tensor) -> None:
    """Clips in place. `norm` is the global norm of `tensors`; used by `by="global_norm"` only.

    A tensor of norm n is scaled by `min(1, limit / n)`, so that its direction stays.
    """
    if by == "value":
        for tensor in tensors:
            tensor.clamp_(-limit, limit)
    elif by == "norm":
        for tensor in tensors:
            tensor.mul_((limit / (torch.linalg.vector_norm(tensor) + 1e-6)).clamp(max=1.0))
    else:
        # A norm that is NaN scales nothing, so that the sound tensors stay sound and the bad one can be named.
        bound = norm.new_full((), limit)
        scale = bound / torch.fmax(norm + 1e-6, bound)
        for tensor in tensors:
            tensor.mul_(scale)
