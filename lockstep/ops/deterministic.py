"""Actions without chance, as a distribution: what TD3 and DDPG act with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, Self

import numpy as np
import torch
from torch import Tensor

from lockstep.ops.distributions import Distribution, FloatNoise


class SquashedDeterministic(Distribution):
    """`tanh` of the inputs; actions are floats in [-1, 1], `[N, A]`.

    Noise is what exploration adds to the action, which stays within [-1, 1] (Lillicrap et al. 2016, Fujimoto et al.
    2018). There is no density: `log_prob`, `entropy` and `kl` raise `TypeError`.
    """

    def __init__(self, inputs: Tensor) -> None:
        """`inputs` `[N, A]`, before the tanh."""
        self.inputs = inputs

    @classmethod
    def input_size(cls, *, size: int) -> int:
        return size

    @classmethod
    def from_inputs(cls, inputs: Tensor, *, size: int) -> Self:
        if inputs.shape[-1] != size:
            raise ValueError(f"{cls.__name__} needs {size} outputs for each row, got shape {tuple(inputs.shape)}")
        return cls(inputs)

    @classmethod
    def draw_noise(cls, rng: np.random.Generator, leading_shape: Sequence[int], *, size: int) -> FloatNoise:
        """Zeros: how much there is to explore is the algorithm's to say (`GaussianNoise`)."""
        return np.zeros((*leading_shape, size), np.float32)

    def log_prob(self, actions: Tensor) -> Tensor:
        return _no_density()

    def entropy(self) -> Tensor:
        return _no_density()

    def kl(self, other: Any) -> Tensor:
        return _no_density()

    def mode(self) -> Tensor:
        return torch.tanh(self.inputs)

    def sample_with_noise(self, noise: Tensor) -> Tensor:
        return (torch.tanh(self.inputs) + noise).clamp(-1.0, 1.0)

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        return self.mode()


def _no_density() -> NoReturn:
    raise TypeError("a deterministic policy has no density: no log_prob, entropy or kl")
