"""Declaration, checks and copies of configuration options, and schedules.

The options themselves are in `config.py` of the folders that they configure (docs/adding-options.md).
"""

from lockstep.options.checks import install_hint
from lockstep.options.restarts import RestartLimits
from lockstep.options.schedules import ConfiguredValueWarning, Schedule, ScheduleLike
from lockstep.options.section import Section, option

__all__ = [
    "ConfiguredValueWarning",
    "RestartLimits",
    "Schedule",
    "ScheduleLike",
    "Section",
    "install_hint",
    "option",
]
