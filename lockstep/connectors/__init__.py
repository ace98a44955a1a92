"""Transforms that are the same when acting and when learning, with their statistics."""

from lockstep.connectors.module_connectors import ClipActions, ModuleConnectors, NormalizeRewards
from lockstep.connectors.observations import (
    ClipObs,
    Connector,
    FlattenObs,
    FrameStack,
    NormalizeObs,
    ObsPipeline,
    OneHot,
)
from lockstep.data.actions import RescaleActions

__all__ = [
    "ClipActions",
    "ClipObs",
    "Connector",
    "FlattenObs",
    "FrameStack",
    "ModuleConnectors",
    "NormalizeObs",
    "NormalizeRewards",
    "ObsPipeline",
    "OneHot",
    "RescaleActions",
]
