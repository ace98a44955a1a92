"""Layers with their initialisation, layers with noise, and fused or batched evaluation of several layers."""

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

from lockstep.modules.action_dist import ActionDist
from lockstep.modules.model_config import ModelConfig
from lockstep.ops.mlp import ACTIVATIONS as FUSED_ACTIVATIONS
from lockstep.ops.mlp import mlps
from lockstep.ops.torch_modes import are_functorch_transforms_active, has_any_global_hook

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)

ACTIVATION_CLASSES: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "leaky_relu": nn.LeakyReLU,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "softsign": nn.Softsign,
    "mish": nn.Mish,
    "selu": nn.SELU,
    "celu": nn.CELU,
    "relu6": nn.ReLU6,
    "hardtanh": nn.Hardtanh,
    "hardswish": nn.Hardswish,
    "identity": nn.Identity,
}
"""Layers of the activations by name, each with its default arguments."""


def make_activation(name: str) -> nn.Module:
    """Return the new activation layer of a name in `ACTIVATIONS`."""
    return ACTIVATION_CLASSES[name]()


def initialise(layer: Layer, gain: float | None) -> Layer:
    """Make a layer's weights orthogonal, times `gain`, and its bias zero (Saxe et al. 2014, arXiv:1312.6120).

    Returns the layer. With `gain=None` it keeps torch's own initial values.
    """
    if gain is not None:
        nn.init.orthogonal_(layer.weight, gain)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return layer


def make_linear(size: int, num_outputs: int, gain: float | None, noisy_sigma: float | None = None) -> nn.Linear:
    """Return a new linear layer, with noise in its weights unless `noisy_sigma` is None."""
    layer = nn.Linear(size, num_outputs) if noisy_sigma is None else NoisyLinear(size, num_outputs, noisy_sigma)
    return initialise(layer, gain)


def make_head(size: int, num_outputs: int, gain: float, config: ModelConfig) -> nn.Linear:
    """Return a new last layer, `[..., size]` -> `[..., num_outputs]`. `gain` is that of orthogonal weights."""
    orthogonal_gain = gain if config.orthogonal_init else None
    return make_linear(size, num_outputs, orthogonal_gain, config.noisy_sigma)


def make_policy_head(size: int, action_dist: ActionDist, config: ModelConfig) -> tuple[nn.Linear, nn.Parameter | None]:
    """Return the last layer of a policy on features `[..., size]`, and the log standard deviations.

    The second is a parameter that does not depend on the observation. None: the layer computes the deviations, or the
    policy has none.
    """
    num_outputs = action_dist.input_size
    num_log_stds = action_dist.num_log_stds
    if config.gsde_log_std_init is not None:
        if not isinstance(action_dist.action_space, spaces.Box) or not num_log_stds:
            raise ValueError(f"state-dependent exploration (gsde) needs a Gaussian policy, not {action_dist}")
        noisy: nn.Linear = StateDependentHead(size, num_log_stds, config.gsde_log_std_init)
        return initialise(noisy, config.policy_gain if config.orthogonal_init else None), None

    if num_log_stds and config.free_log_std:
        log_std = nn.Parameter(torch.full((num_log_stds,), float(config.log_std_init)))
        return make_head(size, num_outputs - num_log_stds, config.policy_gain, config), log_std

    # The deviations are the last outputs of the layer. Their biases make them start at `log_std_init`.
    head = make_head(size, num_outputs, config.policy_gain, config)
    nn.init.constant_(head.bias[num_outputs - num_log_stds :], config.log_std_init)
    return head, None


