"""Networks that programs import or subclass: extractors of features, and multi-layer perceptrons."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import torch
from gymnasium import spaces
from torch import Tensor, nn

from lockstep_sb3.common.moved import moved_name
from lockstep_sb3.common.preprocessing import (
    get_flattened_obs_dim,
    is_image_space,
    is_image_space_channels_first,
    preprocess_obs,
)

NetArch = Sequence[int] | Mapping[str, Sequence[int]]
"""Widths of hidden layers: the same for all networks, or by the name of the network ("pi", "vf" or "qf")."""


class BaseFeaturesExtractor(nn.Module):
    """Base class of networks that map observations `[N, ...]` to features `[N, features_dim]`."""

    def __init__(self, observation_space: gym.Space, features_dim: int = 0) -> None:
        super().__init__()
        self._observation_space = observation_space
        self._features_dim = features_dim

    @property
    def features_dim(self) -> int:
        """Number of features."""
        return self._features_dim


class FlattenExtractor(BaseFeaturesExtractor):
    """Extractor without parameters, which flattens observations."""

    def __init__(self, observation_space: gym.Space) -> None:
        super().__init__(observation_space, get_flattened_obs_dim(observation_space))
        self.flatten = nn.Flatten()

    def forward(self, observations: Tensor) -> Tensor:
        flat: Tensor = self.flatten(observations)
        return flat


class NatureCNN(BaseFeaturesExtractor):
    """Convolutions of Mnih et al. 2015, and a dense layer, for images with their channels first.

    Args:
        observation_space: Space of the images, of at least 36 x 36 pixels.
        features_dim: Number of features.
        normalized_image: Accept images of other numbers than bytes.

    Raises:
        ValueError: The space is not of images.
    """

    def __init__(self, observation_space: gym.Space, features_dim: int = 512, normalized_image: bool = False) -> None:
        if not is_image_space(observation_space, normalized_image=normalized_image):
            raise ValueError(
                f"NatureCNN takes images, bytes [channels, height, width] from 0 to 255, not {observation_space}; use "
                "MlpPolicy, or normalized_image=True"
            )
        super().__init__(observation_space, features_dim)
        shape = observation_space.shape or ()
        self.cnn = nn.Sequential(
            nn.Conv2d(shape[0], 32, kernel_size=8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, kernel_size=4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, kernel_size=3, stride=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        with torch.no_grad():
            flat_size = self.cnn(torch.zeros(1, *shape)).shape[1]
        self.linear = nn.Sequential(nn.Linear(flat_size, features_dim), nn.ReLU())

    def forward(self, observations: Tensor) -> Tensor:
        # Convolutions are faster in this memory format.
        images = observations.contiguous(memory_format=torch.channels_last)
        features: Tensor = self.linear(self.cnn(images))
        return features


class CombinedExtractor(BaseFeaturesExtractor):
    """Extractor for observations that are dicts: convolutions for images, everything else is flattened.

    Args:
        observation_space: Space of the observations.
        cnn_output_dim: Number of features of each image.
        normalized_image: Accept images of other numbers than bytes.
    """

    def __init__(
        self, observation_space: spaces.Dict, cnn_output_dim: int = 256, normalized_image: bool = False
    ) -> None:
        extractors: dict[str, BaseFeaturesExtractor] = {}
        for name, space in observation_space.spaces.items():
            if is_image_space(space, normalized_image=normalized_image):
                extractors[name] = NatureCNN(space, cnn_output_dim, normalized_image)
            else:
                extractors[name] = FlattenExtractor(space)
        super().__init__(observation_space, sum(each.features_dim for each in extractors.values()))
        self.extractors = nn.ModuleDict(extractors)

    def forward(self, observations: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([extractor(observations[name]) for name, extractor in self.extractors.items()], dim=1)


def create_mlp(
    input_dim: int,
    output_dim: int,
    net_arch: Sequence[int],
    activation_fn: type[nn.Module] = nn.ReLU,
    squash_output: bool = False,
    with_bias: bool = True,
    pre_linear_modules: Sequence[Callable[[int], nn.Module]] | None = None,
    post_linear_modules: Sequence[Callable[[int], nn.Module]] | None = None,
) -> list[nn.Module]:
    """Return the layers of a multi-layer perceptron.

    Args:
        input_dim: Number of inputs.
        output_dim: Number of outputs. 0 or less ends with the last hidden layer.
        net_arch: Widths of the hidden layers.
        activation_fn: Class of the activation after each hidden layer.
        squash_output: Put tanh after the last layer.
        with_bias: Give linear layers a bias.
        pre_linear_modules: Classes of layers, such as `nn.BatchNorm1d`, before each linear layer, for its inputs.
        post_linear_modules: Classes of layers after each linear layer of a hidden layer, for its outputs.
    """
    before = list(pre_linear_modules or ())
    after = list(post_linear_modules or ())
    layers: list[nn.Module] = []
    size = input_dim
    for width in net_arch:
        layers += [make(size) for make in before]
        layers.append(nn.Linear(size, width, bias=with_bias))
        layers += [make(width) for make in after]
        layers.append(activation_fn())
        size = width
    if output_dim > 0:
        layers += [make(size) for make in before]
        layers.append(nn.Linear(size, output_dim, bias=with_bias))
    if squash_output:
        layers.append(nn.Tanh())
    return layers


class MlpExtractor(nn.Module):
    """Hidden layers of a policy and of a value function, both above the same features.

    Args:
        feature_dim: Number of features.
        net_arch: Widths of the hidden layers, for both or by the names "pi" and "vf".
        activation_fn: Class of the activation.
        device: Device of the layers. "auto" leaves them where torch makes them.
    """

    def __init__(
        self,
        feature_dim: int,
        net_arch: NetArch,
        activation_fn: type[nn.Module],
        device: torch.device | str = "auto",
    ) -> None:
        super().__init__()
        policy_widths, value_widths = widths_by_name(net_arch, "vf")
        self.policy_net = nn.Sequential(*create_mlp(feature_dim, 0, policy_widths, activation_fn))
        self.value_net = nn.Sequential(*create_mlp(feature_dim, 0, value_widths, activation_fn))
        self.latent_dim_pi = policy_widths[-1] if policy_widths else feature_dim
        self.latent_dim_vf = value_widths[-1] if value_widths else feature_dim
        if str(device) != "auto":
            self.to(device)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the last hidden layers `[N, latent_dim_pi]` and `[N, latent_dim_vf]`."""
        return self.forward_actor(features), self.forward_critic(features)

    def forward_actor(self, features: Tensor) -> Tensor:
        """Return the policy's last hidden layer."""
        latent: Tensor = self.policy_net(features)
        return latent

    def forward_critic(self, features: Tensor) -> Tensor:
        """Return the value function's last hidden layer."""
        latent: Tensor = self.value_net(features)
        return latent


