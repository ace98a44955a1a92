"""`Recipe`: a full configuration with the return to expect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lockstep.builder import AlgorithmConfig


@dataclass(frozen=True)
class Recipe:
    """Settings for one algorithm on one environment."""

    algorithm: str
    """e.g. "ppo" """
    env: str
    """the environment's id"""
    config: Callable[[], AlgorithmConfig]
    """makes a new configuration at each call, environment and `total_steps` set"""
    reference_return: float
    """mean return that someone else's implementation reached; on data of our own agents: ours"""
    reference_source: str
    """who, and after how many steps"""
    total_steps: int
    """environment steps of the whole run; where data are there already: gradient steps"""
    promise: float | None
    """mean return that the worst of its seeds reached at the final evaluation, rounded down; None: they have not run"""
    requires: str | None = None
    """the extra that the environment or its data need (`install_hint` says how to install it)"""


RL_ZOO = "RL Baselines3 Zoo, benchmark.md (one run, deterministic policy)"