class StateDependentHead(nn.Linear):
    """Head of a Gaussian policy whose deviations depend on the features: gSDE (Raffin et al. 2021, equations 6 to 8).

    The noise of an action is linear in the features: `features @ (sigma * matrix)`. Acting keeps each matrix of
    standard normal numbers for some steps (`noise_matrices`), so that the noise is smooth in time. Over all matrices,
    an action is normal with the variance `features^2 @ sigma^2`.

    The output `[..., 2 * A]` has the means, then the log standard deviations. The gradient of the latter goes to sigma
    only and not into the features: the policy could otherwise lower its noise by shrinking the features.
    """

    def __init__(self, size: int, num_actions: int, log_std_init: float) -> None:
        super().__init__(size, num_actions)
        self.log_std = nn.Parameter(torch.full((size, num_actions), float(log_std_init)))

    def forward(self, features: Tensor) -> Tensor:
        mean = super().forward(features)
        constant_features = features.detach()
        sigma = self.log_std.exp()
        log_std = 0.5 * torch.log(constant_features.square() @ sigma.square() + SMALLEST_VARIANCE)
        matrices = _MATRICES.get()
        if matrices is not None:
            noise_weights = matrices.to(sigma.dtype) * sigma
            mean = mean + torch.einsum("b...f,bfa->b...a", constant_features, noise_weights)
        return torch.cat([mean, log_std], dim=-1)


SMALLEST_VARIANCE = 1e-6
"""Added to variances before their logarithm, since all features may be 0."""
# A context variable rather than an argument: the layer is deep inside a network that passes on only tensors. Threads
# that act with the same network have values of their own.
_MATRICES: ContextVar[Tensor | None] = ContextVar("noise_matrices", default=None)


@contextmanager
def noise_matrices(matrices: Tensor) -> Iterator[None]:
    """Add the noise of `matrices` `[B, F, A]` to the means of every `StateDependentHead` in this context."""
    token = _MATRICES.set(matrices)
    try:
        yield
    finally:
        _MATRICES.reset(token)


class NoisyLinear(nn.Linear):
    """Linear layer with noise in its weights and biases, whose standard deviations are learned.

    Fortunato et al. 2018, https://arxiv.org/abs/1706.10295, with factorised noise (equations 9 to 11): the noise of
    weight `[j, i]` is `sigma[j, i] * f(e_j) * f(e_i)` with `f(x) = sign(x) sqrt(|x|)`, standard normal `e_j` of the
    output and `e_i` of the input. Each row of a batch has its own noise, from `weight_noise`. Thanks to the product,
    a row needs no matrix of its own: `f(e_i)` multiplies its inputs, and `f(e_j)` its outputs.

    Without `weight_noise` the layer is a plain linear layer with the mean weights.
    """

    def __init__(self, size: int, num_outputs: int, sigma: float) -> None:
        """Initialise the means as torch does, and all standard deviations to `sigma / sqrt(size)` (section 3.2)."""
        super().__init__(size, num_outputs)
        self.sigma_weight = nn.Parameter(torch.full((num_outputs, size), sigma / math.sqrt(size)))
        self.sigma_bias = nn.Parameter(torch.full((num_outputs,), sigma / math.sqrt(size)))
        self.noise_start = 0
        """Index of this layer's first number among the random numbers of the whole network."""

    @property
    def noise_size(self) -> int:
        """Number of random numbers that a row needs."""
        return self.in_features + self.out_features

    def forward(self, x: Tensor) -> Tensor:
        mean = super().forward(x)
        noise = _WEIGHT_NOISE.get()
        if noise is None:
            return mean
        noise = noise[..., self.noise_start : self.noise_start + self.noise_size].to(x.device, x.dtype)
        scaled = noise.sign() * noise.abs().sqrt()
        # Rows of noise are rows of the batch; `x` may have more dimensions between (quantiles).
        scaled = scaled.reshape(*scaled.shape[:-1], *[1] * (x.dim() - scaled.dim()), -1)
        input_noise, output_noise = scaled.split([self.in_features, self.out_features], -1)
        return mean + output_noise * F.linear(x * input_noise, self.sigma_weight, self.sigma_bias)


_WEIGHT_NOISE: ContextVar[Tensor | None] = ContextVar("weight_noise", default=None)  # see `_MATRICES`