def in_new_form(net_arch: Any) -> Any:
    """Return `net_arch` without the list that older programs put around a dict, with a warning."""
    if isinstance(net_arch, list | tuple) and len(net_arch) == 1 and isinstance(net_arch[0], Mapping):
        warnings.warn(
            f"net_arch={net_arch} has the form of Stable-Baselines3 1.7; give the dict without a list: {net_arch[0]}",
            stacklevel=2,
        )
        return net_arch[0]
    return net_arch


def widths_by_name(net_arch: Any, critic: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the widths of the policy and of the other network.

    Args:
        net_arch: Widths for both networks, or a dict of widths by name. A name that is missing has no hidden layers.
        critic: Name of the other network, "vf" or "qf".

    Raises:
        ValueError: `net_arch` has another form or other names.
    """
    net_arch = in_new_form(net_arch)
    allowed = f"a list of widths, or a dict with 'pi' and {critic!r}"
    if isinstance(net_arch, Mapping):
        unknown = sorted(set(net_arch) - {"pi", critic})
        if unknown:
            raise ValueError(f"net_arch={net_arch} has {unknown}; it must be {allowed}")
        parts = [net_arch.get("pi", ()), net_arch.get(critic, ())]
    else:
        parts = [net_arch, net_arch]
    for part in parts:
        if not isinstance(part, list | tuple) or not all(isinstance(width, int) for width in part):
            raise ValueError(
                f"net_arch={net_arch} is not allowed; it must be {allowed} (layers that policy and value share are the "
                "features extractor)"
            )
    return tuple(parts[0]), tuple(parts[1])


def get_actor_critic_arch(net_arch: NetArch) -> tuple[list[int], list[int]]:
    """Return the widths of the policy and of the critics (name "qf")."""
    policy, critic = widths_by_name(net_arch, "qf")
    return list(policy), list(critic)


class Prepared(nn.Module):
    """Encoder that calls a features extractor with observations in the form of Stable-Baselines3.

    Images have their channels first, and bytes are divided by 255. Choices are one-hot.

    Args:
        space: Space of the environment's observations.
        extractor: Class of the features extractor.
        normalize_images: Divide images by 255.
        **kwargs: Keyword arguments of the class.
    """

    def __init__(
        self, space: gym.Space, extractor: Callable[..., Any], normalize_images: bool = True, **kwargs: Any
    ) -> None:
        super().__init__()
        self.space = space
        self.normalize_images = normalize_images
        self.extractor = extractor(with_channels_first(space), **kwargs)
        self.output_size = self.extractor.features_dim

    def forward(self, obs: Any) -> Tensor:
        features: Tensor = self.extractor(prepared(obs, self.space, self.normalize_images))
        return features


def prepared(obs: Any, space: gym.Space, normalize_images: bool = True) -> Any:
    """Return a batch of the environment's observations in the form that a features extractor gets.

    Args:
        obs: Tensors of observations of `space`. Images may also have their channels first.
        space: Space of one observation.
        normalize_images: Divide images by 255.
    """
    return preprocess_obs(move_channels_first(obs, space), with_channels_first(space), normalize_images)


def move_channels_first(obs: Any, space: Any) -> Any:
    """Return a batch of the environment's observations with the channels of images first.

    Args:
        obs: Tensors of observations of `space`. Images that have their channels first already are unchanged.
        space: Space of one observation.
    """
    if isinstance(space, spaces.Dict):
        return {name: move_channels_first(obs[name], part) for name, part in space.spaces.items()}
    is_last = with_channels_first(space) is not space and tuple(obs.shape[-3:]) == space.shape
    return obs.movedim(-1, -3) if is_last else obs


def with_channels_first(space: Any) -> Any:
    """Return the space with the channels of images first; the same object if nothing changes."""
    if isinstance(space, spaces.Dict):
        parts = {key: with_channels_first(part) for key, part in space.spaces.items()}
        is_same = all(parts[key] is part for key, part in space.spaces.items())
        return space if is_same else spaces.Dict(parts)
    if not is_image_space(space) or is_image_space_channels_first(space):
        return space
    return spaces.Box(space.low.transpose(2, 0, 1), space.high.transpose(2, 0, 1), dtype=space.dtype)


def channels_last(shape: Sequence[int]) -> bool:
    """Return whether the channels are the last of an image's three dimensions: that one is the smaller of both ends."""
    return shape[-1] <= shape[0]


def has_images(space: Any) -> bool:
    """Return whether a space is an image, or has one inside."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return any(map(has_images, parts))
    return is_image_space(space)


_MOVED = {
    "ACTIVATIONS": "lockstep_sb3.common.model_config:ACTIVATIONS",
    "model_config_of": "lockstep_sb3.common.model_config:model_config_of",
    "turned": "lockstep_sb3.common.torch_layers:with_channels_first",
}
"""Places of names that have changed."""


def __getattr__(name: str) -> Any:
    """Return an object by its old name."""
    return moved_name(__name__, name, _MOVED)
