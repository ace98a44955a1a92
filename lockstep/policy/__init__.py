"""`Policy`: how it acts and learns, its files, and modules that come and go."""

from lockstep.policy.policy import Policy, policy_within_training_step

__all__ = ["Policy", "policy_within_training_step"]
