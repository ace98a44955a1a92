"""Small environments for tests and examples, with the names of those in `sb3_contrib.common.envs`."""

from lockstep_sb3.common.envs.invalid_actions_env import (
    InvalidActionEnvDiscrete,
    InvalidActionEnvMultiBinary,
    InvalidActionEnvMultiDiscrete,
)

__all__ = ["InvalidActionEnvDiscrete", "InvalidActionEnvMultiBinary", "InvalidActionEnvMultiDiscrete"]
