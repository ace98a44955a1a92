"""`Recipe`: a full configuration of an algorithm for an environment, with the return that it should reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from lockstep.builder import AlgorithmConfig


@dataclass(frozen=True)
class Recipe:
    """Settings for one algorithm on one environment."""

    algorithm: str
    """Name of the algorithm, for example "ppo"."""
    env: str
    """Id of the environment."""
    config: Callable[[], AlgorithmConfig]
    """Function that returns a new configuration at each call, with the environment and `total_steps`."""
    reference_return: float
    """Mean return that another implementation has reached. For data of our own agents it is Lockstep's return."""
    reference_source: str
    """Source of the reference return, and the number of its steps."""
    total_steps: int
    """Number of environment steps of the run (offline: gradient steps)."""
    promise: float | None
    """Mean return that the worst of its seeds reached in the final evaluation, rounded down. None: no seed has run."""
    requires: str | None = None
    """Extra that the environment or its data need (`install_hint` says how to install it)."""
    is_for_long_runs: ClassVar[bool] = False
    """Whether the settings are for long runs only. Those of a recipe are for its `total_steps`."""

    @property
    def description(self) -> str:
        """The recipe as a source of settings, in words."""
        return f"the recipe for {self.algorithm} on {self.env} (reference return {self.reference_return:g})"


RL_ZOO = "RL Baselines3 Zoo, benchmark.md (one run, deterministic policy)"
