"""From observations of any space to feature vectors.

An `Encoder` is a tree of features that mirrors the space (flat numbers, one-hot, convolutions), whose outputs are
joined, and a multi-layer perceptron on top.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.spaces import Space
from gymnasium.vector.utils import batch_space
from torch import Tensor, nn

from lockstep.data.trees import Tree, map_tree
from lockstep.modules.layers import Network, initialise, is_watched, make_activation, make_mlp, run_networks
from lockstep.modules.model_config import ModelConfig
from lockstep.options.checks import is_whole
from lockstep.state.streams import global_generator

NATURE_FILTERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
SMALL_FILTERS = ((16, 3, 1), (32, 3, 1))
IMPALA_CHANNELS, BLOCKS_EACH = (16, 32, 32), 2


def is_image(space: Space[Any]) -> bool:
    """Return whether a Box is treated as an image.

    That is: three dimensions of which the two spatial ones are at least 8 (see `channels_last`), or two such dimensions
    of bytes (one grey channel).
    """
    if not isinstance(space, spaces.Box):
        return False
    if len(space.shape) == 2:
        return space.dtype == np.uint8 and min(space.shape) >= 8
    return len(space.shape) == 3 and min(_image_size(space.shape)) >= 8


def channels_last(shape: Sequence[int]) -> bool:
    """Return whether the last of an image's three dimensions is its channels.

    The smaller of first and last is taken for the channels, the last one when they are equal.
    """
    return shape[-1] <= shape[0]


def _image_size(shape: Sequence[int]) -> tuple[int, int]:
    """Return (height, width) of an image with two or three dimensions."""
    if len(shape) == 2:
        return shape[0], shape[1]
    return (shape[0], shape[1]) if channels_last(shape) else (shape[1], shape[2])


class Features(nn.Module):
    """Base of what turns one leaf or branch of an observation into `[N, output_size]`."""

    output_size: int

    def __init__(self, space: Space[Any]) -> None:
        super().__init__()
        self.space = space

    def check(self, obs: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return `obs` if it ends in `shape`; the error names the space otherwise."""
        if obs.shape[max(obs.dim() - len(shape), 0) :] != shape:
            raise ValueError(
                f"observation of shape {tuple(obs.shape)} does not fit the space {self.space}: expected [N, "
                + ", ".join(map(str, shape))
                + "]. Is the module built for another environment, or a connector missing?"
            )
        return obs


class FlatFeatures(Features):
    """Takes the numbers of a Box or MultiBinary as they are, flattened."""

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
    """Return, for each output of one-hot vectors side by side, the part it belongs to and the value that sets it."""
    if isinstance(space, spaces.Discrete):
        nvec, start = np.array([space.n]), np.array([space.start])
    else:
        nvec, start = space.nvec.reshape(-1), space.start.reshape(-1)
    parts = np.repeat(np.arange(len(nvec)), nvec)
    values = np.concatenate([np.arange(n) + first for n, first in zip(nvec, start)])
    return parts, values


