"""Environments: one transition model over every vector back end, and tiny environments with exact answers."""

from lockstep.envs.boundary import StepResult, VectorBoundary
from lockstep.envs.errors import EnvironmentStepError, EnvironmentTimeoutError
from lockstep.envs.make import make_vector
from lockstep.envs.sync import LightSyncVectorEnv

__all__ = [
    "EnvironmentStepError",
    "EnvironmentTimeoutError",
    "LightSyncVectorEnv",
    "StepResult",
    "VectorBoundary",
    "make_vector",
]
