"""The section of a configuration that says which environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from lockstep.envs.boundary import EnvLike
from lockstep.options.section import ConfigT, Section, option

if TYPE_CHECKING:
    from lockstep.envs.typed import EnvironmentOptions


@dataclass
class EnvironmentSection(Section[ConfigT]):
    """Which environment, and what its observations and actions go through."""

    name = "environment"
    shared = ("env",)  # a finished one is the caller's: what a copy of the configuration builds steps that very one

    env: Any = None
    """id, class, function that makes one, or an environment"""
    env_config: dict[str, Any] = option(factory=dict)
    """keyword arguments for making one environment"""
    observation_space: Any = None
    """`None`: asked of the environment"""
    action_space: Any = None
    """`None`: asked of the environment"""
    normalize_observations: bool = False
    """shift and scale by running statistics (part of the policy, frozen in evaluation)"""
    clip_observations: float = option(10.0, gt=0)
    """bound of normalised observations"""
    normalize_rewards: bool = False
    """scale by the running deviation of the discounted return, for learning only"""
    clip_rewards: float | None = option(10.0, gt=0)
    """bound of normalised rewards"""
    rescale_actions: bool = False
    """the policy's [-1, 1] means the bounds of the action space; SAC, TD3, CQL, IQL and TD3+BC always act so"""
    clip_actions: bool = True
    """continuous actions are clipped to the bounds before the environment sees them"""
    frame_stack: int = option(1, ge=1)
    """last observations on a new first axis, oldest first (images with channels: side by side along these), of a Dict
    each Box but the action mask; 1: off"""

    def __call__(self, env: EnvLike | None = None, **options: Unpack[EnvironmentOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options if env is None else {"env": env, **options})

    def validate(self) -> None:
        """Refuse a section without an environment or spaces."""
        if self.env is None and self.observation_space is None:
            raise ValueError('environment.env is not set; give an id such as "CartPole-v1", a class or a function')
