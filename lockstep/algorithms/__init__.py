"""Algorithms: one file for each, and the list of all."""

from lockstep.algorithms.a2c import A2CConfig, A2CLearner, A2CTraining
from lockstep.algorithms.appo import APPOConfig, APPOLearner, APPOTraining
from lockstep.algorithms.bc import BCConfig, BCLearner, BCTraining
from lockstep.algorithms.c51 import C51Config, C51Learner
from lockstep.algorithms.cql import CQLConfig, CQLLearner, CQLTraining
from lockstep.algorithms.crossq import CrossQConfig, CrossQLearner, CrossQTraining
from lockstep.algorithms.distillation import DistillationConfig, DistillationLearner, DistillationTraining
from lockstep.algorithms.dqn import DQNConfig, DQNLearner, DQNTraining
from lockstep.algorithms.flashsac import FlashSACConfig, FlashSACLearner, FlashSACTraining
from lockstep.algorithms.impala import IMPALAConfig, IMPALALearner
from lockstep.algorithms.iql import IQLConfig, IQLLearner, IQLTraining
from lockstep.algorithms.iqn import IQNConfig, IQNLearner, IQNTraining
from lockstep.algorithms.marwil import MARWILConfig, MARWILLearner, MARWILTraining
from lockstep.algorithms.munchausen_dqn import MunchausenDQNConfig, MunchausenDQNLearner, MunchausenDQNTraining
from lockstep.algorithms.ppo import PPOConfig, PPOLearner, PPOTraining
from lockstep.algorithms.pqn import PQNConfig, PQNLearner, PQNTraining
from lockstep.algorithms.qrdqn import QRDQNConfig, QRDQNLearner, QRDQNTraining
from lockstep.algorithms.rainbow import RainbowConfig, RainbowLearner
from lockstep.algorithms.reinforce import REINFORCEConfig, REINFORCELearner, REINFORCETraining
from lockstep.algorithms.sac import SACConfig, SACLearner
from lockstep.algorithms.td3 import TD3Config, TD3Learner, TD3Training
from lockstep.algorithms.td3_bc import TD3BCConfig, TD3BCLearner, TD3BCTraining
from lockstep.algorithms.tqc import TQCConfig, TQCLearner, TQCTraining
from lockstep.algorithms.trpo import TRPOConfig, TRPOLearner, TRPOTraining
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.policy.policy import Policy, policy_within_training_step

ALGORITHMS: tuple[type[AlgorithmConfig], ...] = (
    PPOConfig,
    A2CConfig,
    REINFORCEConfig,
    TRPOConfig,
    IMPALAConfig,
    APPOConfig,
    PQNConfig,
    DistillationConfig,
    DQNConfig,
    C51Config,
    QRDQNConfig,
    IQNConfig,
    RainbowConfig,
    MunchausenDQNConfig,
    BCConfig,
    MARWILConfig,
    CQLConfig,
    IQLConfig,
    TD3BCConfig,
    SACConfig,
    TQCConfig,
    CrossQConfig,
    FlashSACConfig,
    TD3Config,
)


def get_config(algorithm: str) -> AlgorithmConfig:
    """Return a configuration with the defaults of an algorithm.

    Raises:
        ValueError: there is no algorithm with this name. The message suggests the closest name.
    """
    config = AlgorithmConfig.of_algorithm(algorithm)
    assert isinstance(config, AlgorithmConfig)
    return config


__all__ = [
    "ALGORITHMS",
    "A2CConfig",
    "A2CLearner",
    "A2CTraining",
    "APPOConfig",
    "APPOLearner",
    "APPOTraining",
    "AlgorithmConfig",
    "BCConfig",
    "BCLearner",
    "BCTraining",
    "C51Config",
    "C51Learner",
    "CQLConfig",
    "CQLLearner",
    "CQLTraining",
    "CrossQConfig",
    "CrossQLearner",
    "CrossQTraining",
    "DQNConfig",
    "DQNLearner",
    "DQNTraining",
    "DistillationConfig",
    "DistillationLearner",
    "DistillationTraining",
    "FlashSACConfig",
    "FlashSACLearner",
    "FlashSACTraining",
    "IMPALAConfig",
    "IMPALALearner",
    "IQLConfig",
    "IQLLearner",
    "IQLTraining",
    "IQNConfig",
    "IQNLearner",
    "IQNTraining",
    "MARWILConfig",
    "MARWILLearner",
    "MARWILTraining",
    "MunchausenDQNConfig",
    "MunchausenDQNLearner",
    "MunchausenDQNTraining",
    "PPOConfig",
    "PPOLearner",
    "PPOTraining",
    "PQNConfig",
    "PQNLearner",
    "PQNTraining",
    "Policy",
    "QRDQNConfig",
    "QRDQNLearner",
    "QRDQNTraining",
    "REINFORCEConfig",
    "REINFORCELearner",
    "REINFORCETraining",
    "RainbowConfig",
    "RainbowLearner",
    "SACConfig",
    "SACLearner",
    "TD3BCConfig",
    "TD3BCLearner",
    "TD3BCTraining",
    "TD3Config",
    "TD3Learner",
    "TD3Training",
    "TQCConfig",
    "TQCLearner",
    "TQCTraining",
    "TRPOConfig",
    "TRPOLearner",
    "TRPOTraining",
    "get_config",
    "policy_within_training_step",
]
