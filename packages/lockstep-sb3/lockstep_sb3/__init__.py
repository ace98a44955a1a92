"""Lockstep with the names of Stable-Baselines3: `from lockstep_sb3 import PPO` (docs/sb3.md)."""

import sys

from lockstep import __version__ as __version__
from lockstep_sb3 import algorithms, policies
from lockstep_sb3.algorithms import A2C, DQN, PPO, SAC, TD3, TQC

__all__ = ["A2C", "DQN", "PPO", "SAC", "TD3", "TQC"]

# Stable-Baselines3 has a module for each algorithm, such as `stable_baselines3.sac.policies`.
for name in ("a2c", "dqn", "ppo", "sac", "td3", "tqc"):
    sys.modules |= {f"{__name__}.{name}": algorithms, f"{__name__}.{name}.policies": policies}
sys.modules[f"{__name__}.common.policies"] = policies
