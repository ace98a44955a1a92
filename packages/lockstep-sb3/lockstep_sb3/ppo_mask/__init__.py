"""MaskablePPO and its policies."""

from lockstep_sb3.ppo_mask.policies import CnnPolicy, MlpPolicy, MultiInputPolicy
from lockstep_sb3.ppo_mask.ppo_mask import MaskablePPO

__all__ = ["CnnPolicy", "MaskablePPO", "MlpPolicy", "MultiInputPolicy"]
