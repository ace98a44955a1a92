"""What every object with state needs: checkpoints, named random streams, schedules."""

from lockstep.options.schedules import ConfiguredValueWarning, Schedule, ScheduleLike
from lockstep.state.checkpoint import (
    CheckpointError,
    SealedArrays,
    SealedTree,
    newest_checkpoint,
    read_checkpoint,
    verify_checkpoint,
    write_checkpoint,
)
from lockstep.state.streams import RandomStreams
from lockstep.state.tree import StateTree

__all__ = [
    "CheckpointError",
    "ConfiguredValueWarning",
    "RandomStreams",
    "Schedule",
    "ScheduleLike",
    "SealedArrays",
    "SealedTree",
    "StateTree",
    "newest_checkpoint",
    "read_checkpoint",
    "verify_checkpoint",
    "write_checkpoint",
]
