"""Configurations: `BaseConfig` with its sections, the rules between options, and the JSON form.

Each section is declared in `config.py` of the folder that it configures, for example `lockstep/rollout/config.py`.
"""

from lockstep.config.base import BaseConfig
from lockstep.config.json_form import from_plain, to_plain

__all__ = ["BaseConfig", "from_plain", "to_plain"]
