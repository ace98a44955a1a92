"""Small environments for tests and examples, with the names of Stable-Baselines3 and sb3-contrib."""

from lockstep_sb3.common.envs.bit_flipping_env import BitFlippingEnv
from lockstep_sb3.common.envs.identity_env import (
    FakeImageEnv,
    IdentityEnv,
    IdentityEnvBox,
    IdentityEnvMultiBinary,
    IdentityEnvMultiDiscrete,
)
from lockstep_sb3.common.envs.invalid_actions_env import (
    InvalidActionEnvDiscrete,
    InvalidActionEnvMultiBinary,
    InvalidActionEnvMultiDiscrete,
)
from lockstep_sb3.common.envs.multi_input_envs import SimpleMultiObsEnv

__all__ = [
    "BitFlippingEnv",
    "FakeImageEnv",
    "IdentityEnv",
    "IdentityEnvBox",
    "IdentityEnvMultiBinary",
    "IdentityEnvMultiDiscrete",
    "InvalidActionEnvDiscrete",
    "InvalidActionEnvMultiBinary",
    "InvalidActionEnvMultiDiscrete",
    "SimpleMultiObsEnv",
]
