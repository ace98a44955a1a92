"""Critics with batch renormalisation, and the default network of CrossQ, which contains such critics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from lockstep.modules.defaults.action_critics import ActionCritics, DefaultSACModule
from lockstep.modules.layers import BatchedMLP

MeanOfRows = Callable[[Tensor], Tensor]
"""Differentiable function from `[K, N, F]` to the means `[K, 1, F]` over all rows that count, those of other learners
included."""
RATE = 0.01
"""Step size of the running statistics towards those of a batch."""
EPSILON = 1e-3
"""Added to variances before their root."""
WARM_UP = 100_000
"""Number of batches after which the running statistics correct the batch statistics."""
LARGEST_RATIO = 3.0
"""Bound of the correction `r`, which is clipped to [1 / LARGEST_RATIO, LARGEST_RATIO]."""
LARGEST_SHIFT = 5.0
"""Bound of the correction `d`, which is clipped to [-LARGEST_SHIFT, LARGEST_SHIFT]."""


class BatchRenorm(nn.Module):
    """Batch renormalisation of the features of several networks (Ioffe 2017, arXiv:1702.03275, algorithm 1).

    In training, with the batch's mean m and deviation s and the running ones M and S:

        x' = ((x - m) / s * r + d) * weight + bias,    r = clip(s / S),    d = clip((m - M) / S)

    r and d have no gradient. They are 1 and 0 for the first `WARM_UP` batches, which is plain batch normalisation.
    Afterwards they make a batch nearly equal to evaluation, which uses the running statistics. The constants are those
    of CrossQ's published code.

    Args:
        num_networks: Number of networks K.
        size: Number of features F.
    """

    def __init__(self, num_networks: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((num_networks, 1, size), 1.0))
        self.bias = nn.Parameter(torch.full((num_networks, 1, size), 0.0))
        self.mean: Tensor
        self.variance: Tensor
        self.num_batches: Tensor
        self.register_buffer("mean", torch.zeros(num_networks, 1, size))
        self.register_buffer("variance", torch.ones(num_networks, 1, size))
        self.register_buffer("num_batches", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: Tensor, *, mean_of_rows: MeanOfRows | None = None, frozen: bool = False) -> Tensor:
        """Return normalised `inputs` `[K, N, F]`.

        Args:
            inputs: Features `[K, N, F]`.
            mean_of_rows: Function that computes the batch statistics, for training. None: normalise by the running
                statistics.
            frozen: Send the gradient to the inputs only.
        """
        weight = self.weight.detach() if frozen else self.weight
        bias = self.bias.detach() if frozen else self.bias
        inputs = inputs.to(weight.dtype)  # statistics in full precision
        if mean_of_rows is None:
            return (inputs - self.mean) * ((self.variance + EPSILON).rsqrt() * weight) + bias

        mean = mean_of_rows(inputs)
        centred = inputs - mean
        variance = mean_of_rows(centred.square())
        deviation = (variance + EPSILON).sqrt()
        ratio, shift = self._update_statistics(mean.detach(), variance.detach(), deviation.detach())
        return (centred * (ratio / deviation) + shift) * weight + bias

    @torch.no_grad()
    def _update_statistics(self, mean: Tensor, variance: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
        """Move the running statistics towards those of a batch, and return the corrections `r` and `d`.

        All without a branch on values, which would wait for the device.
        """
        running = (self.variance + EPSILON).sqrt()
        is_warm = self.num_batches >= WARM_UP
        ratio = torch.where(is_warm, (deviation / running).clamp(1.0 / LARGEST_RATIO, LARGEST_RATIO), 1.0)
        shift = torch.where(is_warm, ((mean - self.mean) / running).clamp(-LARGEST_SHIFT, LARGEST_SHIFT), 0.0)
        # The learner skips a gradient step that is not finite. The statistics must skip it as well, or stay NaN.
        is_finite = (mean.isfinite() & variance.isfinite()).all()
        self.mean.add_(torch.where(is_finite, RATE * (mean - self.mean), 0.0))
        self.variance.add_(torch.where(is_finite, RATE * (variance - self.variance), 0.0))
        self.num_batches.add_(1)
        return ratio, shift


class NormalizedMLP(BatchedMLP):
    """`BatchedMLP` with `BatchRenorm` before each layer."""

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
        """Return outputs `[num_networks, N, output_size]`; see `BatchedMLP.forward` and `BatchRenorm.forward`."""
        if inputs.dim() == 2:
            inputs = inputs.expand(self.num_networks, -1, -1)
        last = len(self.norms) - 1
        for i, norm in enumerate(self.norms):
            weight = self.weights[i]
            bias = self.biases[i]
            if frozen:
                weight = weight.detach()
                bias = bias.detach()
            inputs = norm(inputs, mean_of_rows=mean_of_rows, frozen=frozen)
            inputs = torch.baddbmm(bias, inputs, weight)
            if i < last:
                inputs = self.activation(inputs)
        return inputs[:1] if first_only else inputs

    def network(self, index: int) -> nn.Sequential:
        raise TypeError("a network with batch statistics is more than its plain layers; call all of them")


class NormalizedCritics(ActionCritics):
    """Critics with batch renormalisation, for a Box of actions."""

    mlp_class = NormalizedMLP

    def joint_values(
        self, now: tuple[Any, Tensor], after: tuple[Any, Tensor], mean_of_rows: MeanOfRows
    ) -> tuple[Tensor, Tensor]:
        """Return the values `[K, N]` of present and of next observations and actions, normalised as one batch.

        CrossQ has no target network. Present and next actions have different distributions, so statistics of either
        alone would be wrong for the other (Bhatt et al. 2024).

        Args:
            now: Present observations and actions.
            after: Next observations and actions.
            mean_of_rows: Function that computes the batch statistics.
        """
        inputs = torch.cat([self.inputs_of(obs, actions) for obs, actions in (now, after)])
        values = self.mlp(inputs, mean_of_rows=mean_of_rows).squeeze(-1)
        values_now, values_after = values.chunk(2, -1)
        return values_now, values_after


class DefaultCrossQModule(DefaultSACModule):
    """SAC's policy, and critics of CrossQ (`NormalizedCritics`). `ValueError` for action spaces other than Box."""

    critics_class = NormalizedCritics

    def setup(self) -> None:
        if not isinstance(self.action_space, spaces.Box):
            raise ValueError(f"CrossQ needs a Box action space, not {self.action_space}")
        super().setup()
