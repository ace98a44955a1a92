"""Policies of DDPG, which are those of TD3."""

from lockstep_sb3.td3.policies import CnnPolicy as CnnPolicy
from lockstep_sb3.td3.policies import MlpPolicy as MlpPolicy
from lockstep_sb3.td3.policies import MultiInputPolicy as MultiInputPolicy
