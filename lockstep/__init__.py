"""Lockstep: reinforcement learning on PyTorch.

import lockstep
result = lockstep.train("ppo", "CartPole-v1", total_steps=100_000)
action = result.policy.compute_single_action(observation)
"""

from lockstep._version import __version__
from lockstep.algorithms import (
    ALGORITHMS,
    A2CConfig,
    AlgorithmConfig,
    APPOConfig,
    BCConfig,
    C51Config,
    CQLConfig,
    CrossQConfig,
    DQNConfig,
    IMPALAConfig,
    IQLConfig,
    IQNConfig,
    MARWILConfig,
    MunchausenDQNConfig,
    Policy,
    PPOConfig,
    PQNConfig,
    QRDQNConfig,
    RainbowConfig,
    REINFORCEConfig,
    SACConfig,
    TD3BCConfig,
    TD3Config,
    TQCConfig,
    TRPOConfig,
    get_config,
    policy_within_training_step,
)
from lockstep.analysis.estimates import Estimate, estimate
from lockstep.data.rollout import RolloutStore
from lockstep.data.sample_batch import SampleBatch
from lockstep.diagnosis import doctor
from lockstep.learner import Learner, LearnerGroup
from lockstep.modules import ModelConfig, MultiRLModule, MultiRLModuleSpec, RLModule, RLModuleSpec
from lockstep.recipes.training import train
from lockstep.rollout import AsyncCollector, Collector, MultiAgentCollector
from lockstep.runs.run import TrainResult, load_policy, resume
from lockstep.trainer import BaseTrainer, OfflineTrainer, OffpolicyTrainer, OnpolicyTrainer
from lockstep.tuning import tune

__all__ = [
    "ALGORITHMS",
    "A2CConfig",
    "APPOConfig",
    "AlgorithmConfig",
    "AsyncCollector",
    "BCConfig",
    "BaseTrainer",
    "C51Config",
    "CQLConfig",
    "Collector",
    "CrossQConfig",
    "DQNConfig",
    "Estimate",
    "IMPALAConfig",
    "IQLConfig",
    "IQNConfig",
    "Learner",
    "LearnerGroup",
    "MARWILConfig",
    "ModelConfig",
    "MultiAgentCollector",
    "MultiRLModule",
    "MultiRLModuleSpec",
    "MunchausenDQNConfig",
    "OfflineTrainer",
    "OffpolicyTrainer",
    "OnpolicyTrainer",
    "PPOConfig",
    "PQNConfig",
    "Policy",
    "QRDQNConfig",
    "REINFORCEConfig",
    "RLModule",
    "RLModuleSpec",
    "RainbowConfig",
    "RolloutStore",
    "SACConfig",
    "SampleBatch",
    "TD3BCConfig",
    "TD3Config",
    "TQCConfig",
    "TRPOConfig",
    "TrainResult",
    "__version__",
    "doctor",
    "estimate",
    "get_config",
    "load_policy",
    "policy_within_training_step",
    "resume",
    "train",
    "tune",
]
