"""Noise on actions in [-1, 1]: settings, which become those of `env_runners(exploration=)`."""

from dataclasses import dataclass
from typing import Any


@dataclass
class NormalActionNoise:
    """Independent normal numbers."""

    mean: Any
    sigma: Any


@dataclass
class OrnsteinUhlenbeckActionNoise(NormalActionNoise):
    """A process that goes on from step to step, and begins at 0 with an episode."""

    theta: float = 0.15
    dt: float = 1e-2
