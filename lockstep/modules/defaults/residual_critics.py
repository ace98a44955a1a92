"""Residual networks with batch normalisation, and the default network of FlashSAC, which is made of them."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from gymnasium import spaces
from gymnasium.spaces import Space
from torch import Tensor, nn

from lockstep.data.groups import PartView
from lockstep.data.trees import Tree
from lockstep.modules.defaults.action_critics import ActionCritics, DefaultSACModule
from lockstep.modules.defaults.actor_critic import require_part
from lockstep.modules.defaults.normalized_critics import MeanOfRows
from lockstep.modules.defaults.transition_module import SequenceEncoder
from lockstep.modules.encoders import Encoder
from lockstep.modules.layers import make_activation
from lockstep.modules.model_config import ModelConfig
from lockstep.modules.rl_module import Batch

EXPANSION = 4
"""Width inside a residual block, as a multiple of the width of the block."""
RATE = 0.01
"""Step size of the running statistics towards those of a batch."""
BATCH_EPSILON = 1e-5
"""Added to variances before their root."""
RMS_EPSILON = 1e-6
"""Added to the mean square of a row before its root."""
LEAST_NORM = 1e-8
"""Smallest norm that weights are divided by."""
ALL_ROWS = slice(None)
"""Slice of all rows of a batch."""


class BatchNorm(nn.Module):
    """Batch normalisation of the features of several networks (Ioffe & Szegedy 2015, arXiv:1502.03167).

    Without `is_normalizing` only its learned scale and shift are left, so that a network without normalisation has the
    same parameters.

    Args:
        num_networks: Number of networks K.
        size: Number of features F.
        is_normalizing: Whether features are normalised.
    """

    def __init__(self, num_networks: int, size: int, is_normalizing: bool = True) -> None:
        super().__init__()
        self.is_normalizing = is_normalizing
        self.weight = nn.Parameter(torch.ones(num_networks, 1, size))
        self.bias = nn.Parameter(torch.zeros(num_networks, 1, size))
        self.mean: Tensor
        self.variance: Tensor
        if is_normalizing:
            self.register_buffer("mean", torch.zeros(num_networks, 1, size))
            self.register_buffer("variance", torch.ones(num_networks, 1, size))

    def forward(
        self, inputs: Tensor, *, mean_of_rows: MeanOfRows | None = None, frozen: bool = False, keeps: bool = True
    ) -> Tensor:
        """Return normalised `inputs` `[K, N, F]`.

        Args:
            inputs: Features `[K, N, F]`.
            mean_of_rows: Function that computes the batch statistics, for training. None: normalise by the running
                statistics.
            frozen: Send the gradient to the inputs only.
            keeps: Whether the running statistics move towards those of the batch.
        """
        weight = self.weight.detach() if frozen else self.weight
        bias = self.bias.detach() if frozen else self.bias
        inputs = inputs.to(weight.dtype)  # statistics in full precision
        if not self.is_normalizing:
            return inputs * weight + bias
        if mean_of_rows is None:
            scale = (self.variance + BATCH_EPSILON).rsqrt() * weight
            return inputs * scale + (bias - self.mean * scale)

        mean = mean_of_rows(inputs)
        centred = inputs - mean
        variance = mean_of_rows(centred.square())
        if keeps:
            self._update_statistics(mean.detach(), variance.detach())
        return centred * ((variance + BATCH_EPSILON).rsqrt() * weight) + bias

    @torch.no_grad()
    def _update_statistics(self, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics towards those of a batch, without a branch on values."""
        # The learner skips a gradient step that is not finite. The statistics must skip it as well, or stay NaN.
        is_finite = (mean.isfinite() & variance.isfinite()).all()
        self.mean.add_(torch.where(is_finite, RATE * (mean - self.mean), 0.0))
        self.variance.add_(torch.where(is_finite, RATE * (variance - self.variance), 0.0))

    @torch.no_grad()
    def normalize_weights(self) -> None:
        """Scale scale and shift of each network together to the norm sqrt(F)."""
        squares = self.weight.square().sum(-1, keepdim=True) + self.bias.square().sum(-1, keepdim=True)
        factor = math.sqrt(self.weight.shape[-1]) / squares.sqrt().clamp(min=LEAST_NORM)
        self.weight.mul_(factor)
        self.bias.mul_(factor)


