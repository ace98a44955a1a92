"""Learners: from batches to gradients to parameters."""

from lockstep.learner.config import FrameworkSection, LearnersSection, TrainingSection
from lockstep.learner.group import LearnerGroup
from lockstep.learner.learner import Learner
from lockstep.learner.optimizers import ALL_MODULES, DEFAULT_OPTIMIZER

__all__ = [
    "ALL_MODULES",
    "DEFAULT_OPTIMIZER",
    "FrameworkSection",
    "Learner",
    "LearnerGroup",
    "LearnersSection",
    "TrainingSection",
]
