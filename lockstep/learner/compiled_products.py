"""How matrix products are written in a compiled gradient step: so that what lies around them becomes one kernel.

A library's product with a bias copies the bias first (25 us for `[2, 256, 256]`), where the kernel of the activation
adds it at no cost. And a product over a few columns, as in a first layer, takes a library 50 us, while written out it
is part of that same kernel (5 us).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MAX_WRITTEN_OUT = 8
"""columns up to which a product over them is written out"""
MAX_OUTPUTS, MAX_SUMS = 2, 4
"""columns of a result, and those (or rows) of one that is summed over a batch, up to which it is written as sums"""
MAX_ELEMENTS = 1 << 15
"""of a matrix in float32, up to which it is; a library spends 20 to 35 us on any product in bfloat16"""


def _written_out(a: Tensor, b: Tensor) -> Tensor:
    """`a` `[..., N, K]` times `b` `[..., K, M]` as a sum of K outer products."""
    if b.stride(-1) != 1:  # neighbours in the result must be neighbours in `b`, or the kernel would not be vectorised
        b = b.clone(memory_format=torch.contiguous_format)
        b = b.as_strided(b.shape, b.stride())  # which the compiler keeps as a buffer of its own
    out = a[..., :, :1] * b[..., :1, :]
    for k in range(1, a.shape[-1]):
        out = out + a[..., :, k : k + 1] * b[..., k : k + 1, :]
    return out


def _as_sums(a: Tensor, b: Tensor) -> Tensor | None:
    """`a` `[..., N, K]` times `b` `[..., K, M]` as sums, where N or M is small; None where a library is faster."""
    (rows, _), columns, in_half = a.shape[-2:], b.shape[-1], a.dtype == torch.bfloat16
    if max(a.numel(), b.numel()) > MAX_ELEMENTS and not in_half:
        return None
    if rows <= MAX_SUMS and b.stride(-1) == 1 and in_half:
        return torch.stack([(a[..., m, :].unsqueeze(-1) * b).sum(-2) for m in range(rows)], -2)
    if a.stride(-1) == 1:  # a layer of few outputs
        if columns > MAX_OUTPUTS:
            return None
        return (a.unsqueeze(-2) * b.transpose(-1, -2).unsqueeze(-3)).sum(-1)
    if columns <= MAX_SUMS:  # the gradient of the weights of a layer of few inputs or outputs: over a batch's rows
        return torch.stack([(a.transpose(-1, -2) * b[..., n : n + 1]).sum(-2) for n in range(columns)], -1)
    return None


def _small(a: Tensor, b: Tensor) -> Tensor | None:
    """The product as plain operations, where that is faster."""
    return _written_out(a, b) if a.shape[-1] <= MAX_WRITTEN_OUT else _as_sums(a, b)


def _plain(a: Tensor, b: Tensor) -> Any:
    small = _small(a, b)
    return NotImplemented if small is None else small


def _with_bias(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    if beta != 1 or alpha != 1:
        return NotImplemented
    small = _small(a, b)
    if small is not None:
        return bias + small
    if a.dim() == 2:  # with one more dimension, so that the compiler does not make one call of product and sum again
        return (bias + torch.mm(a, b).unsqueeze(0)).squeeze(0)
    return bias + torch.bmm(a, b)


aten = torch.ops.aten
PRODUCTS: dict[Any, Callable[..., Any]] = {
    aten.mm.default: _plain,
    aten.bmm.default: _plain,
    aten.addmm.default: _with_bias,
    aten.baddbmm.default: _with_bias,
}
"""by operation: what stands for it in the graph"""
