"""`BaseFeaturesExtractor`, the base class of users' networks, and the translation of `policy_kwargs`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from torch import Tensor, nn

from lockstep.modules import is_image
from lockstep_sb3.common.moved import moved_name

ACTIVATIONS: dict[type, str] = {nn.Tanh: "tanh", nn.ReLU: "relu", nn.GELU: "gelu", nn.SiLU: "silu", nn.ELU: "elu"}
"""Names of activations in Lockstep, by their torch class."""


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


class Prepared(nn.Module):
    """Encoder that calls a features extractor with observations in the form of Stable-Baselines3.

    Images have their channels first, and values up to 255 are divided by 255. Discrete observations are one-hot.
    """

    def __init__(self, space: gym.Space, extractor: Callable[..., Any], **kwargs: Any) -> None:
        super().__init__()
        self.space = space
        self.extractor = extractor(with_channels_first(space), **kwargs)
        self.output_size = self.extractor.features_dim

    def forward(self, obs: Any) -> Tensor:
        features: Tensor = self.extractor(self._prepared(self.space, obs))
        return features

    def _prepared(self, space: Any, obs: Any) -> Any:
        """Return observations of a space, or of a part of a dict, in that form."""
        if isinstance(space, spaces.Dict):
            return {key: self._prepared(part, obs[key]) for key, part in space.spaces.items()}
        if isinstance(space, spaces.Discrete):
            return nn.functional.one_hot((obs - int(space.start)).long(), int(space.n)).float()
        if is_image(space):
            obs = obs if with_channels_first(space) is space else obs.movedim(-1, -3)
            return obs / 255.0 if (space.high == 255).all() else obs
        return obs.float()


def channels_last(shape: Sequence[int]) -> bool:
    """Return whether the channels are the last of an image's three dimensions: that one is the smaller of both ends."""
    return shape[-1] <= shape[0]


def has_images(space: Any) -> bool:
    """Return whether a space is an image, or has one inside."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return any(map(has_images, parts))
    return is_image(space)


def with_channels_first(space: Any) -> Any:
    """Return the space with the channels of images first; the same object if nothing changes."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: with_channels_first(part) for key, part in space.spaces.items()})
    if not is_image(space) or len(space.shape) != 3 or not channels_last(space.shape):
        return space
    return spaces.Box(space.low.transpose(2, 0, 1), space.high.transpose(2, 0, 1), dtype=space.dtype)


def model_config_of(
    kwargs: dict[str, Any], space: gym.Space, *, is_cnn: bool, has_q: bool, widths: tuple[int, ...], activation: type
) -> dict[str, Any]:
    """Remove the settings of networks from `kwargs`, and return them as fields of `ModelConfig`.

    Args:
        kwargs: Keywords of the policy (`policy_kwargs`), which are changed.
        space: Observation space.
        is_cnn: Whether the policy is `CnnPolicy`.
        has_q: Whether critics Q(s, a) have separate networks.
        widths: Default widths of the hidden layers.
        activation: Default activation.
    """
    activation = kwargs.pop("activation_fn", activation)
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation_fn={activation} is not there; {[each.__name__ for each in ACTIVATIONS]} are")
    model: dict[str, Any] = {"activation": ACTIVATIONS[activation]}

    # Widths of the layers after the convolutions or the extractor.
    net_arch = kwargs.pop("net_arch", () if is_cnn and not has_q else widths)
    by_part: dict[str, Any] = dict(net_arch) if isinstance(net_arch, dict) else {"pi": net_arch, "vf": net_arch}
    policy = tuple(by_part.get("pi", ()))
    critic = tuple(by_part.get("vf", by_part.get("qf", ())))
    if not has_q and policy != critic:
        raise ValueError(f"net_arch={net_arch} is not allowed here; policy and value have the same widths")
    model["hiddens"] = policy

    # Network before these layers: the user's own extractor, or Lockstep's convolutions for images.
    extractor = kwargs.pop("features_extractor_class", None)
    options = dict(kwargs.pop("features_extractor_kwargs", {}))
    if extractor is not None:
        model |= {"encoder": Prepared, "encoder_config": {"extractor": extractor, **options}}
    elif is_image(space) and not is_cnn:
        raise ValueError("MlpPolicy takes no images; give CnnPolicy, or an environment with flat observations")
    elif is_image(space):
        model["image_hiddens"] = (options.pop("features_dim", 512), *policy)
    elif has_images(space):
        model["image_hiddens"] = (options.pop("cnn_output_dim", 256),)
    if options and extractor is None:
        raise ValueError(f"features_extractor_kwargs={options} are not allowed without a features_extractor_class")
    if has_q:
        model["critic_hiddens"] = critic
    return model


_MOVED = {
    "turned": "lockstep_sb3.common.torch_layers:with_channels_first",
}
"""Places of names that have changed."""


def __getattr__(name: str) -> Any:
    """Return an object by its old name."""
    return moved_name(__name__, name, _MOVED)