class ResidualMLP(nn.Module):
    """`num_networks` residual networks that are evaluated together ("FlashSAC", arXiv:2604.04539, section 4.2).

        x = linear(norm(inputs))
        x = x + relu(norm(linear(relu(norm(linear(x))))))    for each block; the inner layer is 4 times as wide
        x = x / rms(x) * scale

    Linear layers have no biases, because the shifts of the normalisation follow or precede them.

    Args:
        num_networks: Number of networks K.
        input_size: Number of inputs.
        widths: Width of the blocks, one equal number for each block.
        activation: Name of the activation.
        batch_norm: Whether features are normalised over the batch.

    Raises:
        ValueError: There are no widths, or they differ.
    """

    def __init__(
        self,
        num_networks: int,
        input_size: int,
        widths: tuple[int, ...],
        *,
        activation: str = "relu",
        batch_norm: bool = True,
    ) -> None:
        super().__init__()
        if not widths or len(set(widths)) > 1:
            raise ValueError(
                f"residual blocks have one width, and hiddens or critic_hiddens are {list(widths)}; give one equal "
                "number for each block, such as (128, 128)"
            )
        width = widths[0]
        self.num_networks = num_networks
        self.output_size = width
        self.activation = make_activation(activation)
        self.weights = nn.ParameterList([orthogonal(num_networks, input_size, width)])
        norms = [BatchNorm(num_networks, input_size, batch_norm)]
        for _ in widths:
            inner = EXPANSION * width
            self.weights += [orthogonal(num_networks, width, inner), orthogonal(num_networks, inner, width)]
            norms += [BatchNorm(num_networks, inner, batch_norm), BatchNorm(num_networks, width, batch_norm)]
        self.norms = nn.ModuleList(norms)
        self.scale = nn.Parameter(torch.ones(num_networks, 1, width))

    def forward(
        self,
        inputs: Tensor,
        *,
        frozen: bool = False,
        mean_of_rows: MeanOfRows | None = None,
        keeps: bool = True,
        rows: slice = ALL_ROWS,
    ) -> Tensor:
        """Return features `[K, n, width]` of the `rows` of inputs `[N, input_size]`; see `BatchNorm.forward`.

        The other rows count in the batch statistics only.
        """

        def layer(number: int, x: Tensor) -> Tensor:
            weight = self.weights[number]
            return torch.bmm(x, weight.detach() if frozen else weight)

        def norm(number: int, x: Tensor) -> Tensor:
            normalized: Tensor = self.norms[number](x, mean_of_rows=mean_of_rows, frozen=frozen, keeps=keeps)
            return normalized

        x = layer(0, norm(0, inputs.expand(self.num_networks, -1, -1)))
        for number in range(1, len(self.weights), 2):
            inner = self.activation(norm(number, layer(number, x)))
            x = x + self.activation(norm(number + 1, layer(number + 1, inner)))
        scale = self.scale.detach() if frozen else self.scale
        x = x[:, rows]
        return x * (x.square().mean(-1, keepdim=True) + RMS_EPSILON).rsqrt() * scale

    @torch.no_grad()
    def normalize_weights(self) -> None:
        """Scale the weights of each unit to the norm 1, and those of the normalisations to the root of their number."""
        for weight in self.weights:
            normalize_units(weight, 1)
        norm: Any
        for norm in self.norms:
            norm.normalize_weights()
        size = math.sqrt(self.output_size)
        self.scale.mul_(size / torch.linalg.vector_norm(self.scale, dim=-1, keepdim=True).clamp(min=LEAST_NORM))


def orthogonal(num_networks: int, num_inputs: int, num_outputs: int) -> nn.Parameter:
    """Return new weights `[num_networks, num_inputs, num_outputs]`, orthogonal in each network."""
    weight = torch.empty(num_networks, num_inputs, num_outputs)
    for part in weight:
        nn.init.orthogonal_(part)
    return nn.Parameter(weight)


