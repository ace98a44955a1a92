"""Algorithms: one file each, and the list of them."""

from lockstep.algorithms.a2c import A2CConfig, A2CLearner
from lockstep.algorithms.appo import APPOConfig, APPOLearner
from lockstep.algorithms.bc import BCConfig, BCLearner
from lockstep.algorithms.c51 import C51Config, C51Learner
from lockstep.algorithms.config import AlgorithmConfig
from lockstep.algorithms.cql import CQLConfig, CQLLearner
from lockstep.algorithms.crossq import CrossQConfig, CrossQLearner
from lockstep.algorithms.dqn import DQNConfig, DQNLearner
from lockstep.algorithms.impala import IMPALAConfig, IMPALALearner
from lockstep.algorithms.iql import IQLConfig, IQLLearner
from lockstep.algorithms.iqn import IQNConfig, IQNLearner
from lockstep.algorithms.marwil import MARWILConfig, MARWILLearner
from lockstep.algorithms.policy import Policy, policy_within_training_step
from lockstep.algorithms.ppo import PPOConfig, PPOLearner
from lockstep.algorithms.pqn import PQNConfig, PQNLearner
from lockstep.algorithms.qrdqn import QRDQNConfig, QRDQNLearner
from lockstep.algorithms.rainbow import RainbowConfig, RainbowLearner
from lockstep.algorithms.reinforce import REINFORCEConfig, REINFORCELearner
from lockstep.algorithms.sac import SACConfig, SACLearner
from lockstep.algorithms.td3 import TD3Config, TD3Learner
from lockstep.algorithms.td3_bc import TD3BCConfig, TD3BCLearner
from lockstep.algorithms.tqc import TQCConfig, TQCLearner
from lockstep.algorithms.trpo import TRPOConfig, TRPOLearner

ALGORITHMS: tuple[type[AlgorithmConfig], ...] = (
    PPOConfig,
    A2CConfig,
    REINFORCEConfig,
    TRPOConfig,
    IMPALAConfig,
    APPOConfig,
    PQNConfig,
    DQNConfig,
    C51Config,
    QRDQNConfig,
    IQNConfig,
    RainbowConfig,
    BCConfig,
    MARWILConfig,
    CQLConfig,
    IQLConfig,
    TD3BCConfig,
    SACConfig,
    TQCConfig,
    CrossQConfig,
    TD3Config,
)


def get_config(algorithm: str) -> AlgorithmConfig:
    """A configuration with the algorithm's defaults; `ValueError` with a suggestion for an unknown name."""
    config = AlgorithmConfig.of_algorithm(algorithm)
    assert isinstance(config, AlgorithmConfig)
    return config


__all__ = [
    "ALGORITHMS",
    "A2CConfig",
    "A2CLearner",
    "APPOConfig",
    "APPOLearner",
    "AlgorithmConfig",
    "BCConfig",
    "BCLearner",
    "C51Config",
    "C51Learner",
    "CQLConfig",
    "CQLLearner",
    "CrossQConfig",
    "CrossQLearner",
    "DQNConfig",
    "DQNLearner",
    "IMPALAConfig",
    "IMPALALearner",
    "IQLConfig",
    "IQLLearner",
    "IQNConfig",
    "IQNLearner",
    "MARWILConfig",
    "MARWILLearner",
    "PPOConfig",
    "PPOLearner",
    "PQNConfig",
    "PQNLearner",
    "Policy",
    "QRDQNConfig",
    "QRDQNLearner",
    "REINFORCEConfig",
    "REINFORCELearner",
    "RainbowConfig",
    "RainbowLearner",
    "SACConfig",
    "SACLearner",
    "TD3BCConfig",
    "TD3BCLearner",
    "TD3Config",
    "TD3Learner",
    "TQCConfig",
    "TQCLearner",
    "TRPOConfig",
    "TRPOLearner",
    "get_config",
    "policy_within_training_step",
]