@contextmanager
def weight_noise(noise: Tensor) -> Iterator[None]:
    """Add noise from standard normal numbers `[N, D]` to the weights of every `NoisyLinear` in this context."""
    token = _WEIGHT_NOISE.set(noise)
    try:
        yield
    finally:
        _WEIGHT_NOISE.reset(token)


def allocate_noise(network: nn.Module) -> int:
    """Assign a range of a row's random numbers to each `NoisyLinear`, and return their total number."""
    total = 0
    for layer in network.modules():
        if isinstance(layer, NoisyLinear):
            layer.noise_start = total
            total += layer.noise_size
    return total


def make_mlp(
    input_size: int,
    widths: Sequence[int],
    activation: str,
    gain: float | None,
    noisy_sigma: float | None = None,
    layer_norm: bool = False,
) -> nn.Sequential:
    """Return linear layers, each followed by the activation: `[..., input_size]` -> `[..., widths[-1]]`.

    With `layer_norm`, a layer normalisation is between the two.
    """
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise((input_size, *widths)):
        norm = [nn.LayerNorm(fan_out)] if layer_norm else []
        layers += [make_linear(fan_in, fan_out, gain, noisy_sigma), *norm, make_activation(activation)]
    return nn.Sequential(*layers)


def mask_logits(logits: Tensor, mask: Tensor) -> Tensor:
    """Return `logits` `[N, D]` with a very low number where `mask` `[N, D]` is 0 or False. No gradient flows there.

    The number is finite, so that a row that forbids every action becomes uniform and not NaN.
    """
    lowest = max(-1e9, torch.finfo(logits.dtype).min / 2)
    return torch.where(mask.to(torch.bool), logits, lowest)


# -- several layers as one function ---

