"""Policies of ARS of sb3-contrib."""

from lockstep_sb3.common.policies import NetworkPolicy


class ARSPolicy(NetworkPolicy):
    """Policy without values, with hidden layers."""


class LinearPolicy(ARSPolicy):
    """Policy without values and without hidden layers."""


class MlpPolicy(ARSPolicy):
    """`ARSPolicy` under the name that a model knows it by."""
