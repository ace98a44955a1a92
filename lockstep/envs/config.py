"""Configuration section about the environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from lockstep.envs.boundary import EnvLike
from lockstep.options.section import ConfigT, Section, option

if TYPE_CHECKING:
    from lockstep.envs.typed import EnvironmentOptions


@dataclass
class EnvironmentSection(Section[ConfigT]):
    """Environment of a run, and the transforms of its observations, rewards and actions."""

    name = "environment"
    # A finished environment belongs to the caller: a copy of the configuration must step the same object.
    shared = ("env",)

    env: Any = None
    """Environment: an id, a class, a function that makes one, or a finished environment."""
    env_config: dict[str, Any] = option(factory=dict)
    """Keyword arguments for making one environment."""
    observation_space: Any = None
    """Observation space. By default it is taken from the environment."""
    action_space: Any = None
    """Action space. By default it is taken from the environment."""
    normalize_observations: bool = False
    """Shift and scale observations by running statistics. They are part of the policy, and frozen in evaluation."""
    clip_observations: float = option(10.0, gt=0)
    """Largest absolute value of normalised observations."""
    normalize_rewards: bool = False
    """Divide rewards by the running deviation of the discounted return, for learning only."""
    clip_rewards: float | None = option(10.0, gt=0)
    """Largest absolute value of normalised rewards. None: not clipped."""
    rescale_actions: bool = False
    """Map the policy's range [-1, 1] to the bounds of the action space. SAC, TD3, CQL, IQL and TD3+BC always do so."""
    clip_actions: bool = True
    """Clip continuous actions to the bounds of the action space before the environment receives them."""
    frame_stack: int = option(1, ge=1)
    """Number of newest observations to stack on a new first axis, oldest first. Images with channels are stacked along
    the channels, and a Dict has each of its Boxes stacked except for the action mask. 1: no stacking."""

    def __call__(self, env: EnvLike | None = None, **options: Unpack[EnvironmentOptions]) -> ConfigT:
        """Set options and return the configuration."""
        return self.change(options if env is None else {"env": env, **options})

    def validate(self) -> None:
        """Raise `ValueError` if there is neither an environment nor an observation space."""
        if self.env is None and self.observation_space is None:
            raise ValueError('environment.env is not set; give an id such as "CartPole-v1", a class or a function')
