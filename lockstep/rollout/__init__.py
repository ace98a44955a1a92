"""Collection: collectors, env runners and groups of runners, which act with a policy and store the steps."""

from lockstep.rollout.async_collector import AsyncCollector
from lockstep.rollout.callbacks import EnvironmentCallback
from lockstep.rollout.collector import Collector
from lockstep.rollout.env_runner import EnvRunner
from lockstep.rollout.errors import EnvRunnerError, MalformedBufferError
from lockstep.rollout.fragments import Fragment, rollout_of
from lockstep.rollout.group_collector import AsyncGroupCollector, GroupCollector
from lockstep.rollout.multi_agent_collector import MultiAgentCollector
from lockstep.rollout.protocols import CollectorLike, CollectorTraits
from lockstep.rollout.runner_group import EnvRunnerGroup
from lockstep.rollout.tensor_collector import TensorCollector

__all__ = [
    "AsyncCollector",
    "AsyncGroupCollector",
    "Collector",
    "CollectorLike",
    "CollectorTraits",
    "EnvRunner",
    "EnvRunnerError",
    "EnvRunnerGroup",
    "EnvironmentCallback",
    "Fragment",
    "GroupCollector",
    "MalformedBufferError",
    "MultiAgentCollector",
    "TensorCollector",
    "rollout_of",
]
