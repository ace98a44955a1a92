"""Learners, which compute gradients from batches and step the parameters of networks."""

from lockstep.learner.config import FrameworkSection, LearnersSection, SampledTraining, TrainingSection
from lockstep.learner.group import LearnerGroup
from lockstep.learner.learner import Learner
from lockstep.learner.many.reduction import DistributedReducer, LearnerError, LocalReducer, Reducer
from lockstep.learner.novelty import RandomNetworkDistillation
from lockstep.learner.optimizers import ALL_MODULES, DEFAULT_OPTIMIZER

__all__ = [
    "ALL_MODULES",
    "DEFAULT_OPTIMIZER",
    "DistributedReducer",
    "FrameworkSection",
    "Learner",
    "LearnerError",
    "LearnerGroup",
    "LearnersSection",
    "LocalReducer",
    "RandomNetworkDistillation",
    "Reducer",
    "SampledTraining",
    "TrainingSection",
]
