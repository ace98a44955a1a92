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


def _written_out(a: Tensor, b: Tensor) -> Tensor:
    """`a` `[..., N, K]` times `b` `[..., K, M]` as a sum of K outer products."""
    if b.stride(-1) != 1:  # neighbours in the result must be neighbours in `b`, or the kernel would not be vectorised
        b = b.clone(memory_format=torch.contiguous_format)
        b = b.as_strided(b.shape, b.stride())  # which the compiler keeps as a buffer of its own
    out = a[..., :, :1] * b[..., :1, :]
    for k in range(1, a.shape[-1]):
        out = out + a[..., :, k : k + 1] * b[..., k : k + 1, :]
    return out


def _is_small(a: Tensor, b: Tensor) -> bool:
    return a.shape[-1] <= MAX_WRITTEN_OUT


def _plain(a: Tensor, b: Tensor) -> Any:
    return _written_out(a, b) if _is_small(a, b) else NotImplemented


def _with_bias(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    if beta != 1 or alpha != 1:
        return NotImplemented
    if _is_small(a, b):
        return bias + _written_out(a, b)
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
