"""Encoders, which turn observations of any space into feature vectors.

An `Encoder` has a tree of `Features` modules that mirrors the space (flat numbers, one-hot, convolutions), whose
outputs are concatenated, and a multi-layer perceptron above it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.spaces import Space
from gymnasium.vector.utils import batch_space
from torch import Tensor, nn

from lockstep.data.groups import PartView
from lockstep.data.trees import Tree, map_tree
from lockstep.modules.layers import Network, initialise, is_watched, make_activation, make_mlp, run_networks
from lockstep.modules.model_config import ModelConfig
from lockstep.options.checks import is_whole
from lockstep.state.streams import global_generator

NATURE_FILTERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Convolutions of Mnih et al. 2015 as (channels, kernel, stride)."""
SMALL_FILTERS = ((16, 3, 1), (32, 3, 1))
"""Convolutions for images that are too small for those of Mnih et al. 2015."""
IMPALA_CHANNELS = (16, 32, 32)
"""Channels of the three sections of Espeholt et al. 2018."""
BLOCKS_PER_SECTION = 2
"""Number of residual blocks in each section of Espeholt et al. 2018."""


def is_image(space: Space[Any]) -> bool:
    """Return whether a Box is treated as an image.

    An image has three dimensions, of which the two spatial ones are at least 8 (see `channels_last`), or two such
    dimensions of bytes (one grey channel).
    """
    if not isinstance(space, spaces.Box):
        return False
    if len(space.shape) == 2:
        return space.dtype == np.uint8 and min(space.shape) >= 8
    return len(space.shape) == 3 and min(_image_size(space.shape)) >= 8


def channels_last(shape: Sequence[int]) -> bool:
    """Return whether the last of an image's three dimensions has its channels.

    The channels are the smaller of the first and the last dimension; the last one if they are equal.
    """
    return shape[-1] <= shape[0]


def _image_size(shape: Sequence[int]) -> tuple[int, int]:
    """Return (height, width) of an image with two or three dimensions."""
    if len(shape) == 2:
        return shape[0], shape[1]
    return (shape[0], shape[1]) if channels_last(shape) else (shape[1], shape[2])


