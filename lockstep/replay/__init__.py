"""Replay buffers: one ring of columns, with drawing, stacking, n-step sums and goals as parts of it."""

from lockstep.data.files.offline_rows import OfflineRows
from lockstep.replay.buffer import (
    HERReplayBuffer,
    HERVectorReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedVectorReplayBuffer,
    ReplayBuffer,
    VectorReplayBuffer,
)
from lockstep.replay.hindsight import Hindsight
from lockstep.replay.multi_agent import MultiAgentReplayBuffer
from lockstep.replay.priorities import Priorities
from lockstep.replay.ring import Placed
from lockstep.replay.tensor_replay import TensorReplay

__all__ = [
    "HERReplayBuffer",
    "HERVectorReplayBuffer",
    "Hindsight",
    "MultiAgentReplayBuffer",
    "OfflineRows",
    "Placed",
    "Priorities",
    "PrioritizedReplayBuffer",
    "PrioritizedVectorReplayBuffer",
    "ReplayBuffer",
    "TensorReplay",
    "VectorReplayBuffer",
]
