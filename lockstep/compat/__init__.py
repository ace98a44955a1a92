"""Doors from other libraries: names that their users import, on Lockstep's own functions."""

from lockstep.compat.sb3 import A2C, DQN, PPO, SAC, TD3, TQC

__all__ = ["A2C", "DQN", "PPO", "SAC", "TD3", "TQC"]
