"""`BaseConfig`: the sections of a configuration, the rules between options, and its JSON form."""

from lockstep.config.base import BaseConfig

__all__ = ["BaseConfig"]
