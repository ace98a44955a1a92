"""The section of a configuration about the networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.modules.model_config import ModelConfig
from lockstep.modules.multi_rl_module import MultiRLModule, MultiRLModuleSpec
from lockstep.modules.rl_module import RLModule, RLModuleSpec
from lockstep.state.options import Section, option


@dataclass
class RLModuleSection(Section):
    """Which networks."""

    name = "rl_module"

    rl_module_spec: Any = None
    """an `RLModuleSpec` or a built `RLModule`; for several a `MultiRLModuleSpec` or a `MultiRLModule`; `None` for the
    algorithm's default"""
    model_config: Any = option(factory=ModelConfig)
    """`ModelConfig`, or a dict of its fields"""
    algorithm_config_overrides_per_module: Mapping[str, Any] = option(factory=dict)
    """training options of single modules, `{module_id: {"lr": 1e-4}}`; the rest is as in `training`"""

    def validate(self) -> None:
        """A dict becomes a `ModelConfig` where the default network is used; raises what that raises."""
        spec = self.rl_module_spec
        if spec is not None and not isinstance(spec, RLModuleSpec | RLModule | MultiRLModuleSpec | MultiRLModule):
            raise TypeError(
                "rl_module_spec must be an RLModuleSpec, a MultiRLModuleSpec, a built module of one of these, or None, "
                f"not {type(spec).__name__}; wrap_module() takes a plain nn.Module"
            )
        if self.rl_module_spec is None and not isinstance(self.model_config, ModelConfig):
            self.model_config = ModelConfig.of(self.model_config)
