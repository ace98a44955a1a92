"""`VecTransposeImage`: puts the channels of images first."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from lockstep_sb3.common.torch_layers import has_images, with_channels_first
from lockstep_sb3.common.vec_env.base_vec_env import VecEnv, VecEnvStepReturn, VecEnvWrapper


class VecTransposeImage(VecEnvWrapper):
    """Wrapper that puts the channels of images first, `[H, W, C]` to `[C, H, W]`, also those in a Dict.

    Args:
        venv: Vector environment to wrap.
        skip: Change nothing.

    Raises:
        ValueError: No observation is an image.
    """

    def __init__(self, venv: VecEnv, skip: bool = False) -> None:
        self.skip = skip
        self.raw_space = venv.observation_space
        if not has_images(self.raw_space) and not isinstance(self.raw_space, spaces.Dict):
            raise ValueError(f"VecTransposeImage takes images, or a Dict with images, not {self.raw_space}")
        super().__init__(venv, None if skip else with_channels_first(self.raw_space))

    @staticmethod
    def transpose_space(observation_space: spaces.Box, key: str = "") -> spaces.Box:
        """Return the space of an image with its channels first. `key` names it in the error for another space."""
        transposed: spaces.Box = with_channels_first(observation_space)
        if transposed is observation_space:
            raise ValueError(f"the observation space {key} {observation_space} is not an image with its channels last")
        return transposed

    @staticmethod
    def transpose_image(image: np.ndarray) -> np.ndarray:
        """Return an image or a batch of images with the channels first."""
        return np.moveaxis(image, -1, -3)

    def transpose_observations(self, observations: Any) -> Any:
        """Return observations with the channels of images first."""
        if self.skip:
            return observations
        return self._transposed(self.raw_space, observations)

    def _transposed(self, space: Any, observations: Any) -> Any:
        """Return the observations of a space with the channels of images first."""
        if isinstance(space, spaces.Dict):
            return {key: self._transposed(part, observations[key]) for key, part in space.spaces.items()}
        return observations if with_channels_first(space) is space else self.transpose_image(observations)

    def reset(self) -> Any:
        return self.transpose_observations(self.venv.reset())

    def step_wait(self) -> VecEnvStepReturn:
        obs, rewards, dones, infos = self.venv.step_wait()
        for row in np.flatnonzero(dones):
            infos[row]["terminal_observation"] = self.transpose_observations(infos[row]["terminal_observation"])
        return self.transpose_observations(obs), rewards, dones, infos
