"""Lockstep: reinforcement learning on PyTorch.

import lockstep
result = lockstep.train("ppo", "CartPole-v1", total_steps=100_000)
action = result.policy.compute_single_action(observation)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lockstep._version import __version__

if TYPE_CHECKING:
    from lockstep.algorithms import (
        ALGORITHMS,
        A2CConfig,
        AlgorithmConfig,
        APPOConfig,
        BCConfig,
        C51Config,
        CQLConfig,
        CrossQConfig,
        DistillationConfig,
        DQNConfig,
        FlashSACConfig,
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
    "DistillationConfig",
    "Estimate",
    "FlashSACConfig",
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

_MODULES = (
    "lockstep.algorithms",
    "lockstep.analysis.estimates",
    "lockstep.data.rollout",
    "lockstep.data.sample_batch",
    "lockstep.diagnosis",
    "lockstep.learner",
    "lockstep.modules",
    "lockstep.recipes.training",
    "lockstep.rollout",
    "lockstep.runs.run",
    "lockstep.trainer",
    "lockstep.tuning",
)
"""Modules that define the public names. Together they import every class that a configuration or a file may name."""


def __getattr__(name: str) -> Any:
    """Return the public object or the subpackage of this name (PEP 562).

    The first use of a public name imports the whole library; until then `import lockstep` costs nothing, so the command
    line can show its help without torch. Type checkers read the imports under `TYPE_CHECKING` instead.
    """
    if name in __all__:
        _load()
        return globals()[name]

    subpackage = f"{__name__}.{name}"
    try:
        return importlib.import_module(subpackage)
    except ModuleNotFoundError as error:
        # A subpackage that exists but lacks a dependency must say so, not look like a missing attribute.
        if error.name != subpackage:
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _load() -> None:
    """Put the public names into this module, each from the first module of `_MODULES` that has it."""
    objects: dict[str, Any] = {}
    for module in _MODULES:
        objects = {**vars(importlib.import_module(module)), **objects}

    globals().update({name: objects[name] for name in __all__ if name != "__version__"})
