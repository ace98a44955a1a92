"""Collection: a policy acts, what happens is stored."""

from lockstep.rollout.async_collector import AsyncCollector
from lockstep.rollout.collector import Collector
from lockstep.rollout.errors import MalformedBufferError

__all__ = ["AsyncCollector", "Collector", "MalformedBufferError"]
