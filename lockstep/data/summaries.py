"""One line of text for each column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from lockstep.data.trees import named_leaves

_HEAD = 3


def describe_columns(columns: Mapping[str, Any]) -> str:
    """Lines such as `'rewards': np.ndarray((200,), dtype=float32, min=0.000, max=1.000, mean=0.985)`."""
    lines = [
        f"    {path!r}: {describe_leaf(leaf)}"
        for name, column in columns.items()
        for path, leaf in named_leaves(name, column)
    ]
    return "\n".join(lines)


def describe_leaf(leaf: Any) -> str:
    """Container, shape, dtype and range of one array; strings and objects show their head."""
    if isinstance(leaf, torch.Tensor):
        kind, dtype = "torch.Tensor", str(leaf.dtype).removeprefix("torch.")
        where = "" if leaf.device.type == "cpu" else f", device={leaf.device}"
        numbers = leaf.detach().double().cpu().numpy() if not leaf.is_complex() else None
    else:
        kind, dtype, where = "np.ndarray", str(leaf.dtype), ""
        numbers = leaf if leaf.dtype.kind in "biuf" else None
    text = f"{kind}({tuple(leaf.shape)}, dtype={dtype}{where}"
    if numbers is None:
        head = ", ".join(_short(item) for item in leaf[:_HEAD])
        return f"{text}, head=[{head}{', ...' if len(leaf) > _HEAD else ''}])"
    if not numbers.size:
        return f"{text})"
    low, high = numbers.min(), numbers.max()
    return f"{text}, min={low:.3f}, max={high:.3f}, mean={np.mean(numbers, dtype=np.float64):.3f})"


def _short(item: Any) -> str:
    text = repr(item.item() if isinstance(item, np.generic) else item)
    return text if len(text) <= 40 else text[:37] + "..."
