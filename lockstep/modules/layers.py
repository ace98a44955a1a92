"""Layers with their initialisation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from lockstep.modules.action_dist import ActionDist
from lockstep.modules.model_config import ModelConfig
from lockstep.ops.mlp import ACTIVATIONS as FUSED_ACTIVATIONS
from lockstep.ops.mlp import mlps

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


def policy_head(size: int, action_dist: ActionDist, config: ModelConfig) -> tuple[nn.Linear, nn.Parameter | None]:
    """The last layer of a policy on features `[..., size]`, and the log-deviations of a Gaussian one that do not depend
    on the observation; None where there are none, or where the layer gives them.
    """
    num_outputs, log_std = action_dist.input_size, None
    if not action_dist.is_discrete and config.free_log_std:
        num_outputs //= 2
        log_std = nn.Parameter(torch.full((num_outputs,), config.log_std_init))
    head = initialise(nn.Linear(size, num_outputs), config.policy_gain if config.orthogonal_init else None)
    if not action_dist.is_discrete and not config.free_log_std:
        with torch.no_grad():
            head.bias[num_outputs // 2 :] = config.log_std_init
    return head, log_std


def make_mlp(input_size: int, widths: Sequence[int], activation: str, gain: float | None) -> nn.Sequential:
    """Linear layers, each followed by the activation: `[..., input_size]` -> `[..., widths[-1]]`."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise((input_size, *widths)):
        layers += [initialise(nn.Linear(fan_in, fan_out), gain), make_activation(activation)]
    return nn.Sequential(*layers)


Network = tuple[Tensor, Sequence[nn.Module]]
"""an input, and the layers that it goes through"""


def run_networks(*networks: Network) -> Sequence[Tensor]:
    """The output of each network: all as one fused function (`ops.mlp`) where they read the same tensor on the CPU, are
    linear layers with tanh or relu between them, and nobody looks inside (hooks, `torch.func`, `torch.compile`).
    """
    x, layers = networks[0]
    kind = type(layers[1]) if len(layers) > 1 else nn.Module
    if kind in _FUSED and all(given is x and len(own) % 2 == len(layers) % 2 for given, own in networks):
        plain = [_plain_parameters(x, own, kind) for _, own in networks]
        if None not in plain and not _is_transformed():
            return mlps(x, plain, _FUSED[kind], len(layers) % 2 == 0)  # type: ignore[arg-type]
    if len(networks) > 1:
        return [run_networks(network)[0] for network in networks]
    for layer in layers:
        x = layer(x)
    return [x]


def _is_transformed() -> bool:
    """Does something look at or change every operation?"""
    return (
        torch.is_autocast_enabled("cpu")
        or torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or nn.modules.module._has_any_global_hook()
    )


def is_watched(module: nn.Module) -> bool:
    """Has the module hooks, so that it must be called as it is?"""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


_PLAIN_TENSORS = (nn.Parameter, Tensor)
_FUSED: dict[type[nn.Module], str] = {_ACTIVATION_CLASSES[name]: name for name in FUSED_ACTIVATIONS}


def _plain_parameters(
    x: Tensor, layers: Sequence[nn.Module], activation: type[nn.Module]
) -> tuple[list[Tensor], list[Tensor]] | None:
    """Weights and biases, or None where the layers must be called one by one."""
    dtype = x.dtype
    if type(x) is not Tensor or x.dim() != 2 or x.device.type != "cpu" or dtype not in (torch.float32, torch.float64):
        return None
    weights: list[Tensor] = []
    biases: list[Tensor] = []
    for number, layer in enumerate(layers):
        if type(layer) is not (activation if number % 2 else nn.Linear) or is_watched(layer):
            return None
        if number % 2 == 0:
            weight, bias = layer._parameters["weight"], layer._parameters["bias"]
            if weight is None or bias is None or weight.dtype is not dtype:
                return None
            if type(weight) not in _PLAIN_TENSORS or type(bias) not in _PLAIN_TENSORS:
                return None
            weights.append(weight)
            biases.append(bias)
    return weights, biases


def mask_logits(logits: Tensor, mask: Tensor) -> Tensor:
    """`logits` `[N, D]` with a large negative finite number where `mask` `[N, D]` is 0 or False; no gradient
    there.

    A row that forbids everything becomes uniform.
    """
    lowest = max(-1e9, torch.finfo(logits.dtype).min / 2)
    return torch.where(mask.to(torch.bool), logits, lowest)
