"""Lockstep with the names of Stable-Baselines3: `from lockstep_sb3 import PPO` (docs/sb3.md)."""

from lockstep import __version__ as __version__
from lockstep_sb3.algorithms import A2C, DDPG, DQN, PPO, QRDQN, SAC, TD3, TQC, TRPO, CrossQ
from lockstep_sb3.ars import ARS
from lockstep_sb3.common.utils import get_system_info
from lockstep_sb3.her import HerReplayBuffer
from lockstep_sb3.ppo_mask import MaskablePPO
from lockstep_sb3.ppo_recurrent import RecurrentPPO

__all__ = ["A2C", "ARS", "DDPG", "DQN", "PPO", "QRDQN", "SAC", "TD3", "TQC", "TRPO", "CrossQ", "MaskablePPO"]
__all__ += ["HerReplayBuffer", "RecurrentPPO", "get_system_info"]
