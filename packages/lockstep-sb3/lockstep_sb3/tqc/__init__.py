"""TQC and its policies."""

from lockstep_sb3.algorithms import TQC
from lockstep_sb3.tqc.policies import CnnPolicy, MlpPolicy, MultiInputPolicy

__all__ = ["TQC", "CnnPolicy", "MlpPolicy", "MultiInputPolicy"]
