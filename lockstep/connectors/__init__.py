"""Connectors: transforms around a network that are the same when acting and when learning, with their statistics."""

from lockstep.connectors.connector import Connector, ObsPipeline
from lockstep.connectors.memory import FrameStack, PreviousActions, PreviousRewards
from lockstep.connectors.module_connectors import (
    ActionPipeline,
    ClipActions,
    ClipRewards,
    ModuleConnectors,
    NormalizeRewards,
    ScaleRewards,
)
from lockstep.connectors.observations import ClipObs, FlattenObs, Grayscale, NormalizeObs, OneHot, Resize
from lockstep.connectors.symmetry import Symmetry
from lockstep.data.actions import RescaleActions

__all__ = [
    "ActionPipeline",
    "ClipActions",
    "ClipObs",
    "ClipRewards",
    "Connector",
    "FlattenObs",
    "FrameStack",
    "Grayscale",
    "ModuleConnectors",
    "NormalizeObs",
    "NormalizeRewards",
    "ObsPipeline",
    "OneHot",
    "PreviousActions",
    "PreviousRewards",
    "RescaleActions",
    "Resize",
    "ScaleRewards",
    "Symmetry",
]
