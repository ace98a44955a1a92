"""Trainers: loops of collecting, learning and evaluating, which notify callbacks with events."""

from typing import Any

from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.state.moved import moved_name
from lockstep.trainer.base import BaseTrainer
from lockstep.trainer.build import build_trainer
from lockstep.trainer.callbacks import (
    Callback,
    CheckpointCallback,
    CheckpointSaved,
    CollectEnd,
    EarlyStop,
    EpochEnd,
    EvaluationEnd,
    Event,
    LoggingCallback,
    Profiler,
    RunEnd,
    RunStart,
    UpdateEnd,
)
from lockstep.trainer.display import ProgressDisplay
from lockstep.trainer.evaluation import gather_info, test_episode
from lockstep.trainer.offline import OfflineTrainer
from lockstep.trainer.offpolicy import OffpolicyTrainer
from lockstep.trainer.onpolicy import OnpolicyTrainer
from lockstep.trainer.self_play import Opponents, SelfPlay

save_trainer = BaseTrainer.save_to_path
restore_trainer = BaseTrainer.restore_from_path
# `config.build_trainer()` calls this function, but configurations are in a lower folder and cannot import it.
AlgorithmConfig.trainer_factory = staticmethod(build_trainer)

__all__ = [
    "BaseTrainer",
    "Callback",
    "CheckpointCallback",
    "CheckpointSaved",
    "CollectEnd",
    "EarlyStop",
    "EpochEnd",
    "EvaluationEnd",
    "Event",
    "LoggingCallback",
    "OfflineTrainer",
    "OffpolicyTrainer",
    "OnpolicyTrainer",
    "Opponents",
    "Profiler",
    "ProgressDisplay",
    "RunEnd",
    "RunStart",
    "SelfPlay",
    "UpdateEnd",
    "build_trainer",
    "gather_info",
    "restore_trainer",
    "save_trainer",
    "test_episode",
]

_MOVED = dict.fromkeys(("SeedBegun", "SeedEnded", "SeedProgress", "run_seeds"), "lockstep.runs")


def __getattr__(name: str) -> Any:
    """Find names that are in `lockstep.runs` now."""
    return moved_name(__name__, name, _MOVED)
