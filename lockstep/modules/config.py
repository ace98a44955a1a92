"""The section of a configuration about the networks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lockstep.modules.model_config import ModelConfig


@dataclass
class RLModuleSection:
    """Which networks."""

    rl_module_spec: Any = None
    """an `RLModuleSpec`, a built `RLModule`, or `None` for the algorithm's default"""
    model_config: Any = field(default_factory=ModelConfig)
    """`ModelConfig`, or a dict of its fields"""

    def validate(self) -> None:
        """A dict becomes a `ModelConfig` where the default network is used; raises what that raises."""
        if self.rl_module_spec is None:
            self.model_config = ModelConfig.of(self.model_config)
