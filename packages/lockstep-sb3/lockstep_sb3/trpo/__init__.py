"""TRPO and its policies."""

from lockstep_sb3.algorithms import TRPO
from lockstep_sb3.trpo.policies import CnnPolicy, MlpPolicy, MultiInputPolicy

__all__ = ["TRPO", "CnnPolicy", "MlpPolicy", "MultiInputPolicy"]
