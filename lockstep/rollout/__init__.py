"""Collection: a policy acts, what happens is stored."""

from lockstep.rollout.collector import Collector
from lockstep.rollout.errors import MalformedBufferError

__all__ = ["Collector", "MalformedBufferError"]
