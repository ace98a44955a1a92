"""QRDQN and its policies."""

from lockstep_sb3.algorithms import QRDQN
from lockstep_sb3.qrdqn.policies import CnnPolicy, MlpPolicy, MultiInputPolicy

__all__ = ["QRDQN", "CnnPolicy", "MlpPolicy", "MultiInputPolicy"]