hooks_of = operator.attrgetter("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Returns the four dicts of a module's hooks, for which torch has no public name."""
parameters_of = operator.attrgetter("_parameters")
"""Returns the dict of a layer's own parameters. `layer.weight` would search several dicts in Python each time."""


def is_watched(module: nn.Module) -> bool:
    """Return whether a module has hooks, so that it must be called itself rather than its parts."""
    return any(hooks_of(module))


Network = tuple[Tensor, Sequence[nn.Module]]
"""Input of a network, and its layers."""


def run_networks(*networks: Network) -> Sequence[Tensor]:
    """Return the output of each network.

    Networks run as one fused function (`ops.mlp`) if they read the same tensor on the CPU, consist of linear layers
    with tanh or relu between them, and nothing observes or transforms their operations (hooks, `torch.func`,
    `torch.compile`). For small networks that saves most of the time, which torch spends between operations.
    """
    x, layers = networks[0]
    activation = type(layers[1]) if len(layers) > 1 else nn.Module
    # Layers alternate between linear and activation, so equal parity means that all networks end in the same way.
    if activation in _FUSED and all(each is x and len(stack) % 2 == len(layers) % 2 for each, stack in networks):
        plain = [_plain_parameters(x, stack, activation) for _, stack in networks]
        if None not in plain and not _is_transformed():
            ends_with_activation = len(layers) % 2 == 0
            return mlps(x, plain, _FUSED[activation], ends_with_activation)  # type: ignore[arg-type]
    if len(networks) > 1:
        return [run_networks(network)[0] for network in networks]
    for layer in layers:
        x = layer(x)
    return [x]


def _is_transformed() -> bool:
    """Return whether something observes or replaces every operation of torch: a fused function would bypass it."""
    return (
        torch.is_autocast_enabled("cpu")
        or torch.compiler.is_compiling()
        or are_functorch_transforms_active()
        or has_any_global_hook()
    )


_PLAIN_TENSORS = (nn.Parameter, Tensor)
_FUSED: dict[type[nn.Module], str] = {ACTIVATION_CLASSES[name]: name for name in FUSED_ACTIVATIONS}
"""Names of the activations that the fused function knows, by class."""


def _plain_parameters(
    x: Tensor, layers: Sequence[nn.Module], activation: type[nn.Module]
) -> tuple[list[Tensor], list[Tensor]] | None:
    """Return the weights and biases of linear layers with activations between; None for layers of any other kind.

    Exact types are compared, because a subclass of a layer or tensor may compute something else.
    """
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
"""Number of rows from which networks run one by one, by kind of device. The gradient of a batched product sums over all
rows, and for many rows takes several times as long as the gradients of single products."""


class BatchedMLP(nn.Module):
    """`num_networks` independent multi-layer perceptrons that are evaluated together (twin critics, ensembles).

    Each layer is one `baddbmm` instead of a Python loop over networks, and equals the loop up to rounding. With many
    rows on a CUDA device it is the loop. The activation follows the hidden layers only.

    Args:
        num_networks: Number of networks K.
        input_size: Number of inputs of each network.
        widths: Widths of the hidden layers.
        output_size: Number of outputs of each network.
        activation: Name of the activation.
        hidden_gain, output_gain: Gains of orthogonal weights. None: torch's own initialisation.
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
        super().__init__()
        self.num_networks = num_networks
        sizes = (input_size, *widths, output_size)
        self.sizes = sizes
        self.activation = make_activation(activation)
        self.weights = nn.ParameterList(torch.empty(num_networks, *pair) for pair in itertools.pairwise(sizes))
        self.biases = nn.ParameterList(torch.zeros(num_networks, 1, size) for size in sizes[1:])
        # Each network is initialised as a plain layer, so that it equals a network made alone with the same numbers.
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
            frozen: Send the gradient to the inputs only, not to the weights.
            first_only: Run the first network alone, from `[N, input_size]` to `[1, N, output_size]`.
        """
        leading = tuple(inputs.shape[:-2])
        fits = inputs.dim() >= 2 and inputs.shape[-1] == self.sizes[0]
        weights = [*self.weights]
        biases = [*self.biases]
        if first_only:
            weights = [weight[:1] for weight in weights]
            biases = [bias[:1] for bias in biases]
        if not fits or leading not in ((), () if first_only else (self.num_networks,)):
            raise ValueError(
                f"BatchedMLP takes [N, {self.sizes[0]}] or [{self.num_networks}, N, {self.sizes[0]}], got "
                f"{list(inputs.shape)}"
            )

        if inputs.dim() == 2:
            inputs = inputs.expand(len(weights[0]), -1, -1)
        if frozen:
            weights = [weight.detach() for weight in weights]
            biases = [bias.detach() for bias in biases]
        if inputs.shape[1] < MANY_ROWS.get(inputs.device.type, math.inf):
            return self._layers(inputs, weights, biases)
        networks = zip(inputs, zip(*map(torch.unbind, weights)), zip(*map(torch.unbind, biases)))
        return torch.stack([self._layers(*network) for network in networks])

    def _layers(self, inputs: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
        """Return the outputs of all networks (inputs with 3 dimensions), or of one (inputs with 2 dimensions)."""
        product = torch.addmm if inputs.dim() == 2 else torch.baddbmm
        for weight, bias in zip(weights[:-1], biases[:-1]):
            inputs = self.activation(product(bias, inputs, weight))
        if self.sizes[-1] == 1:  # a matrix product with one column takes several times as long as a sum
            return (inputs * weights[-1].transpose(-2, -1)).sum(-1, keepdim=True) + biases[-1]
        return product(biases[-1], inputs, weights[-1])

    def network(self, index: int) -> nn.Sequential:
        """Return a copy of network number `index` as plain layers."""
        layers: list[nn.Module] = []
        for weight, bias in zip(self.weights, self.biases):
            linear = nn.Linear(weight.shape[1], weight.shape[2], device=weight.device, dtype=weight.dtype)
            with torch.no_grad():
                linear.weight.copy_(weight[index].T)
                linear.bias.copy_(bias[index, 0])
            layers += [linear, self.activation]
        return nn.Sequential(*layers[:-1])
