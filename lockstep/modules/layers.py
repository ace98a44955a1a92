"""Layers with their initialisation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from lockstep.ops.mlp import ACTIVATIONS as FUSED_ACTIVATIONS
from lockstep.ops.mlp import mlp

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


def run_layers(x: Tensor, layers: Sequence[nn.Module]) -> Tensor:
    """`x` through the layers, one after the other: as one fused function (`ops.mlp`) where they are linear layers with
    tanh or relu between them, on the CPU, and nobody looks between them (hooks, `torch.func`, `torch.compile`).
    """
    linears, activations = layers[::2], layers[1::2]
    if activations and _is_plain(x, linears, activations):
        name = _FUSED[type(activations[0])]
        weights, biases = [layer.weight for layer in linears], [layer.bias for layer in linears]
        return mlp(x, weights, biases, name, len(linears) == len(activations))  # type: ignore[arg-type]
    for layer in layers:
        x = layer(x)
    return x


def is_watched(module: nn.Module) -> bool:
    """Has the module hooks, so that it must be called as it is?"""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


_PLAIN_TENSORS = (nn.Parameter, Tensor)
_FUSED: dict[type[nn.Module], str] = {_ACTIVATION_CLASSES[name]: name for name in FUSED_ACTIVATIONS}


def _is_plain(x: Tensor, linears: Sequence[nn.Module], activations: Sequence[nn.Module]) -> bool:
    kind = type(activations[0])
    if kind not in _FUSED or x.dim() != 2 or x.device.type != "cpu" or type(x) is not Tensor:
        return False
    for layer in activations:
        if type(layer) is not kind or is_watched(layer):
            return False
    for layer in linears:
        if type(layer) is not nn.Linear or type(layer.weight) not in _PLAIN_TENSORS or is_watched(layer):
            return False
        if type(layer.bias) not in _PLAIN_TENSORS or layer.weight.dtype is not x.dtype:
            return False
    if x.dtype not in (torch.float32, torch.float64) or torch.is_autocast_enabled("cpu"):
        return False
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return not nn.modules.module._has_any_global_hook()


def mask_logits(logits: Tensor, mask: Tensor) -> Tensor:
    """`logits` `[N, D]` with a large negative finite number where `mask` `[N, D]` is 0 or False; no gradient
    there.

    A row that forbids everything becomes uniform.
    """
    lowest = max(-1e9, torch.finfo(logits.dtype).min / 2)
    return torch.where(mask.to(torch.bool), logits, lowest)
