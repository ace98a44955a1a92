"""Replay buffers: a ring of columns that transitions are drawn from, with priorities, n-step sums and hindsight."""

from typing import Any

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
from lockstep.replay.ring import AddedRows
from lockstep.replay.tensor_replay import TensorReplay
from lockstep.state.moved import moved_name

__all__ = [
    "AddedRows",
    "HERReplayBuffer",
    "HERVectorReplayBuffer",
    "Hindsight",
    "MultiAgentReplayBuffer",
    "OfflineRows",
    "Priorities",
    "PrioritizedReplayBuffer",
    "PrioritizedVectorReplayBuffer",
    "ReplayBuffer",
    "TensorReplay",
    "VectorReplayBuffer",
]

_MOVED = {"Placed": "lockstep.replay:AddedRows"}


def __getattr__(name: str) -> Any:
    """Find names that have changed."""
    return moved_name(__name__, name, _MOVED)
