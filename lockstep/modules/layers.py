"""Layers with their initialisation, and ways to run several of them as one function."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook as has_any_global_hook

from lockstep.modules.action_dist import ActionDist
from lockstep.modules.model_config import ModelConfig
from lockstep.ops.mlp import ACTIVATIONS as FUSED_ACTIVATIONS
from lockstep.ops.mlp import mlps
from lockstep.ops.torch_modes import are_functorch_transforms_active

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)

_ACTIVATION_CLASSES: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
}


def make_activation(name: str) -> nn.Module:
    """Make an activation layer: tanh, relu, gelu, silu or elu."""
    return _ACTIVATION_CLASSES[name]()


def initialise(layer: Layer, gain: float | None) -> Layer:
    """Make the weights orthogonal, times `gain`, and the bias zero (Saxe et al. 2014, arXiv:1312.6120).

    None leaves the layer as it is.
    """
    if gain is not None:
        nn.init.orthogonal_(layer.weight, gain)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return layer


def make_linear(size: int, num_outputs: int, gain: float | None, noisy_sigma: float | None = None) -> nn.Linear:
    """Make a linear layer, with noise in its weights where `noisy_sigma` says how much."""
    layer = nn.Linear(size, num_outputs) if noisy_sigma is None else NoisyLinear(size, num_outputs, noisy_sigma)
    return initialise(layer, gain)


def make_head(size: int, num_outputs: int, gain: float, config: ModelConfig) -> nn.Linear:
    """Make a last layer, `[..., size]` -> `[..., num_outputs]`; `gain` counts where the weights are orthogonal."""
    return make_linear(size, num_outputs, gain if config.orthogonal_init else None, config.noisy_sigma)


def policy_head(size: int, action_dist: ActionDist, config: ModelConfig) -> tuple[nn.Linear, nn.Parameter | None]:
    """Make the last layer of a policy on features `[..., size]`, and the log-deviations of a Gaussian policy.

    The log-deviations do not depend on the observation; None where there are none, or where the layer gives them.
    """
    num_outputs, num_log_stds = action_dist.input_size, action_dist.num_log_stds
    if config.gsde_log_std_init is not None:
        if not isinstance(action_dist.action_space, spaces.Box) or not num_log_stds:
            raise ValueError(f"state-dependent exploration (gsde) needs a Gaussian policy, not {action_dist}")
        noisy: nn.Linear = StateDependentHead(size, num_log_stds, config.gsde_log_std_init)
        return initialise(noisy, config.policy_gain if config.orthogonal_init else None), None
    if num_log_stds and config.free_log_std:
        log_std = nn.Parameter(torch.full((num_log_stds,), float(config.log_std_init)))
        return make_head(size, num_outputs - num_log_stds, config.policy_gain, config), log_std
    head = make_head(size, num_outputs, config.policy_gain, config)
    nn.init.constant_(head.bias[num_outputs - num_log_stds :], config.log_std_init)
    return head, None


class StateDependentHead(nn.Linear):
    """Gives a Gaussian policy whose deviations depend on the features: gSDE (Raffin et al. 2021, equations 6 to 8).

    The noise of an action is linear in the features, `features @ (sigma * matrix)`, with a matrix of standard normal
    numbers that acting keeps for some steps (`noise_matrices`). Over all matrices an action is normal with the
    variance `features^2 @ sigma^2`. Returns `[..., 2 * A]`: the means, then the logarithms of the deviations. Their
    gradient goes to sigma only, not into the features.
    """

    def __init__(self, size: int, num_actions: int, log_std_init: float) -> None:
        super().__init__(size, num_actions)
        self.log_std = nn.Parameter(torch.full((size, num_actions), float(log_std_init)))

    def forward(self, features: Tensor) -> Tensor:
        mean, seen, sigma = super().forward(features), features.detach(), self.log_std.exp()
        log_std = 0.5 * torch.log(seen.square() @ sigma.square() + SMALLEST_VARIANCE)
        matrices = _MATRICES.get()
        if matrices is not None:
            mean = mean + torch.einsum("b...f,bfa->b...a", seen, matrices.to(sigma.dtype) * sigma)
        return torch.cat([mean, log_std], dim=-1)


SMALLEST_VARIANCE = 1e-6
_MATRICES: ContextVar[Tensor | None] = ContextVar("noise_matrices", default=None)  # of each thread


@contextmanager
def noise_matrices(matrices: Tensor) -> Iterator[None]:
    """Make a `StateDependentHead` of this thread move its means by the noise of `matrices` `[B, F, A]`."""
    token = _MATRICES.set(matrices)
    try:
        yield
    finally:
        _MATRICES.reset(token)


class NoisyLinear(nn.Linear):
    """Computes a linear layer whose weights and biases have noise, of a deviation that is learned.

    Fortunato et al. 2018, https://arxiv.org/abs/1706.10295, with factorised noise (equations 9 to 11). Each row of an
    input has noise of its own, taken from `weight_noise`; without that the layer is an ordinary one, by the means. As
    the noise of a weight is a product of one number for its input and one for its output, a row costs no matrix of its
    own: both meet the row before and after the product with sigma.
    """

    def __init__(self, size: int, num_outputs: int, sigma: float) -> None:
        """Make the means as torch does, and all deviations `sigma / sqrt(size)` (section 3.2)."""
        super().__init__(size, num_outputs)
        self.sigma_weight = nn.Parameter(torch.full((num_outputs, size), sigma / math.sqrt(size)))
        self.sigma_bias = nn.Parameter(torch.full((num_outputs,), sigma / math.sqrt(size)))
        self.first = 0
        """where its numbers begin in those of the whole network"""

    @property
    def noise_size(self) -> int:
        """The random numbers that a row needs."""
        return self.in_features + self.out_features

    def forward(self, x: Tensor) -> Tensor:
        mean, drawn = super().forward(x), _WEIGHT_NOISE.get()
        if drawn is None:
            return mean
        drawn = drawn[..., self.first : self.first + self.noise_size].to(x.device, x.dtype)
        scaled = drawn.sign() * drawn.abs().sqrt()
        scaled = scaled.reshape(*scaled.shape[:-1], *[1] * (x.dim() - scaled.dim()), -1)
        of_inputs, of_outputs = scaled.split([self.in_features, self.out_features], -1)
        return mean + of_outputs * F.linear(x * of_inputs, self.sigma_weight, self.sigma_bias)


_WEIGHT_NOISE: ContextVar[Tensor | None] = ContextVar("weight_noise", default=None)  # of each thread


@contextmanager
def weight_noise(noise: Tensor) -> Iterator[None]:
    """Let each `NoisyLinear` of this thread take its noise from standard normal numbers `[N, D]`."""
    token = _WEIGHT_NOISE.set(noise)
    try:
        yield
    finally:
        _WEIGHT_NOISE.reset(token)


def place_noise(network: nn.Module) -> int:
    """Give each `NoisyLinear` its place in the random numbers of a row, and return how many these are in all."""
    total = 0
    for layer in network.modules():
        if isinstance(layer, NoisyLinear):
            layer.first, total = total, total + layer.noise_size
    return total


def make_mlp(
    input_size: int,
    widths: Sequence[int],
    activation: str,
    gain: float | None,
    noisy_sigma: float | None = None,
    layer_norm: bool = False,
) -> nn.Sequential:
    """Make linear layers, each followed by the activation: `[..., input_size]` -> `[..., widths[-1]]`.

    `layer_norm`: with a layer normalisation between the two.
    """
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise((input_size, *widths)):
        norm = [nn.LayerNorm(fan_out)] if layer_norm else []
        layers += [make_linear(fan_in, fan_out, gain, noisy_sigma), *norm, make_activation(activation)]
    return nn.Sequential(*layers)


def mask_logits(logits: Tensor, mask: Tensor) -> Tensor:
    """Replace `logits` `[N, D]` by a very low finite number where `mask` `[N, D]` is 0 or False; no gradient there.

    A row that forbids everything becomes uniform.
    """
    lowest = max(-1e9, torch.finfo(logits.dtype).min / 2)
    return torch.where(mask.to(torch.bool), logits, lowest)


# -- several layers as one function ---

hooks_of = operator.attrgetter("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""The hooks of a module, which torch has no public name for."""
parameters_of = operator.attrgetter("_parameters")
"""The parameters of one layer by name; `layer.weight` searches for them each time."""


