"""TD3 and its policies."""

from lockstep_sb3.algorithms import TD3
from lockstep_sb3.td3.policies import CnnPolicy, MlpPolicy, MultiInputPolicy

__all__ = ["TD3", "CnnPolicy", "MlpPolicy", "MultiInputPolicy"]
