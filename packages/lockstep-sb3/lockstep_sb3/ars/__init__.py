"""ARS and its policies."""

from lockstep_sb3.ars.ars import ARS
from lockstep_sb3.ars.policies import ARSPolicy, LinearPolicy, MlpPolicy

__all__ = ["ARS", "ARSPolicy", "LinearPolicy", "MlpPolicy"]
