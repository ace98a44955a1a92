"""Settings of the noise on actions in [-1, 1], which become those of `env_runners(exploration=)`."""

from dataclasses import dataclass
from typing import Any


@dataclass
class NormalActionNoise:
    """Normal noise that is independent in each step."""

    mean: Any
    sigma: Any


@dataclass
class OrnsteinUhlenbeckActionNoise(NormalActionNoise):
    """Ornstein-Uhlenbeck noise, which is correlated over steps. It starts at 0 in each episode."""

    theta: float = 0.15
    dt: float = 1e-2
