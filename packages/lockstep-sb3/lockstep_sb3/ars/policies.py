"""Policies of ARS of sb3-contrib."""

from lockstep_sb3.common.base_class import BasePolicy


class ARSPolicy(BasePolicy):
    """Policy without values, with hidden layers."""


class LinearPolicy(ARSPolicy):
    """Policy without values and without hidden layers."""


class MlpPolicy(ARSPolicy):
    """`ARSPolicy` under the name that a model knows it by."""