@torch.no_grad()
def normalize_units(weight: Tensor, dim: int) -> None:
    """Scale weights in place so that those of each unit have the norm 1.

    Args:
        weight: Weights.
        dim: Dimension of the inputs.
    """
    # On a processor `torch.linalg.vector_norm` takes ten times longer than this, unless it is over the last dimension.
    norms = weight.square().sum(dim, keepdim=True).sqrt()
    weight.div_(norms.clamp(min=LEAST_NORM))


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Return the context in which matrix products on a device are not in mixed precision."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


class ResidualHead(nn.Module):
    """`ResidualMLP` and one linear layer above it, with the interface of `BatchedMLP`.

    Args:
        num_networks, input_size, widths, output_size, activation: As those of `BatchedMLP`.
        batch_norm: Whether features are normalised over the batch.
    """

    def __init__(
        self,
        num_networks: int,
        input_size: int,
        widths: tuple[int, ...],
        output_size: int,
        *,
        activation: str,
        batch_norm: bool,
    ) -> None:
        super().__init__()
        self.body = ResidualMLP(num_networks, input_size, widths, activation=activation, batch_norm=batch_norm)
        self.weights = nn.ParameterList([orthogonal(num_networks, self.body.output_size, output_size)])
        self.bias = nn.Parameter(torch.zeros(num_networks, 1, output_size))

    def forward(
        self,
        inputs: Tensor,
        *,
        frozen: bool = False,
        first_only: bool = False,
        mean_of_rows: MeanOfRows | None = None,
        keeps: bool = True,
        rows: slice = ALL_ROWS,
    ) -> Tensor:
        """Return outputs `[K, n, output_size]`; see `BatchedMLP.forward` and `ResidualMLP.forward`."""
        features = self.body(inputs, frozen=frozen, mean_of_rows=mean_of_rows, keeps=keeps, rows=rows)
        weight: Tensor = self.weights[0]
        bias: Tensor = self.bias
        if frozen:
            weight = weight.detach()
            bias = bias.detach()
        # In mixed precision, logits of 8 bits would blur the small differences between the values of actions.
        with full_precision(features.device):
            outputs = torch.baddbmm(bias, features.to(weight.dtype), weight)
        return outputs[:1] if first_only else outputs

    def normalize_weights(self) -> None:
        """Scale the weights of each unit to the norm 1; see `ResidualMLP.normalize_weights`."""
        self.body.normalize_weights()
        normalize_units(self.weights[0], 1)


class ResidualEncoder(Encoder):
    """`Encoder` with a `ResidualMLP` in place of the perceptron."""

    def __init__(self, space: Space[Any], config: ModelConfig, view: PartView | None = None) -> None:
        super().__init__(space, config, view)
        self.mlp: Any = ResidualMLP(
            1, self.features.output_size, config.hiddens, activation=config.activation, batch_norm=config.batch_norm
        )
        self.output_size = config.hiddens[-1]

    def forward(self, obs: Tree, dtype: torch.dtype, *, mean_of_rows: MeanOfRows | None = None) -> Tensor:
        """Return the features `[N, output_size]`; see `Encoder.forward` and `BatchNorm.forward`."""
        features = self.features(obs if self.view is None else self.view(obs)).to(dtype)
        if self.features_are_shared:
            features = features.detach()
        normalized: Tensor = self.mlp(features, mean_of_rows=mean_of_rows)[0]
        return normalized


class ResidualCritics(ActionCritics):
    """Critics with residual networks, for a Box of actions."""

    def make_mlp(self, num_inputs: int, num_outputs: int, config: ModelConfig) -> ResidualHead:  # type: ignore[override]
        return ResidualHead(
            config.num_critics,
            num_inputs,
            self.hiddens,
            num_outputs,
            activation=config.activation,
            batch_norm=config.batch_norm,
        )


