"""Hyperparameter search: `lockstep.tune`, the command `lockstep tune`, and search spaces."""

from lockstep.tuning.space import Range, SearchSpace, default_space, read_space
from lockstep.tuning.study import TrialRow, TuneResult, tune

__all__ = ["Range", "SearchSpace", "TrialRow", "TuneResult", "default_space", "read_space", "tune"]
