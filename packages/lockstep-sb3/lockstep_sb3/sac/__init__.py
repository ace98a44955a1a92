"""SAC and its policies."""

from lockstep_sb3.algorithms import SAC
from lockstep_sb3.sac.policies import CnnPolicy, MlpPolicy, MultiInputPolicy

__all__ = ["SAC", "CnnPolicy", "MlpPolicy", "MultiInputPolicy"]