class OneHotFeatures(FlatFeatures):
    """Turns Discrete `[N]` and MultiDiscrete `[N, ...]` into one-hot vectors side by side.

    A number outside of the space gives a vector of zeros (a check would wait for the device).
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
    """Runs images through convolutions, then dense layers. Bytes (and floats up to 255) are divided by 255.

    The default for 36 x 36 pixels and more is the network of Mnih et al. 2015, "Human-level control through deep
    reinforcement learning"; it takes 84 x 84 there. `encoder="impala"` is the large network of Espeholt et al. 2018.
    """

    def __init__(self, space: spaces.Box, config: ModelConfig) -> None:
        super().__init__(space)
        self.shape = tuple(space.shape)
        self.channels_last = len(self.shape) == 3 and channels_last(self.shape)
        bytes_like = space.dtype == np.uint8 or bool((space.high == 255).all())
        self.scale = 1.0 / 255.0 if bytes_like else 1.0
        gain = config.hidden_gain if config.orthogonal_init else None
        layers, flat = (_impala_layers if config.encoder == "impala" else _plain_layers)(space, config, gain)
        noise, norm = config.noisy_sigma, config.layer_norm
        dense = make_mlp(flat, config.image_hiddens, config.conv_activation, gain, noise, norm)
        self.network = nn.Sequential(*layers, nn.Flatten(), *dense)
        self.output_size = config.image_hiddens[-1] if config.image_hiddens else flat

    def forward(self, obs: Tensor) -> Tensor:
        obs = self.check(obs, self.shape)
        leading = obs.shape[: obs.dim() - len(self.shape)]
        image = obs.reshape(-1, *self.shape)
        if len(self.shape) == 2:
            image = image.unsqueeze(1)
        elif self.channels_last:
            image = image.permute(0, 3, 1, 2)
        dtype = next(self.network.parameters()).dtype
        image = image.to(dtype, memory_format=torch.channels_last, copy=True)  # convolutions are faster so
        return self.network(image.mul_(self.scale)).reshape(*leading, self.output_size)


def _image_dimensions(space: spaces.Box) -> tuple[int, int, int]:
    """Return (channels, height, width) of an image with two or three dimensions."""
    height, width = _image_size(space.shape)
    return int(np.prod(space.shape)) // (height * width), height, width


def _plain_layers(space: spaces.Box, config: ModelConfig, gain: float | None) -> tuple[list[nn.Module], int]:
    """Return convolutions one after the other, and the numbers that come out."""
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
        norm = [nn.GroupNorm(1, out_channels)] if config.layer_norm else []  # of one group: over the whole image
        layers += [convolution, *norm, make_activation(config.conv_activation)]
        channels, height, width = out_channels, (height - kernel) // stride + 1, (width - kernel) // stride + 1
    return layers, channels * height * width


def _impala_layers(space: spaces.Box, config: ModelConfig, gain: float | None) -> tuple[list[nn.Module], int]:
    """Return the convolutions of Espeholt et al. 2018, figure 3, right, and the numbers that come out.

    Three sections, each a 3 x 3 convolution, a maximum over 3 x 3 with stride 2, and two residual blocks.
    """
    channels, height, width = _image_dimensions(space)
    layers: list[nn.Module] = []
    for out_channels in IMPALA_CHANNELS:
        layers += [
            initialise(nn.Conv2d(channels, out_channels, 3, padding=1), gain),
            nn.MaxPool2d(3, stride=2, padding=1),
            *(ResidualBlock(out_channels, config.conv_activation, gain) for _ in range(BLOCKS_EACH)),
        ]
        channels, height, width = out_channels, (height + 1) // 2, (width + 1) // 2
    return [*layers, make_activation(config.conv_activation)], channels * height * width


class ResidualBlock(nn.Module):
    """Adds to images `[N, C, H, W]` what two 3 x 3 convolutions make of them, each after an activation.

    With orthogonal weights the second one begins smaller, so that all blocks together about double the variance.
    """

    def __init__(self, channels: int, activation: str, gain: float | None) -> None:
        super().__init__()
        last_gain = gain and gain / math.sqrt(BLOCKS_EACH * len(IMPALA_CHANNELS))
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
    """Joins the features of the parts of a Dict or Tuple, in the space's own order."""

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


class OwnFeatures(Features):
    """Runs a network of the user's own, `model_config.encoder(space, **encoder_config)`, on observations.

    Numbers (of a Box, bytes too, or MultiBinary) come in the dtype of its weights, choices as whole numbers. Raises
    `TypeError` where it makes no `nn.Module`, `ValueError` where that has no `output_size` or gives something else than
    `[N, output_size]`.
    """

    def __init__(self, space: Space[Any], config: ModelConfig) -> None:
        super().__init__(space)
        name = getattr(config.encoder, "__name__", repr(config.encoder))
        try:
            network = config.encoder(space, **config.encoder_config)
        except (LookupError, TypeError) as error:
            raise _encoder_error(name, "it is made for", space, error) from error
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
        features: Tensor = self.network(_as_numbers(self.space, obs, torch.float32 if weight is None else weight.dtype))
        return features

    def _check_output(self, name: str) -> None:
        """Run it once on observations that were drawn from the space; it is left as it was."""
        drawn = batch_space(self.space, 2)
        drawn.seed(0)
        training = self.network.training
        with torch.no_grad(), global_generator():
            self.network.eval()
            try:
                out = self(map_tree(torch.as_tensor, drawn.sample()))
            except Exception as error:
                raise _encoder_error(name, "it gets 2 observations of", self.space, error) from error
            self.network.train(training)
        if not isinstance(out, Tensor) or out.shape != (2, self.output_size):
            found = f"a tensor {list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(
                f"model_config.encoder={name} gives {found} for 2 observations of {self.space}; it must give "
                f"[2, output_size], that is [2, {self.output_size}]"
            )


