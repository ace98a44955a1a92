"""What watches a run: loggers, run folders, statistics over runs, plots."""

from lockstep.tracking.jsonl import JsonlLogger
from lockstep.tracking.logger import BaseLogger, LazyLogger, MultiLogger
from lockstep.tracking.mlflow import MLflowLogger
from lockstep.tracking.moving import MovAvg, RunningMeanStd
from lockstep.tracking.plots import plot_runs, read_curve
from lockstep.tracking.records import read_metrics, write_json
from lockstep.tracking.run_folder import RunFolder, RunFolderError, git_revision, prune_checkpoints, versions
from lockstep.tracking.statistics import (
    CollectStats,
    CollectStatsBase,
    EpochStats,
    InfoStats,
    SequenceSummaryStats,
    TimingStats,
    TrainingStats,
    asdict,
)
from lockstep.tracking.stats import IqmInterval, iqm, iqm_bootstrap
from lockstep.tracking.tensorboard import TensorboardLogger
from lockstep.tracking.trace import TraceLogger, torch_param_hash
from lockstep.tracking.wandb import WandbLogger

__all__ = [
    "BaseLogger",
    "CollectStats",
    "CollectStatsBase",
    "EpochStats",
    "InfoStats",
    "IqmInterval",
    "JsonlLogger",
    "LazyLogger",
    "MLflowLogger",
    "MovAvg",
    "MultiLogger",
    "RunFolder",
    "RunFolderError",
    "RunningMeanStd",
    "SequenceSummaryStats",
    "TensorboardLogger",
    "TimingStats",
    "TraceLogger",
    "TrainingStats",
    "WandbLogger",
    "asdict",
    "git_revision",
    "iqm",
    "iqm_bootstrap",
    "plot_runs",
    "prune_checkpoints",
    "read_curve",
    "read_metrics",
    "torch_param_hash",
    "versions",
    "write_json",
]
