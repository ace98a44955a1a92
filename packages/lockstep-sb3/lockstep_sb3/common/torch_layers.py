"""`BaseFeaturesExtractor`, the base of networks of one's own, and what `policy_kwargs` come to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from torch import Tensor, nn

from lockstep.modules import is_image

ACTIVATIONS = {nn.Tanh: "tanh", nn.ReLU: "relu", nn.GELU: "gelu", nn.SiLU: "silu", nn.ELU: "elu"}


class BaseFeaturesExtractor(nn.Module):
    """Subclasses turn observations `[N, ...]` into features `[N, features_dim]`."""

    def __init__(self, observation_space: gym.Space, features_dim: int = 0) -> None:
        super().__init__()
        self._observation_space, self._features_dim = observation_space, features_dim

    @property
    def features_dim(self) -> int:
        """The number of features."""
        return self._features_dim


class Prepared(nn.Module):
    """Hands observations to an extractor as it expects them: images with channels first and divided by 255; one-hot."""

    def __init__(self, space: gym.Space, extractor: Callable[..., Any], **kwargs: Any) -> None:
        super().__init__()
        self.space, self.extractor = space, extractor(turned(space), **kwargs)
        self.output_size = self.extractor.features_dim

    def forward(self, obs: Any) -> Tensor:
        features: Tensor = self.extractor(self._prepared(self.space, obs))
        return features

    def _prepared(self, space: Any, obs: Any) -> Any:
        if isinstance(space, spaces.Dict):
            return {key: self._prepared(part, obs[key]) for key, part in space.spaces.items()}
        if isinstance(space, spaces.Discrete):
            return nn.functional.one_hot((obs - int(space.start)).long(), int(space.n)).float()
        if is_image(space):
            obs = obs if turned(space) is space else obs.movedim(-1, -3)
            return obs / 255.0 if (space.high == 255).all() else obs
        return obs.float()


def channels_last(shape: Sequence[int]) -> bool:
    """Return whether the last of an image's three dimensions is its channels: the smaller of the first and the last."""
    return shape[-1] <= shape[0]


def _has_images(space: Any) -> bool:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return any(map(_has_images, parts))
    return is_image(space)


def turned(space: Any) -> Any:
    """Return the space with the channels of images first."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: turned(part) for key, part in space.spaces.items()})
    if not is_image(space) or len(space.shape) != 3 or not channels_last(space.shape):
        return space
    return spaces.Box(space.low.transpose(2, 0, 1), space.high.transpose(2, 0, 1), dtype=space.dtype)


def model_config_of(
    kwargs: dict[str, Any], space: gym.Space, *, is_cnn: bool, has_q: bool, widths: tuple[int, ...], activation: type
) -> dict[str, Any]:
    """Take out of `kwargs` what shapes networks, and return it as fields of `ModelConfig`.

    `widths`, `activation`: what an algorithm has by default; `has_q`: its critics have networks `Q(s, a)` of their own.
    """
    activation = kwargs.pop("activation_fn", activation)
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation_fn={activation} is not there; {[each.__name__ for each in ACTIVATIONS]} are")
    model: dict[str, Any] = {"activation": ACTIVATIONS[activation]}
    has_images, is_lone = _has_images(space), is_image(space)
    chosen = kwargs.pop("net_arch", () if is_cnn and not has_q else widths)
    by_part: dict[str, Any] = dict(chosen) if isinstance(chosen, dict) else {"pi": chosen, "vf": chosen}
    policy, critic = tuple(by_part.get("pi", ())), tuple(by_part.get("vf", by_part.get("qf", ())))
    if not has_q and policy != critic:
        raise ValueError(f"net_arch={chosen} is not allowed here; policy and value have the same widths")
    model["hiddens"] = policy
    extractor, options = kwargs.pop("features_extractor_class", None), dict(kwargs.pop("features_extractor_kwargs", {}))
    if extractor is not None:
        model |= {"encoder": Prepared, "encoder_config": {"extractor": extractor, **options}}
    elif is_lone and not is_cnn:
        raise ValueError("MlpPolicy takes no images; give CnnPolicy, or an environment with flat observations")
    elif is_lone:
        model["image_hiddens"] = (options.pop("features_dim", 512), *policy)
    elif has_images:
        model["image_hiddens"] = (options.pop("cnn_output_dim", 256),)
    if options and extractor is None:
        raise ValueError(f"features_extractor_kwargs={options} are not allowed without a features_extractor_class")
    if has_q:
        model["critic_hiddens"] = critic
    return model
