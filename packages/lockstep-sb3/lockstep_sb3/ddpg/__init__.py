"""DDPG and its policies."""

from lockstep_sb3.algorithms import DDPG
from lockstep_sb3.ddpg.policies import CnnPolicy, MlpPolicy, MultiInputPolicy

__all__ = ["DDPG", "CnnPolicy", "MlpPolicy", "MultiInputPolicy"]
