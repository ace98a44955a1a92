"""`BaseFeaturesExtractor`, the base of networks of one's own for the features of observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from torch import Tensor, nn

from lockstep.modules.encoders import channels_last, is_image


class BaseFeaturesExtractor(nn.Module):
    """Subclasses turn observations `[N, ...]` into features `[N, features_dim]`."""

    def __init__(self, observation_space: gym.Space, features_dim: int = 0) -> None:
        super().__init__()
        self._observation_space, self._features_dim = observation_space, features_dim

    @property
    def features_dim(self) -> int:
        """The number of features."""
        return self._features_dim


class FlattenExtractor(BaseFeaturesExtractor):
    """Takes the numbers as they are."""

    def __init__(self, observation_space: gym.Space) -> None:
        super().__init__(observation_space, spaces.flatdim(observation_space))

    def forward(self, observations: Tensor) -> Tensor:
        return observations.flatten(1)


class Prepared(nn.Module):
    """Hands observations to an extractor as it expects them: images with channels first and divided by 255; one-hot."""

    def __init__(self, space: gym.Space, extractor: Callable[..., Any], scales: bool = True, **kwargs: Any) -> None:
        super().__init__()
        self.space, self.scales, self.extractor = space, scales, extractor(turned(space), **kwargs)
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
            return obs / 255.0 if self.scales and (space.high == 255).all() else obs
        return obs.float()


def turned(space: Any) -> Any:
    """Return the space with the channels of images first."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: turned(part) for key, part in space.spaces.items()})
    if not is_image(space) or len(space.shape) != 3 or not channels_last(space.shape):
        return space
    return spaces.Box(space.low.transpose(2, 0, 1), space.high.transpose(2, 0, 1), dtype=space.dtype)
