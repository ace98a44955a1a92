"""Wrappers of environments, with the names of `sb3_contrib.common.wrappers`."""

from lockstep_sb3.common.wrappers.action_masker import ActionMasker
from lockstep_sb3.common.wrappers.time_feature import TimeFeatureWrapper

__all__ = ["ActionMasker", "TimeFeatureWrapper"]
