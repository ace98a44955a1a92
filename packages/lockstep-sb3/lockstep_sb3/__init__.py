"""Lockstep with the names of Stable-Baselines3: `from lockstep_sb3 import PPO` (docs/sb3.md)."""

import sys

from lockstep import __version__ as __version__
from lockstep_sb3 import algorithms, policies, ppo_mask, ppo_recurrent
from lockstep_sb3.algorithms import A2C, DDPG, DQN, PPO, QRDQN, SAC, TD3, TQC, TRPO, CrossQ
from lockstep_sb3.ars import ARS
from lockstep_sb3.common.recurrent import policies as recurrent_policies
from lockstep_sb3.common.utils import get_system_info
from lockstep_sb3.her import HerReplayBuffer
from lockstep_sb3.ppo_mask import MaskablePPO
from lockstep_sb3.ppo_recurrent import RecurrentPPO

__all__ = ["A2C", "ARS", "DDPG", "DQN", "PPO", "QRDQN", "SAC", "TD3", "TQC", "TRPO", "CrossQ", "MaskablePPO"]
__all__ += ["HerReplayBuffer", "RecurrentPPO", "get_system_info"]

# Stable-Baselines3 and sb3-contrib have modules for each algorithm, such as `stable_baselines3.sac`,
# `stable_baselines3.sac.sac` and `stable_baselines3.sac.policies`.
for name in ("a2c", "crossq", "ddpg", "dqn", "ppo", "qrdqn", "sac", "td3", "tqc", "trpo"):
    module = f"{__name__}.{name}"
    sys.modules |= {module: algorithms, f"{module}.{name}": algorithms, f"{module}.policies": policies}
sys.modules[f"{__name__}.common.policies"] = policies
sys.modules[f"{__name__}.ppo_mask.ppo_mask"] = ppo_mask
sys.modules[f"{__name__}.ppo_mask.policies"] = policies
sys.modules[f"{__name__}.ppo_recurrent.ppo_recurrent"] = ppo_recurrent
sys.modules[f"{__name__}.ppo_recurrent.policies"] = recurrent_policies
