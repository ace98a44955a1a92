"""Lockstep's networks by the attribute names of Stable-Baselines3.

Each module here has the live layers of a network, or computes with their live parameters, so that programs can read,
call and train them.
"""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from torch import Tensor, nn

from lockstep.modules import (
    BatchedMLP,
    Encoder,
    FlatFeatures,
    ImageFeatures,
    JoinedFeatures,
)
from lockstep_sb3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    MlpExtractor,
    NatureCNN,
    Prepared,
    with_channels_first,
)


class LiveCNN(NatureCNN):
    """Extractor with the live layers of `ImageFeatures`: convolutions `cnn`, and dense layers `linear`."""

    def __init__(self, features: ImageFeatures) -> None:
        BaseFeaturesExtractor.__init__(self, with_channels_first(features.space), features.output_size)
        layers = list(features.network)
        end_of_convolutions = 1 + next(i for i, layer in enumerate(layers) if isinstance(layer, nn.Flatten))
        self.cnn = nn.Sequential(*layers[:end_of_convolutions])
        self.linear = nn.Sequential(*layers[end_of_convolutions:])


class LiveCombined(CombinedExtractor):
    """Extractor with the live features of the parts of a dict."""

    def __init__(self, features: JoinedFeatures) -> None:
        BaseFeaturesExtractor.__init__(self, with_channels_first(features.space), features.output_size)
        parts = zip(features.keys, features.parts)
        self.extractors = nn.ModuleDict({name: extractor_of(part) for name, part in parts})


def extractor_of(features: Any) -> BaseFeaturesExtractor:
    """Return the live features of an encoder as an extractor for the observations that `preprocess_obs` prepares.

    Raises:
        TypeError: The features have no counterpart in Stable-Baselines3.
    """
    network = getattr(features, "network", None)
    if isinstance(network, Prepared):
        extractor: BaseFeaturesExtractor = network.extractor
        return extractor
    if isinstance(features, ImageFeatures) and len(features.shape) == 3:
        return LiveCNN(features)
    if isinstance(features, JoinedFeatures) and isinstance(features.space, spaces.Dict):
        return LiveCombined(features)
    if isinstance(features, FlatFeatures):
        return FlattenExtractor(features.space)
    raise TypeError(f"{type(features).__name__} of {features.space} have no counterpart in Stable-Baselines3")


class LiveMlpExtractor(MlpExtractor):
    """Live hidden layers of a policy and of a value function."""

    def __init__(self, policy: Encoder, value: Encoder) -> None:
        nn.Module.__init__(self)
        self.policy_net = policy.mlp
        self.value_net = value.mlp
        self.latent_dim_pi = policy.output_size
        self.latent_dim_vf = value.output_size


class LiveRows(nn.Module):
    """Linear layer that is a part of the outputs of a larger one, with its live parameters.

    Args:
        layer: The larger layer.
        rows: Its outputs.
    """

    def __init__(self, layer: nn.Linear, rows: slice) -> None:
        super().__init__()
        self.layer = layer
        self.rows = rows
        self.in_features = layer.in_features
        self.out_features = len(range(layer.out_features)[rows])

    @property
    def weight(self) -> Tensor:
        """Weights `[outputs, inputs]`, a view of those of the larger layer."""
        return self.layer.weight[self.rows]

    @property
    def bias(self) -> Tensor:
        """Biases `[outputs]`, a view of those of the larger layer."""
        return self.layer.bias[self.rows]

    def forward(self, features: Tensor) -> Tensor:
        return nn.functional.linear(features, self.weight, self.bias)


class LiveCritic(nn.Module):
    """One network of a `BatchedMLP`, with its live parameters.

    Args:
        mlp: All networks.
        index: Number of the network.
    """

    def __init__(self, mlp: BatchedMLP, index: int) -> None:
        super().__init__()
        self.mlp = mlp
        self.index = index

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs `[N, output_size]` for features and actions `[N, input_size]`."""
        outputs: Tensor = self.mlp(inputs)[self.index]
        return outputs
