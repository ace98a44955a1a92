"""Single files that train without Lockstep, and `eject`, which writes one with the settings of a configuration."""

from lockstep.eject.eject import EjectError, eject

__all__ = ["EjectError", "eject"]
