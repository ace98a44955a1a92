"""Which networks are plain enough to act without torch: linear layers with tanh or relu between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from lockstep.modules.encoders import Encoder, FlatFeatures
from lockstep.modules.places import ParameterPlaces
from lockstep.modules.rl_module import RLModule
from lockstep.ops.distributions import Categorical, DiagGaussian, Distribution

LARGEST_FOR_NUMPY = 1 << 20
"""multiply-adds for one row; beyond, torch's overhead is nothing"""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


_ZERO = np.zeros((), np.float32)
"""an array: a number would be made one in each call"""


def tanh_(x: np.ndarray) -> None:
    """In place."""
    np.tanh(x, x)


def relu_(x: np.ndarray) -> None:
    """In place."""
    np.maximum(x, _ZERO, out=x)


ACTIVATIONS: dict[type[nn.Module], Callable[[np.ndarray], None]] = {nn.Tanh: tanh_, nn.ReLU: relu_}


def is_plain(
    module: Any,
    base: type[RLModule],
    methods: Sequence[str],
    more_parts: Sequence[nn.Module] = (),
    dists: Sequence[type[Distribution]] = (Categorical, DiagGaussian),
) -> bool:
    """Whether the policy of `module` is exactly that of `base`, and its layers are linear with activations between.

    That is: none of `methods` overridden, no action mask, a flat Box observed, a head for one of `dists`, no hook on a
    layer (or on `more_parts`), in float32 or float64 on the host, and small.
    """
    if not isinstance(module, base) or any(getattr(type(module), name) is not getattr(base, name) for name in methods):
        return False
    if any(name in vars(module) for name in methods) or getattr(module, "is_masked", False):
        return False
    if module.action_dist_cls.dist_class not in dists:
        return False
    encoder = module.encoder
    if (
        type(encoder) is not Encoder
        or type(encoder.features) is not FlatFeatures
        or type(encoder.mlp) is not nn.Sequential
    ):
        return False
    if not isinstance(module.observation_space, spaces.Box) or not module.observation_space.shape:
        return False
    layers = [*encoder.mlp, module.policy_head]
    linears = [layer for layer in layers if type(layer) is nn.Linear and layer.bias is not None]
    activations = {type(layer) for layer in layers if type(layer) is not nn.Linear}
    if len(linears) * 2 - 1 != len(layers) or len(activations) > 1 or not activations <= ACTIVATIONS.keys():
        return False
    parts = (encoder, encoder.features, encoder.mlp, *layers, *more_parts)
    if any(getattr(part, hooks) for part in parts for hooks in _HOOKS):
        return False
    weights = [p for part in (*linears, *more_parts) for p in part.parameters() if p.dim() > 1]
    on_host = all(p.device.type == "cpu" and p.dtype in (torch.float32, torch.float64) for p in module.parameters())
    return on_host and sum(weight.numel() for weight in weights) <= LARGEST_FOR_NUMPY


def places_of_policy(module: nn.Module) -> ParameterPlaces:
    """Where the parameters that a plain module acts with are."""
    parts = ("encoder.", "recurrence.", "policy_head.", "log_std")
    return ParameterPlaces(module, [name for name, _ in module.named_parameters() if name.startswith(parts)])