def _encoder_error(name: str, when: str, space: Space[Any], error: Exception) -> ValueError:
    """Return the error about a network of the user's own that raised one."""
    hint = "; it gets no action mask, and of a Dict with one other key that part alone"
    return ValueError(
        f"model_config.encoder={name} raises {type(error).__name__}: {error}, where {when} {space}"
        + hint * isinstance(error, LookupError | TypeError)
    )


def _as_numbers(space: Space[Any], obs: Tree, dtype: torch.dtype) -> Any:
    """Return observations with what is no choice in `dtype`."""
    if isinstance(space, spaces.Dict):
        return {key: _as_numbers(part, obs[key], dtype) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_as_numbers(part, leaf, dtype) for part, leaf in zip(space.spaces, obs))
    return obs.to(dtype) if isinstance(space, spaces.Box | spaces.MultiBinary) else obs


def make_features(space: Space[Any], config: ModelConfig) -> Features:
    """Make the features of an observation space, nested like it; `ValueError` for a space that has none."""
    if isinstance(config.encoder, str) and not any(map(is_image, spaces_in(space))):
        raise ValueError(f"model_config.encoder={config.encoder!r} is for images, and there are none in {space}")
    return _features(space, config)


def spaces_in(space: Space[Any]) -> list[Space[Any]]:
    """Return the leaves of a space."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return [leaf for part in parts for leaf in spaces_in(part)]
    return [space]


def _features(space: Space[Any], config: ModelConfig) -> Features:
    if callable(config.encoder):
        return OwnFeatures(space, config)
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
    """Turns observations `[N, ...]` into features `[N, output_size]`.

    These are the features of the space, then a multi-layer perceptron; a lone image, which has dense layers of its own,
    goes without the latter.
    """

    def __init__(self, space: Space[Any], config: ModelConfig) -> None:
        super().__init__()
        self.space = space
        self.features = make_features(space, config)
        widths: Sequence[int] = () if isinstance(self.features, ImageFeatures) else config.hiddens
        gain = config.hidden_gain if config.orthogonal_init else None
        noise, norm = config.noisy_sigma, config.layer_norm
        self.mlp = make_mlp(self.features.output_size, widths, config.activation, gain, noise, norm)
        self.output_size = widths[-1] if widths else self.features.output_size
        self.features_are_shared = False

    def share_features(self) -> Features:
        """Return the features for others to use and train; they get no gradient from here any more.

        `ValueError` where nothing is learned in them.
        """
        if next(self.features.parameters(), None) is None:
            raise ValueError(
                f"q_share_layers=True: observations of {self.space} go into the networks as they are, and there is "
                "nothing to share below the hidden layers; leave it out, or set model_config.encoder"
            )
        self.features_are_shared = True
        return self.features

    def forward(self, obs: Tree, dtype: torch.dtype) -> Tensor:
        """Return the features, computed in `dtype`, that of the weights."""
        return run_networks(self._rest(obs, dtype))[0]

    def with_head(self, obs: Tree, dtype: torch.dtype, head: nn.Module) -> Network:
        """Return `head(encoder(obs))` as one network for `run_networks`. Hooks are called all the same."""
        return (self(obs, dtype), (head,)) if is_watched(self) else self._rest(obs, dtype, head)

    def _rest(self, obs: Tree, dtype: torch.dtype, *head: nn.Module) -> Network:
        """Return the features of the space, and the layers that they still have to go through."""
        features, mlp = self.features(obs).to(dtype), self.mlp
        if self.features_are_shared:
            features = features.detach()
        if is_watched(mlp) or type(mlp) is not nn.Sequential:
            return mlp(features), head
        return features, (*mlp, *head)