def is_watched(module: nn.Module) -> bool:
    """Return whether the module has hooks, so that it must be called as it is."""
    return any(hooks_of(module))


Network = tuple[Tensor, Sequence[nn.Module]]
"""An input, and the layers that it goes through."""


def run_networks(*networks: Network) -> Sequence[Tensor]:
    """Return the output of each network.

    All run as one fused function (`ops.mlp`) where they read the same tensor on the CPU, are linear layers with tanh or
    relu between them, and nobody looks inside (hooks, `torch.func`, `torch.compile`).
    """
    x, layers = networks[0]
    kind = type(layers[1]) if len(layers) > 1 else nn.Module
    if kind in _FUSED and all(each is x and len(stack) % 2 == len(layers) % 2 for each, stack in networks):
        plain = [_plain_parameters(x, stack, kind) for _, stack in networks]
        if None not in plain and not _is_transformed():
            return mlps(x, plain, _FUSED[kind], len(layers) % 2 == 0)  # type: ignore[arg-type]
    if len(networks) > 1:
        return [run_networks(network)[0] for network in networks]
    for layer in layers:
        x = layer(x)
    return [x]


def _is_transformed() -> bool:
    """Return whether something looks at or changes every operation."""
    return (
        torch.is_autocast_enabled("cpu")
        or torch.compiler.is_compiling()
        or are_functorch_transforms_active()
        or has_any_global_hook()
    )


_PLAIN_TENSORS = (nn.Parameter, Tensor)
_FUSED: dict[type[nn.Module], str] = {_ACTIVATION_CLASSES[name]: name for name in FUSED_ACTIVATIONS}


