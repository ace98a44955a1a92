"""Old names of the package `lockstep_sb3`, which runs programs that were written for Stable-Baselines3."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from lockstep.state.moved import moved_name

_MOVED = dict.fromkeys(("A2C", "DQN", "PPO", "SAC", "TD3", "TQC"), "lockstep_sb3")


def import_sb3() -> ModuleType:
    """Import the package `lockstep_sb3`, and return it.

    Raises:
        ModuleNotFoundError: the package is not installed. The message says how to install it.
    """
    try:
        return importlib.import_module("lockstep_sb3")
    except ModuleNotFoundError as error:
        if error.name != "lockstep_sb3":  # the package is installed, but something that it imports is missing
            raise
        raise ModuleNotFoundError(
            "lockstep.compat.sb3 is a package of its own now, lockstep_sb3, which is not installed: "
            "pip install lockstep-sb3 (in a clone of Lockstep: pip install -e ./packages/lockstep-sb3)",
            name="lockstep_sb3",
        ) from error


def __getattr__(name: str) -> Any:
    """Return an object of `lockstep_sb3` by its old name."""
    if name in _MOVED:
        import_sb3()
    return moved_name(__name__, name, _MOVED)
