"""Layers with their initialisation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)

_ACTIVATION_CLASSES: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
}


def make_activation(name: str) -> nn.Module:
    """A new activation layer; `ValueError` for an unknown name."""
    if name not in _ACTIVATION_CLASSES:
        raise ValueError(f"activation {name!r} is not one of {', '.join(_ACTIVATION_CLASSES)}")
    return _ACTIVATION_CLASSES[name]()


def initialise(layer: Layer, gain: float | None) -> Layer:
    """Orthogonal weights times `gain` and a zero bias (Saxe et al. 2014, arXiv:1312.6120); None leaves the
    layer.
    """
    if gain is not None:
        nn.init.orthogonal_(layer.weight, gain)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return layer


def make_mlp(input_size: int, widths: Sequence[int], activation: str, gain: float | None) -> nn.Sequential:
    """Linear layers, each followed by the activation: `[..., input_size]` -> `[..., widths[-1]]`."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise((input_size, *widths)):
        layers += [initialise(nn.Linear(fan_in, fan_out), gain), make_activation(activation)]
    return nn.Sequential(*layers)


def mask_logits(logits: Tensor, mask: Tensor) -> Tensor:
    """`logits` `[N, D]` with a large negative finite number where `mask` `[N, D]` is 0 or False; no gradient
    there.

    A row that forbids everything becomes uniform.
    """
    lowest = max(-1e9, torch.finfo(logits.dtype).min / 2)
    return torch.where(mask.to(torch.bool), logits, lowest)