class Features(nn.Module):
    """Base class of modules that turn one leaf or branch of an observation into features `[N, output_size]`."""

    output_size: int
    """Number of features."""
    has_dense_layers = False
    """True if the last layers are dense, so that an encoder adds no others."""

    def __init__(self, space: Space[Any]) -> None:
        super().__init__()
        self.space = space

    def check(self, obs: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return `obs` if its last dimensions are `shape`; else raise `ValueError`, which names the space."""
        if obs.shape[max(obs.dim() - len(shape), 0) :] != shape:
            raise ValueError(
                f"observation of shape {tuple(obs.shape)} does not fit the space {self.space}: expected [N, "
                + ", ".join(map(str, shape))
                + "]. Is the module built for another environment, or a connector missing?"
            )
        return obs


class FlatFeatures(Features):
    """Features of a Box or MultiBinary: its numbers, flattened."""

    def __init__(self, space: Space[Any]) -> None:
        super().__init__(space)
        self.shape = tuple(space.shape or ())
        self.output_size = int(np.prod(self.shape, dtype=int))

    def forward(self, obs: Tensor) -> Tensor:
        obs = self.check(obs, self.shape)
        if len(self.shape) == 1:
            return obs
        return obs.flatten(-len(self.shape)) if self.shape else obs.unsqueeze(-1)


def one_hot_outputs(space: spaces.Discrete | spaces.MultiDiscrete) -> tuple[np.ndarray, np.ndarray]:
    """Return the choice and the value that each output of concatenated one-hot vectors stands for.

    Returns:
        `(parts, values)`, both int64 [outputs]: output i is 1 if number `parts[i]` of the observation is `values[i]`.
    """
    if isinstance(space, spaces.Discrete):
        nvec = np.array([space.n])
        start = np.array([space.start])
    else:
        nvec = space.nvec.reshape(-1)
        start = space.start.reshape(-1)
    parts = np.repeat(np.arange(len(nvec)), nvec)
    values = np.concatenate([np.arange(n) + first for n, first in zip(nvec, start)])
    return parts, values


class OneHotFeatures(FlatFeatures):
    """Features of Discrete `[N]` and MultiDiscrete `[N, ...]`: one one-hot vector per number, concatenated.

    A number outside of the space gives a vector of zeros. (A check would have to wait for the device.)
    """

    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete) -> None:
        super().__init__(space)
        parts, values = one_hot_outputs(space)
        self.output_size = len(values)
        self.register_buffer("parts", torch.from_numpy(parts), persistent=False)
        self.register_buffer("values", torch.from_numpy(values.astype(np.int64)), persistent=False)

    def forward(self, obs: Tensor) -> Tensor:
        return super().forward(obs)[..., cast(Tensor, self.parts)] == cast(Tensor, self.values)


class ImageFeatures(Features):
    """Features of images: convolutions, then dense layers. Bytes (and floats up to 255) are divided by 255.

    The default for 36 x 36 pixels and more is the network of Mnih et al. 2015, "Human-level control through deep
    reinforcement learning", where images have 84 x 84. `encoder="impala"` is the large network of Espeholt et al. 2018.
    """

    has_dense_layers = True

    def __init__(self, space: spaces.Box, config: ModelConfig) -> None:
        super().__init__(space)
        self.shape = tuple(space.shape)
        self.channels_last = len(self.shape) == 3 and channels_last(self.shape)
        has_byte_range = space.dtype == np.uint8 or bool((space.high == 255).all())
        self.scale = 1.0 / 255.0 if has_byte_range else 1.0

        gain = config.hidden_gain if config.orthogonal_init else None
        make_layers = _impala_layers if config.encoder == "impala" else _plain_layers
        layers, flat_size = make_layers(space, config, gain)
        dense = make_mlp(
            flat_size, config.image_hiddens, config.conv_activation, gain, config.noisy_sigma, config.layer_norm
        )
        self.network = nn.Sequential(*layers, nn.Flatten(), *dense)
        self.output_size = config.image_hiddens[-1] if config.image_hiddens else flat_size

    def forward(self, obs: Tensor) -> Tensor:
        obs = self.check(obs, self.shape)
        leading = obs.shape[: obs.dim() - len(self.shape)]
        image = obs.reshape(-1, *self.shape)
        if len(self.shape) == 2:
            image = image.unsqueeze(1)
        elif self.channels_last:
            image = image.permute(0, 3, 1, 2)
        # Convolutions are faster in this memory format. It is a copy, so scaling in place leaves the observation alone.
        dtype = next(self.network.parameters()).dtype
        image = image.to(dtype, memory_format=torch.channels_last, copy=True)
        return self.network(image.mul_(self.scale)).reshape(*leading, self.output_size)


def _image_dimensions(space: spaces.Box) -> tuple[int, int, int]:
    """Return (channels, height, width) of an image with two or three dimensions."""
    height, width = _image_size(space.shape)
    return int(np.prod(space.shape)) // (height * width), height, width


def _plain_layers(space: spaces.Box, config: ModelConfig, gain: float | None) -> tuple[list[nn.Module], int]:
    """Return a sequence of convolutions, and the number of their outputs."""
    channels, height, width = _image_dimensions(space)
    filters = config.conv_filters
    if filters is None:
        is_large = min(height, width) >= 36 or config.encoder == "nature"
        filters = NATURE_FILTERS if is_large else SMALL_FILTERS
    layers: list[nn.Module] = []
    for out_channels, kernel, stride in filters:
        if kernel > min(height, width):
            raise ValueError(
                f"conv_filters {filters} do not fit images of space {space}: a {kernel} x {kernel} kernel meets "
                f"{height} x {width} pixels. Set model_config's conv_filters to smaller ones."
            )
        convolution = initialise(nn.Conv2d(channels, out_channels, kernel, stride), gain)
        norm = [nn.GroupNorm(1, out_channels)] if config.layer_norm else []  # one group: a norm over the whole image
        layers += [convolution, *norm, make_activation(config.conv_activation)]
        channels = out_channels
        height = (height - kernel) // stride + 1
        width = (width - kernel) // stride + 1
    return layers, channels * height * width


def _impala_layers(space: spaces.Box, config: ModelConfig, gain: float | None) -> tuple[list[nn.Module], int]:
    """Return the convolutions of Espeholt et al. 2018, figure 3 (right), and the number of their outputs.

    There are three sections, each with a 3 x 3 convolution, a 3 x 3 max-pooling with stride 2, and two residual blocks.
    """
    channels, height, width = _image_dimensions(space)
    layers: list[nn.Module] = []
    for out_channels in IMPALA_CHANNELS:
        layers += [
            initialise(nn.Conv2d(channels, out_channels, 3, padding=1), gain),
            nn.MaxPool2d(3, stride=2, padding=1),
            *(ResidualBlock(out_channels, config.conv_activation, gain) for _ in range(BLOCKS_PER_SECTION)),
        ]
        channels = out_channels
        height = (height + 1) // 2
        width = (width + 1) // 2
    return [*layers, make_activation(config.conv_activation)], channels * height * width


class ResidualBlock(nn.Module):
    """Residual block on images `[N, C, H, W]`: `x + conv(act(conv(act(x))))` with 3 x 3 convolutions."""

    def __init__(self, channels: int, activation: str, gain: float | None) -> None:
        super().__init__()
        # Each of the k blocks adds 1 / k of the variance, so that all together about double it instead of doubling
        # it k times.
        last_gain = gain and gain / math.sqrt(BLOCKS_PER_SECTION * len(IMPALA_CHANNELS))
        self.layers = nn.Sequential(
            make_activation(activation),
            initialise(nn.Conv2d(channels, channels, 3, padding=1), gain),
            make_activation(activation),
            initialise(nn.Conv2d(channels, channels, 3, padding=1), last_gain),
        )

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = images + self.layers(images)
        return out


class JoinedFeatures(Features):
    """Features of a Dict or Tuple: those of its parts, concatenated in the order of the space."""

    def __init__(self, space: spaces.Dict | spaces.Tuple, parts: Mapping[Any, Features]) -> None:
        super().__init__(space)
        if not parts:
            raise ValueError(f"observation space {space} has no parts to make a network for")
        self.keys = tuple(parts)
        self.parts = nn.ModuleList(parts.values())
        self.output_size = sum(part.output_size for part in parts.values())

    def forward(self, obs: Tree) -> Tensor:
        try:
            leaves = [obs[key] for key in self.keys]
        except (KeyError, IndexError, TypeError) as error:
            found = list(obs) if isinstance(obs, Mapping) else type(obs).__name__
            raise ValueError(f"observation with {found} does not fit the space {self.space}") from error
        return torch.cat([part(leaf) for part, leaf in zip(self.parts, leaves)], dim=-1)


class CustomFeatures(Features):
    """Features of a custom network, which `model_config.encoder(space, **encoder_config)` makes.

    The network receives numbers (of a Box, also of bytes, or MultiBinary) in the dtype of its weights, and choices as
    integers.

    Raises:
        TypeError: The encoder made something other than an `nn.Module`.
        ValueError: The network has no `output_size`, or does not return `[N, output_size]`.
    """

    def __init__(self, space: Space[Any], config: ModelConfig) -> None:
        super().__init__(space)
        name = getattr(config.encoder, "__name__", repr(config.encoder))
        try:
            network = config.encoder(space, **config.encoder_config)
        except (LookupError, TypeError) as error:
            raise _custom_encoder_error(name, "it is made for", space, error) from error
        if not isinstance(network, nn.Module):
            raise TypeError(f"model_config.encoder={name} must make a torch nn.Module, not {type(network).__name__}")
        size = getattr(network, "output_size", None)
        if not is_whole(size) or int(size) < 1:
            raise ValueError(
                f"model_config.encoder={name} has output_size={size!r}; set self.output_size to the number of its "
                "features, a whole number of at least 1"
            )
        self.network = network
        self.output_size = int(size)
        self._check_output(name)

    def forward(self, obs: Tree) -> Tensor:
        weight = next(self.network.parameters(), None)
        dtype = torch.float32 if weight is None else weight.dtype
        features: Tensor = self.network(_numbers_as(dtype, self.space, obs))
        return features

    def _check_output(self, name: str) -> None:
        """Check the output's shape for two observations drawn from the space.

        Dropout and batch statistics are off meanwhile, and torch's global generator is restored, so that the check
        changes nothing.
        """
        two_observations = batch_space(self.space, 2)
        two_observations.seed(0)
        training = self.network.training
        with torch.no_grad(), global_generator():
            self.network.eval()
            try:
                out = self(map_tree(torch.as_tensor, two_observations.sample()))
            except Exception as error:
                raise _custom_encoder_error(name, "it gets 2 observations of", self.space, error) from error
            self.network.train(training)
        if not isinstance(out, Tensor) or out.shape != (2, self.output_size):
            found = f"a tensor {list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(
                f"model_config.encoder={name} gives {found} for 2 observations of {self.space}; it must give "
                f"[2, output_size], that is [2, {self.output_size}]"
            )


def _custom_encoder_error(name: str, when: str, space: Space[Any], error: Exception) -> ValueError:
    """Return the error to raise after a custom encoder has raised `error`."""
    hint = ""
    if isinstance(error, LookupError | TypeError):  # it probably expected another structure
        hint = "; it gets no action mask, and of a Dict with one other key that part alone"
    return ValueError(f"model_config.encoder={name} raises {type(error).__name__}: {error}, where {when} {space}{hint}")


def _numbers_as(dtype: torch.dtype, space: Space[Any], obs: Tree) -> Any:
    """Return observations with their numbers in `dtype`, and their choices unchanged."""
    if isinstance(space, spaces.Dict):
        return {key: _numbers_as(dtype, part, obs[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_numbers_as(dtype, part, leaf) for part, leaf in zip(space.spaces, obs))
    return obs.to(dtype) if isinstance(space, spaces.Box | spaces.MultiBinary) else obs


def make_features(space: Space[Any], config: ModelConfig) -> Features:
    """Return new features of an observation space, nested like it. `ValueError` for a space that is not supported."""
    if isinstance(config.encoder, str) and not any(map(is_image, spaces_in(space))):
        raise ValueError(f"model_config.encoder={config.encoder!r} is for images, and there are none in {space}")
    return _features(space, config)


def spaces_in(space: Space[Any]) -> list[Space[Any]]:
    """Return the leaves of a space."""
    if isinstance(space, spaces.Dict):
        parts = list(space.spaces.values())
    elif isinstance(space, spaces.Tuple):
        parts = list(space.spaces)
    else:
        return [space]
    return list(chain.from_iterable(map(spaces_in, parts)))


def _features(space: Space[Any], config: ModelConfig) -> Features:
    """Return new features of a space or of a part of it."""
    if callable(config.encoder):
        return CustomFeatures(space, config)
    if isinstance(space, spaces.Dict):
        return JoinedFeatures(space, {key: _features(part, config) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return JoinedFeatures(space, {i: _features(part, config) for i, part in enumerate(space.spaces)})
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return OneHotFeatures(space)
    if isinstance(space, spaces.Box) and is_image(space):
        return ImageFeatures(space, config)
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return FlatFeatures(space)
    raise ValueError(
        f"no network for observation space {space}; possible are Box, Discrete, MultiDiscrete, MultiBinary, Dict and "
        "Tuple. Wrap the environment, or pass a module of your own."
    )


class Encoder(nn.Module):
    """Network that turns observations `[N, ...]` into features `[N, output_size]`.

    The features of the space are followed by a multi-layer perceptron. If the observation is one image, there is no
    perceptron, because the image features have dense layers of their own.

    Args:
        space: Space of what the network sees.
        config: Options of the network.
        view: Function from whole observations to what the network sees, whose space is `space`. Defaults to all.
    """

    def __init__(self, space: Space[Any], config: ModelConfig, view: PartView | None = None) -> None:
        super().__init__()
        self.space = space
        self.view = None if view is None or view.is_identity else view
        self.features = make_features(space, config)
        widths: Sequence[int] = () if self.features.has_dense_layers else config.hiddens
        gain = config.hidden_gain if config.orthogonal_init else None
        self.mlp = make_mlp(
            self.features.output_size, widths, config.activation, gain, config.noisy_sigma, config.layer_norm
        )
        self.output_size = widths[-1] if widths else self.features.output_size
        self.features_are_shared = False
        """True if other networks use and train the features: this encoder's loss does not."""

    def share_features(self) -> Features:
        """Return the features for other networks to use and train. This encoder sends them no gradient from now on.

        Raises:
            ValueError: The features have no parameters.
        """
        if next(self.features.parameters(), None) is None:
            raise ValueError(
                f"q_share_layers=True: observations of {self.space} go into the networks as they are, and there is "
                "nothing to share below the hidden layers; leave it out, or set model_config.encoder"
            )
        self.features_are_shared = True
        return self.features

    def forward(self, obs: Tree, dtype: torch.dtype) -> Tensor:
        """Return the features `[N, output_size]`, computed in `dtype`, the dtype of the weights."""
        return run_networks(self._as_network(obs, dtype))[0]

    def with_head(self, obs: Tree, dtype: torch.dtype, head: nn.Module) -> Network:
        """Return `head(encoder(obs))` as one network for `run_networks`, which calls hooks of both."""
        return (self(obs, dtype), (head,)) if is_watched(self) else self._as_network(obs, dtype, head)

    def _as_network(self, obs: Tree, dtype: torch.dtype, *head: nn.Module) -> Network:
        """Return the features of the space, and the layers that they have to pass: the perceptron's, then the head."""
        features = self.features(obs if self.view is None else self.view(obs)).to(dtype)
        mlp = self.mlp
        if self.features_are_shared:
            features = features.detach()
        if is_watched(mlp) or type(mlp) is not nn.Sequential:  # a user's replacement
            return mlp(features), head
        return features, (*mlp, *head)
