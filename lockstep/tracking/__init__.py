"""Records of runs: loggers, run folders, statistics, plots."""

from lockstep.tracking.compare import Comparison, compare_runs, compare_scores
from lockstep.tracking.intervals import (
    Interval,
    bootstrap,
    improvement_bootstrap,
    iqm,
    iqm_bootstrap,
    iqm_difference_bootstrap,
    performance_profile,
    probability_of_improvement,
)
from lockstep.tracking.jsonl import JsonlLogger
from lockstep.tracking.logger import BaseLogger, LazyLogger, MultiLogger, TraceLogger, torch_param_hash
from lockstep.tracking.metrics import Metrics
from lockstep.tracking.plots import plot_runs, read_curve
from lockstep.tracking.records import read_metrics, write_json
from lockstep.tracking.report import write_report
from lockstep.tracking.run_folder import RunFolder, RunFolderError, git_revision, prune_checkpoints, versions
from lockstep.tracking.run_lock import RunLock, RunLockError
from lockstep.tracking.services import MLflowLogger, WandbLogger
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

__all__ = [
    "BaseLogger",
    "CollectStats",
    "CollectStatsBase",
    "Comparison",
    "EpochStats",
    "InfoStats",
    "Interval",
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
    "bootstrap",
    "compare_runs",
    "compare_scores",
    "git_revision",
    "improvement_bootstrap",
    "iqm",
    "iqm_bootstrap",
    "iqm_difference_bootstrap",
    "performance_profile",
    "plot_runs",
    "probability_of_improvement",
    "prune_checkpoints",
    "read_curve",
    "read_metrics",
    "torch_param_hash",
    "versions",
    "write_json",
    "write_report",
]