def _plain_parameters(
    x: Tensor, layers: Sequence[nn.Module], activation: type[nn.Module]
) -> tuple[list[Tensor], list[Tensor]] | None:
    """Return weights and biases, or None where the layers must be called one by one."""
    dtype = x.dtype
    if type(x) is not Tensor or x.dim() != 2 or x.device.type != "cpu" or dtype not in (torch.float32, torch.float64):
        return None
    weights: list[Tensor] = []
    biases: list[Tensor] = []
    for number, layer in enumerate(layers):
        if type(layer) is not (activation if number % 2 else nn.Linear) or is_watched(layer):
            return None
        if number % 2 == 0:
            parameters = parameters_of(layer)
            weight, bias = parameters["weight"], parameters["bias"]
            if weight is None or bias is None or weight.dtype is not dtype:
                return None
            if type(weight) not in _PLAIN_TENSORS or type(bias) not in _PLAIN_TENSORS:
                return None
            weights.append(weight)
            biases.append(bias)
    return weights, biases


MANY_ROWS = {"cuda": 2048}
"""rows from which networks run one by one, by kind of device: there the gradient of a batched product, which sums up so
many rows, takes several times as long as those of single ones"""


class BatchedMLP(nn.Module):
    """Evaluates `num_networks` independent multi-layer perceptrons together (twin critics, ensembles).

    Each layer is one `baddbmm` instead of a Python loop over networks, equal to the loop up to rounding (with many rows
    on a CUDA device it is the loop). Hidden layers are followed by the activation, the last one is not.
    """

    def __init__(
        self,
        num_networks: int,
        input_size: int,
        widths: Sequence[int],
        output_size: int,
        *,
        activation: str = "relu",
        hidden_gain: float | None = 2.0**0.5,
        output_gain: float | None = 1.0,
    ) -> None:
        """Make the weights of each network orthogonal with these gains, and the biases zero; None as torch does."""
        super().__init__()
        self.num_networks = num_networks
        self.sizes = sizes = (input_size, *widths, output_size)
        self.activation = make_activation(activation)
        self.weights = nn.ParameterList(torch.empty(num_networks, *pair) for pair in itertools.pairwise(sizes))
        self.biases = nn.ParameterList(torch.zeros(num_networks, 1, size) for size in sizes[1:])
        for i, weight in enumerate(self.weights):
            gain = output_gain if i == len(sizes) - 2 else hidden_gain
            for k in range(num_networks):
                linear = initialise(nn.Linear(sizes[i], sizes[i + 1]), gain)
                weight.data[k].copy_(linear.weight.data.T)
                self.biases[i].data[k, 0].copy_(linear.bias.data)

    def forward(self, inputs: Tensor, *, frozen: bool = False, first_only: bool = False) -> Tensor:
        """Return outputs `[num_networks, N, output_size]`.

        Args:
            inputs: `[N, input_size]`, the same for all networks, or `[num_networks, N, input_size]`.
            frozen: the gradient goes to the inputs only, none to the weights.
            first_only: run the first network alone, from `[N, input_size]` to `[1, N, output_size]`.
        """
        leading, fits = tuple(inputs.shape[:-2]), inputs.dim() >= 2 and inputs.shape[-1] == self.sizes[0]
        weights, biases = [*self.weights], [*self.biases]
        if first_only:
            weights, biases = [weight[:1] for weight in weights], [bias[:1] for bias in biases]
        if not fits or leading not in ((), () if first_only else (self.num_networks,)):
            raise ValueError(
                f"BatchedMLP takes [N, {self.sizes[0]}] or [{self.num_networks}, N, {self.sizes[0]}], got "
                f"{list(inputs.shape)}"
            )
        if inputs.dim() == 2:
            inputs = inputs.expand(len(weights[0]), -1, -1)
        if frozen:
            weights, biases = [each.detach() for each in weights], [each.detach() for each in biases]
        if inputs.shape[1] < MANY_ROWS.get(inputs.device.type, math.inf):
            return self._layers(inputs, weights, biases)
        parts = zip(inputs, zip(*map(torch.unbind, weights)), zip(*map(torch.unbind, biases)))
        return torch.stack([self._layers(*part) for part in parts])

    def _layers(self, inputs: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
        """Run all networks (3 dimensions), or one of them (2 dimensions)."""
        product = torch.addmm if inputs.dim() == 2 else torch.baddbmm
        for weight, bias in zip(weights[:-1], biases[:-1]):
            inputs = self.activation(product(bias, inputs, weight))
        if self.sizes[-1] == 1:  # a product with one column takes several times as long as a sum
            return (inputs * weights[-1].transpose(-2, -1)).sum(-1, keepdim=True) + biases[-1]
        return product(biases[-1], inputs, weights[-1])

    def network(self, index: int) -> nn.Sequential:
        """Return a copy of one network as plain layers."""
        layers: list[nn.Module] = []
        for weight, bias in zip(self.weights, self.biases):
            linear = nn.Linear(weight.shape[1], weight.shape[2], device=weight.device, dtype=weight.dtype)
            with torch.no_grad():
                linear.weight.copy_(weight[index].T)
                linear.bias.copy_(bias[index, 0])
            layers += [linear, self.activation]
        return nn.Sequential(*layers[:-1])
