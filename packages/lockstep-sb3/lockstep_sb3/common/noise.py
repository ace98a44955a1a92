"""Noise on actions in [-1, 1]. A model takes its settings, which become those of `env_runners(exploration=)`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


class ActionNoise(ABC):
    """Base class of noise. A call returns the noise of one step."""

    @abstractmethod
    def __call__(self) -> np.ndarray:
        """Return the noise of one step, drawn by NumPy's global random numbers."""

    def reset(self) -> None:  # noqa: B027 - noise without a memory has nothing to do
        """Begin an episode."""


@dataclass
class NormalActionNoise(ActionNoise):
    """Normal noise that is independent in each step.

    Args:
        mean: Means `[A]` of the action's dimensions.
        sigma: Standard deviations `[A]`.
        dtype: Type of the noise that a call returns.
    """

    mean: Any
    sigma: Any
    dtype: Any = np.float32

    def __call__(self) -> np.ndarray:
        return np.asarray(np.random.normal(self.mean, self.sigma), self.dtype)  # noqa: NPY002


@dataclass
class OrnsteinUhlenbeckActionNoise(ActionNoise):
    """Ornstein-Uhlenbeck noise, which is correlated over steps. It starts at `initial_noise` in each episode.

    Args:
        mean: Means `[A]` to which the noise returns.
        sigma: Scales `[A]` of the random part.
        theta: Rate at which the noise returns to the mean.
        dt: Length of a step.
        initial_noise: Noise `[A]` before the first step. Defaults to 0.
        dtype: Type of the noise that a call returns.
    """

    mean: Any
    sigma: Any
    theta: float = 0.15
    dt: float = 1e-2
    initial_noise: Any = None
    dtype: Any = np.float32

    def __post_init__(self) -> None:
        self.noise_prev: np.ndarray
        """Noise of the last step."""
        self.reset()

    def __call__(self) -> np.ndarray:
        mean = np.asarray(self.mean, float)
        drift = self.theta * (mean - self.noise_prev) * self.dt
        kick = np.asarray(self.sigma) * np.sqrt(self.dt) * np.random.normal(size=mean.shape)  # noqa: NPY002
        self.noise_prev = self.noise_prev + drift + kick
        return self.noise_prev.astype(self.dtype)

    def reset(self) -> None:
        start = np.zeros_like(self.mean, float) if self.initial_noise is None else self.initial_noise
        self.noise_prev = np.asarray(start, float)


class VectorizedActionNoise(ActionNoise):
    """Noise of one kind for several environments, which is independent in each of them.

    Args:
        base_noise: Noise whose settings all environments have.
        n_envs: Number of environments.
    """

    def __init__(self, base_noise: NormalActionNoise | OrnsteinUhlenbeckActionNoise, n_envs: int) -> None:
        if n_envs < 1:
            raise ValueError(f"n_envs={n_envs} is not allowed; it must be at least 1")
        self.base_noise = base_noise
        self.n_envs = int(n_envs)
        settings = {name: value for name, value in vars(base_noise).items() if name != "noise_prev"}
        self.noises = [type(base_noise)(**settings) for _ in range(self.n_envs)]

    def __call__(self) -> np.ndarray:
        """Return the noise `[n_envs, A]` of one step."""
        return np.stack([noise() for noise in self.noises])

    def reset(self, indices: Sequence[int] | None = None) -> None:
        """Begin an episode in these environments; None: in all."""
        for index in range(self.n_envs) if indices is None else indices:
            self.noises[index].reset()
