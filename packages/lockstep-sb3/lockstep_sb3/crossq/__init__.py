"""CrossQ and its policies."""

from lockstep_sb3.algorithms import CrossQ
from lockstep_sb3.crossq.policies import CnnPolicy, MlpPolicy, MultiInputPolicy

__all__ = ["CnnPolicy", "CrossQ", "MlpPolicy", "MultiInputPolicy"]
