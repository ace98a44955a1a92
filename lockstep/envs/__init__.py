"""Environments: one transition model over every vector back end, and tiny environments with exact answers."""

from lockstep.envs.boundary import StepResult, VectorBoundary
from lockstep.envs.check import Finding, check_environment
from lockstep.envs.errors import EnvironmentStepError, EnvironmentTimeoutError
from lockstep.envs.make import make_vector
from lockstep.envs.multi_agent import record_aec_episode, record_parallel_episode
from lockstep.envs.sync import LightSyncVectorEnv
from lockstep.envs.tensor import TENSOR_ENVS, JaxEnv, RslRlEnv, TensorEnv, TensorVecEnv, make_tensor_env
from lockstep.envs.toys.counting import CountingEnv, CountingVectorEnv
from lockstep.envs.toys.probes import (
    PROBES,
    ActionProbe,
    ActionProbeContinuous,
    BitFlipping,
    CompositeProbe,
    ConstantProbe,
    DiscountProbe,
    MemoryProbe,
    ObservationActionProbe,
    ObservationActionProbeContinuous,
    ObservationProbe,
    Probe,
    SparseMaze,
    TruncationProbe,
    goal_functions,
    register_environments,
)
from lockstep.envs.toys.stateless import StatelessCartPole, StatelessPendulum
from lockstep.envs.worker_process import MadeInWorker
from lockstep.envs.workers import WorkerVectorEnv
from lockstep.options.restarts import RestartLimits

__all__ = [
    "PROBES",
    "TENSOR_ENVS",
    "ActionProbe",
    "ActionProbeContinuous",
    "BitFlipping",
    "CompositeProbe",
    "ConstantProbe",
    "CountingEnv",
    "CountingVectorEnv",
    "DiscountProbe",
    "EnvironmentStepError",
    "EnvironmentTimeoutError",
    "Finding",
    "JaxEnv",
    "LightSyncVectorEnv",
    "MadeInWorker",
    "MemoryProbe",
    "ObservationActionProbe",
    "ObservationActionProbeContinuous",
    "ObservationProbe",
    "Probe",
    "RestartLimits",
    "RslRlEnv",
    "SparseMaze",
    "StatelessCartPole",
    "StatelessPendulum",
    "StepResult",
    "TensorEnv",
    "TensorVecEnv",
    "TruncationProbe",
    "VectorBoundary",
    "WorkerVectorEnv",
    "check_environment",
    "goal_functions",
    "make_tensor_env",
    "make_vector",
    "record_aec_episode",
    "record_parallel_episode",
    "register_environments",
]
