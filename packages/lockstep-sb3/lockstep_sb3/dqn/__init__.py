"""DQN and its policies."""

from lockstep_sb3.algorithms import DQN
from lockstep_sb3.dqn.policies import CnnPolicy, MlpPolicy, MultiInputPolicy

__all__ = ["DQN", "CnnPolicy", "MlpPolicy", "MultiInputPolicy"]
