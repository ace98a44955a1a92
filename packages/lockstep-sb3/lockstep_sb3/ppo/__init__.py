"""PPO and its policies."""

from lockstep_sb3.algorithms import PPO
from lockstep_sb3.ppo.policies import CnnPolicy, MlpPolicy, MultiInputPolicy

__all__ = ["PPO", "CnnPolicy", "MlpPolicy", "MultiInputPolicy"]
