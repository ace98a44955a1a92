"""The section of a configuration about what is remembered, and how often it is learned from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lockstep.replay.hindsight import STRATEGIES
from lockstep.replay.priorities import schedule_of_beta
from lockstep.state.schedules import ScheduleLike
from lockstep.state.sections import Section


@dataclass
class ReplaySection(Section):
    """Options of the `replay` section; only algorithms that learn from a replay buffer have it."""

    capacity: int = 100_000
    """transitions that are remembered, over all environments"""
    learning_starts: int = 1_000
    """environment steps with random actions before the first gradient step"""
    update_per_step: float = 0.25
    """gradient steps for each collected step after that; fractions are carried over"""
    n_step: int = 1
    """rewards of so many steps are summed up before a target bootstraps"""
    prioritized: bool = False
    """draw transitions in proportion to their errors (Schaul et al. 2016)"""
    alpha: float = 0.6
    """how much errors matter when drawing; 0: not at all"""
    beta: ScheduleLike = field(default_factory=lambda: [[0, 0.4], [100_000, 1.0]])
    """how much of that the weights in the loss make up for: a number, or a schedule over steps remembered
    (offline: over gradient steps)"""
    her: bool = False
    """hindsight: learn from goals that were reached, too (Andrychowicz et al. 2017); the environment has
    `compute_reward` and observations with `achieved_goal` and `desired_goal`"""
    her_future_k: float = 4.0
    """goals that were reached for each one that was wanted"""
    her_strategy: Literal["future", "final", "episode"] = "future"
    """which goals: reached later in the episode, at its end, or anywhere in it"""
    ignore_obs_next: bool = False
    """store each observation once (half the memory; drawing takes a little longer)"""
    storage: Literal["memory", "memmap"] = "memory"
    """where: "memmap" in temporary files"""

    def validate(self) -> None:
        """Raises `ValueError` naming the option, its value and what is allowed."""
        rules = {
            "capacity": (self.capacity >= 1, "at least 1"),
            "learning_starts": (self.learning_starts >= 0, "at least 0"),
            "update_per_step": (self.update_per_step > 0, "above 0"),
            "n_step": (self.n_step >= 1, "at least 1"),
            "alpha": (self.alpha >= 0, "at least 0"),
            "her_future_k": (self.her_future_k >= 0, "at least 0"),
            "her_strategy": (self.her_strategy in STRATEGIES, "'future', 'final' or 'episode'"),
            "storage": (self.storage in ("memory", "memmap"), "'memory' or 'memmap'"),
        }
        for name, (right, allowed) in rules.items():
            if not right:
                raise ValueError(f"replay.{name}={getattr(self, name)!r} is not allowed; it must be {allowed}")
        schedule_of_beta(self.beta, "replay.beta")
