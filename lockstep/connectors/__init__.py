"""Transforms that are the same when acting and when learning, with their statistics."""

from lockstep.connectors.module_connectors import ClipActions, ModuleConnectors, NormalizeRewards
from lockstep.connectors.observations import (
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
