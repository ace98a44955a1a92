"""Critics whose features are normalised over the batch, and the default module of CrossQ, which has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from lockstep.modules.defaults.action_critics import ActionCritics, DefaultSACModule
from lockstep.modules.layers import BatchedMLP

MeanOfRows = Callable[[Tensor], Tensor]
"""from `[K, N, F]` to the means `[K, 1, F]` over all rows that count, differentiable"""
RATE = 0.01
"""how far running statistics go towards those of a batch"""
EPSILON = 1e-3
WARM_UP = 100_000
"""batches until the running statistics are trusted"""
LARGEST_RATIO, LARGEST_SHIFT = 3.0, 5.0


class BatchRenorm(nn.Module):
    """Normalises the features of several networks over the rows of a batch (Ioffe 2017, arXiv:1702.03275).

    That is batch normalisation, which the running statistics correct after the first `WARM_UP` batches, so that a batch
    is treated nearly as it will be in evaluation (algorithm 1). The numbers are those of CrossQ's published code.
    """

    def __init__(self, num_networks: int, size: int) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.full((num_networks, 1, size), value)) for value in (1.0, 0.0))
        self.mean: Tensor
        self.variance: Tensor
        self.num_batches: Tensor
        self.register_buffer("mean", torch.zeros(num_networks, 1, size))
        self.register_buffer("variance", torch.ones(num_networks, 1, size))
        self.register_buffer("num_batches", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: Tensor, *, mean_of_rows: MeanOfRows | None = None, frozen: bool = False) -> Tensor:
        """Return `inputs` `[K, N, F]`, normalised.

        Args:
            mean_of_rows: with it the statistics are those of the batch, and the running ones follow them; None: by the
                running ones.
            frozen: the gradient goes to the inputs only.
        """
        weight, bias = (self.weight.detach(), self.bias.detach()) if frozen else (self.weight, self.bias)
        inputs = inputs.to(weight.dtype)  # statistics in full precision
        if mean_of_rows is None:
            return (inputs - self.mean) * ((self.variance + EPSILON).rsqrt() * weight) + bias
        mean = mean_of_rows(inputs)
        centred = inputs - mean
        variance = mean_of_rows(centred.square())
        deviation = (variance + EPSILON).sqrt()
        ratio, shift = self.follow(mean.detach(), variance.detach(), deviation.detach())
        return (centred * (ratio / deviation) + shift) * weight + bias

    @torch.no_grad()
    def follow(self, mean: Tensor, variance: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
        """Let the running statistics follow those of a batch; return what the former correct, `r` and `d`."""
        running = (self.variance + EPSILON).sqrt()
        is_warm = self.num_batches >= WARM_UP
        ratio = torch.where(is_warm, (deviation / running).clamp(1.0 / LARGEST_RATIO, LARGEST_RATIO), 1.0)
        shift = torch.where(is_warm, ((mean - self.mean) / running).clamp(-LARGEST_SHIFT, LARGEST_SHIFT), 0.0)
        is_finite = (mean.isfinite() & variance.isfinite()).all()  # a gradient step without such is left out, too
        self.mean.add_(torch.where(is_finite, RATE * (mean - self.mean), 0.0))
        self.variance.add_(torch.where(is_finite, RATE * (variance - self.variance), 0.0))
        self.num_batches.add_(1)
        return ratio, shift


class NormalizedMLP(BatchedMLP):
    """A `BatchedMLP` with `BatchRenorm` before each layer."""

    def __init__(self, num_networks: int, *sizes: Any, **options: Any) -> None:
        super().__init__(num_networks, *sizes, **options)
        self.norms = nn.ModuleList(BatchRenorm(num_networks, size) for size in self.sizes[:-1])

    def forward(
        self,
        inputs: Tensor,
        *,
        frozen: bool = False,
        first_only: bool = False,
        mean_of_rows: MeanOfRows | None = None,
    ) -> Tensor:
        """Return outputs `[num_networks, N, output_size]` as `BatchedMLP` does; `mean_of_rows`: see `BatchRenorm`."""
        if inputs.dim() == 2:
            inputs = inputs.expand(self.num_networks, -1, -1)
        last = len(self.norms) - 1
        for i, norm in enumerate(self.norms):
            weight, bias = self.weights[i], self.biases[i]
            if frozen:
                weight, bias = weight.detach(), bias.detach()
            inputs = norm(inputs, mean_of_rows=mean_of_rows, frozen=frozen)
            inputs = torch.baddbmm(bias, inputs, weight)
            if i < last:
                inputs = self.activation(inputs)
        return inputs[:1] if first_only else inputs

    def network(self, index: int) -> nn.Sequential:
        raise TypeError("a network with batch statistics is more than its plain layers; call all of them")


class NormalizedCritics(ActionCritics):
    """Critics of a Box with batch renormalisation."""

    mlp_class = NormalizedMLP

    def joint_values(
        self, now: tuple[Any, Tensor], after: tuple[Any, Tensor], mean_of_rows: MeanOfRows
    ) -> tuple[Tensor, Tensor]:
        """Return values `[K, N]` of observations and actions `now`, and of those `after`, as rows of one batch."""
        inputs = torch.cat([self.inputs_of(obs, actions) for obs, actions in (now, after)])
        values = self.mlp(inputs, mean_of_rows=mean_of_rows).squeeze(-1)
        first, second = values.chunk(2, -1)
        return first, second


class DefaultCrossQModule(DefaultSACModule):
    """Holds CrossQ's policy, that of SAC, and `NormalizedCritics`. `ValueError` for other actions than a Box."""

    critics_class = NormalizedCritics

    def setup(self) -> None:
        if not isinstance(self.action_space, spaces.Box):
            raise ValueError(f"CrossQ needs a Box action space, not {self.action_space}")
        super().setup()
