"""Policies of CrossQ of sb3-contrib."""

from lockstep_sb3.sac.policies import SACPolicy


class CrossQPolicy(SACPolicy):
    """Actor and critics of CrossQ, which has no target network, for observations that are vectors."""


MlpPolicy = CrossQPolicy


class CnnPolicy(CrossQPolicy):
    """`CrossQPolicy` for images."""


class MultiInputPolicy(CrossQPolicy):
    """`CrossQPolicy` for observations that are dicts."""
