"""Several networks of one shape as one batched matrix product (twin critics, ensembles)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from lockstep.modules.layers import initialise, is_watched, make_activation
from lockstep.ops.batched_mlp import batched_mlp


class BatchedMLP(nn.Module):
    """`num_networks` independent multi-layer perceptrons, evaluated together.

    Each layer is one `baddbmm` instead of a Python loop over networks, equal to that loop up to rounding.
    Hidden layers are followed by the activation, the last one is not.
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
        """Weights are orthogonal in each network with the given gains, biases zero; where a gain is None, both are as
        torch makes a linear layer.

        Raises:
            ValueError: a number of networks or a width below 1.
        """
        super().__init__()
        sizes = (input_size, *widths, output_size)
        if num_networks < 1 or min(sizes) < 1:
            raise ValueError(f"BatchedMLP needs sizes of at least 1, got {num_networks} networks of {sizes}")
        self.num_networks = num_networks
        self.sizes = sizes
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
        """`[N, input_size]` (the same for all networks) or `[num_networks, N, input_size]` ->
        `[num_networks, N, output_size]`. `frozen`: the gradient goes to the inputs only, none to the weights.
        `first_only`: the first network alone, from `[N, input_size]` to `[1, N, output_size]`.
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
            if self._is_plain(inputs):
                half = torch.is_autocast_enabled("cpu")
                return batched_mlp(inputs, weights, biases, frozen=frozen, half=half).unsqueeze(-1)
            inputs = inputs.expand(len(weights[0]), -1, -1)
        last = len(self.sizes) - 2
        for i, (weight, bias) in enumerate(zip(weights, biases)):
            if frozen:
                weight, bias = weight.detach(), bias.detach()
            if i < last:
                inputs = self.activation(torch.baddbmm(bias, inputs, weight))
        if self.sizes[-1] == 1:  # a product with one column takes several times as long as a sum
            return (inputs * weight.transpose(1, 2)).sum(-1, keepdim=True) + bias
        return torch.baddbmm(bias, inputs, weight)

    def _is_plain(self, inputs: Tensor) -> bool:
        """May all run as one function (`ops.batched_mlp`), without anybody who looks at single operations?"""
        return (
            self.sizes[-1] == 1
            and len(self.sizes) > 2
            and type(self.activation) is nn.ReLU
            and inputs.device.type == "cpu"
            and (
                inputs.dtype == torch.float32
                or (inputs.dtype == torch.float64 and not torch.is_autocast_enabled("cpu"))
            )
            and inputs.dtype == self.weights[0].dtype
            and not is_watched(self.activation)
            and not torch.compiler.is_compiling()
            and not is_in_torch_dispatch_mode()  # what traces can fuse better
            and not torch._C._are_functorch_transforms_active()
        )

    def network(self, index: int) -> nn.Sequential:
        """A copy of one network as plain layers."""
        layers: list[nn.Module] = []
        for weight, bias in zip(self.weights, self.biases):
            linear = nn.Linear(weight.shape[1], weight.shape[2], device=weight.device, dtype=weight.dtype)
            with torch.no_grad():
                linear.weight.copy_(weight[index].T)
                linear.bias.copy_(bias[index, 0])
            layers += [linear, self.activation]
        return nn.Sequential(*layers[:-1])

    def set_network(self, index: int, layers: nn.Sequential) -> None:
        """Copy the weights of plain layers into one network; `ValueError` if their shapes are not its own."""
        linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
        shapes = tuple((layer.in_features, layer.out_features) for layer in linears)
        if shapes != tuple(itertools.pairwise(self.sizes)):
            raise ValueError(f"layers of sizes {shapes} do not fit networks of sizes {self.sizes}")
        with torch.no_grad():
            for weight, bias, linear in zip(self.weights, self.biases, linears):
                weight[index].copy_(linear.weight.T)
                bias[index, 0].copy_(linear.bias)
