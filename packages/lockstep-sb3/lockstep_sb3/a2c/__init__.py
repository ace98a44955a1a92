"""A2C and its policies."""

from lockstep_sb3.a2c.policies import CnnPolicy, MlpPolicy, MultiInputPolicy
from lockstep_sb3.algorithms import A2C

__all__ = ["A2C", "CnnPolicy", "MlpPolicy", "MultiInputPolicy"]
