"""One readable file that trains what a run of Lockstep trains: `lockstep.eject.eject`, the command `lockstep eject`."""

from lockstep.eject.eject import EjectError, eject

__all__ = ["EjectError", "eject"]