class DefaultFlashSACModule(DefaultSACModule):
    """Policy and critics of FlashSAC. `ValueError` for action spaces other than Box.

    `model_config.hiddens` and `critic_hiddens` have the width of the residual blocks once for each block.
    """

    critics_class = ResidualCritics
    has_blocks = True
    """Whether the policy has residual blocks."""

    def setup(self) -> None:
        if not isinstance(self.action_space, spaces.Box):
            raise ValueError(f"FlashSAC needs a Box action space, not {self.action_space}")
        super().setup()
        self.value_range = ModelConfig.of(self.model_config).value_range

    def make_encoder(self, view: PartView, config: ModelConfig) -> Encoder | SequenceEncoder:  # type: ignore[override]
        """Return the policy's new encoder. In a network with a memory it has no residual blocks."""
        self.has_blocks = not config.has_memory
        return ResidualEncoder(view.space, config, view) if self.has_blocks else super().make_encoder(view, config)

    def _run(self, batch: Batch, *networks: tuple[Any, nn.Linear]) -> list[Tensor]:
        if not self.has_blocks:
            return list(super()._run(batch, *networks))
        obs, dtype = self._inputs(batch)
        return [self._head_outputs(head, encoder(obs, dtype), dtype) for encoder, head in networks]

    def _head_outputs(self, head: nn.Linear, features: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the outputs of a head, in full precision also where the layers below have mixed precision."""
        with full_precision(features.device):
            outputs: Tensor = head(features.to(dtype))
        return outputs

    def policy_outputs(self, batch: Batch, mean_of_rows: MeanOfRows) -> Tensor:
        """Return the inputs `[N, D]` of the action distribution, with features normalised by the batch's statistics.

        Args:
            batch: The batch.
            mean_of_rows: Function that computes the batch statistics.
        """
        if not self.has_blocks:
            return self._forward(batch)["action_dist_inputs"]
        if self.action_mirror is None:
            return self._normalized_outputs(batch, mean_of_rows)
        of_images = [self._normalized_outputs({**batch, "obs": image}, mean_of_rows) for image in self._images(batch)]
        return self.action_mirror.symmetrised(*of_images)

    def _normalized_outputs(self, batch: Batch, mean_of_rows: MeanOfRows) -> Tensor:
        """Return the same for single observations, not pairs with their mirror images."""
        obs, dtype = self._inputs(batch)
        features = self.encoder(obs, dtype, mean_of_rows=mean_of_rows)
        return self._dist_inputs(batch, self._head_outputs(self.policy_head, features, dtype))

    def _dist_inputs(self, batch: Batch, outputs: Tensor) -> Tensor:
        """Return means and log standard deviations. The latter are squashed smoothly into their bounds."""
        mean, raw = outputs.chunk(2, dim=-1)
        low, high = require_part(self.log_std_bounds)
        return torch.cat([mean, low + 0.5 * (high - low) * (1.0 + raw.tanh())], dim=-1)

    def mean_values(self, outputs: Tensor) -> Tensor:
        """Return the values `[..., N]` of critics' outputs `[..., N, M]`: the means of their distributions."""
        if outputs.shape[-1] == 1:
            return outputs.squeeze(-1)
        low, high = require_part(self.value_range)
        atoms = torch.linspace(low, high, outputs.shape[-1], dtype=outputs.dtype, device=outputs.device)
        return outputs.softmax(-1) @ atoms

    def compute_values(self, batch: Batch) -> Tensor:
        """Return the value `[N]` of the policy's mode, without entropy: the smallest over the critics."""
        if self.has_raw_sequences(batch):
            return self._sequence_values(batch)
        dist = self.action_dist_cls.from_inputs(self._forward(batch)["action_dist_inputs"])
        outputs = require_part(self.critics)(batch["obs"], dist.mode())
        if outputs.dim() == 3:
            outputs = self.mean_values(outputs)
        return outputs.amin(0)

    def normalize_weights(self) -> None:
        """Scale the weights of each unit of policy and critics to the norm 1.

        Convolutions, memories and biases of heads keep their sizes.
        """
        self.normalize_policy_weights()
        if self.critics is not None:
            critics: Any = self.critics
            critics.mlp.normalize_weights()

    def normalize_policy_weights(self) -> None:
        """Scale the weights of each unit of the policy to the norm 1."""
        if self.has_blocks:
            encoder: Any = self.encoder
            encoder.mlp.normalize_weights()
        normalize_units(self.policy_head.weight, 1)
