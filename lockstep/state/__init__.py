"""Checkpoints, names in files and the trust in them, and named random streams: for every object with state."""

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
from lockstep.state.sizes import claims_of
from lockstep.state.streams import RandomStreams
from lockstep.state.tree import StateTree
from lockstep.state.trust import FileNames, Kind, handed_in, signed

__all__ = [
    "CheckpointError",
    "ConfiguredValueWarning",
    "FileNames",
    "Kind",
    "RandomStreams",
    "Schedule",
    "ScheduleLike",
    "SealedArrays",
    "SealedTree",
    "StateTree",
    "claims_of",
    "handed_in",
    "newest_checkpoint",
    "read_checkpoint",
    "signed",
    "verify_checkpoint",
    "write_checkpoint",
]
