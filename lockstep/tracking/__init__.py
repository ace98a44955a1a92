"""What a run writes: loggers, metrics, statistics, and the folder of the run."""

from typing import Any

from lockstep.state.moved import moved_name
from lockstep.tracking.jsonl import JsonlLogger
from lockstep.tracking.logger import BaseLogger, LazyLogger, MultiLogger, TraceLogger, torch_param_hash
from lockstep.tracking.metrics import Metrics
from lockstep.tracking.records import read_metrics, write_json
from lockstep.tracking.run_folder import RunFolder, RunFolderError, git_revision, prune_checkpoints, versions
from lockstep.tracking.run_lock import RunLock, RunLockError
from lockstep.tracking.statistics import (
    CollectStats,
    CollectStatsBase,
    EpochStats,
    InfoStats,
    MovAvg,
    RunningMeanStd,
    SequenceSummaryStats,
    TimingStats,
    TrainingStats,
    asdict,
)
from lockstep.tracking.tensorboard import TensorboardLogger
from lockstep.tracking.wandb_mlflow import MLflowLogger, WandbLogger

__all__ = [
    "BaseLogger",
    "CollectStats",
    "CollectStatsBase",
    "EpochStats",
    "InfoStats",
    "JsonlLogger",
    "LazyLogger",
    "MLflowLogger",
    "Metrics",
    "MovAvg",
    "MultiLogger",
    "RunFolder",
    "RunFolderError",
    "RunLock",
    "RunLockError",
    "RunningMeanStd",
    "SequenceSummaryStats",
    "TensorboardLogger",
    "TimingStats",
    "TraceLogger",
    "TrainingStats",
    "WandbLogger",
    "asdict",
    "git_revision",
    "prune_checkpoints",
    "read_metrics",
    "torch_param_hash",
    "versions",
    "write_json",
]

_MOVED = dict.fromkeys(
    (
        *("Comparison", "compare_runs", "compare_scores", "plot_runs", "read_curve", "write_report"),
        *("Interval", "bootstrap", "improvement_bootstrap", "iqm", "iqm_bootstrap", "iqm_difference_bootstrap"),
        *("performance_profile", "probability_of_improvement"),
    ),
    "lockstep.analysis",
)


def __getattr__(name: str) -> Any:
    """Find names that are in `lockstep.analysis` now."""
    return moved_name(__name__, name, _MOVED)
