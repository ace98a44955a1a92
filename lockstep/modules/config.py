"""The section of a configuration about the networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from lockstep.modules.model_config import ModelConfig
from lockstep.modules.multi_rl_module import MultiRLModule, MultiRLModuleSpec
from lockstep.modules.rl_module import RLModule, RLModuleSpec, import_module_class
from lockstep.options.section import ConfigT, Section, option

if TYPE_CHECKING:
    from lockstep.modules.typed import RLModuleOptions

NEW_FIELDS = frozenset({"squash_mean"})
"""Fields of `ModelConfig` that files of version 0.2 do not have. What these say was trained with the fields' own
defaults, whatever an algorithm sets by now."""


@dataclass
class RLModuleSection(Section[ConfigT]):
    """Which networks."""

    name = "rl_module"

    rl_module_spec: Any = None
    """an `RLModuleSpec`, the name `"module:Class"` of an `RLModule`, or a built one; for several a `MultiRLModuleSpec`
    or a `MultiRLModule`; `None` for the algorithm's default"""
    model_config: Any = option(factory=ModelConfig)
    """`ModelConfig`, or a dict of its fields"""
    algorithm_config_overrides_per_module: Mapping[str, Any] = option(factory=dict)
    """training options of single modules, `{module_id: {"lr": 1e-4}}`; the rest is as in `training`"""

    def __call__(self, **options: Unpack[RLModuleOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options)

    def set_options(self, options: Mapping[str, object]) -> None:
        """Set options; some fields of `model_config` as a dict change those of the default network only."""
        fields, named = options.get("model_config"), options.get("rl_module_spec")
        if isinstance(named, str):
            options = {**options, "rl_module_spec": RLModuleSpec(module_class=import_module_class(named))}
        network = self.rl_module_spec if options.get("rl_module_spec") is None else options["rl_module_spec"]
        if isinstance(fields, Mapping):
            if vars(ModelConfig()).keys() - fields.keys() <= NEW_FIELDS:  # whole, as `to_dict` writes it
                options = {**options, "model_config": ModelConfig.of(fields)}
            elif network is None and isinstance(self.model_config, ModelConfig):
                changed = ModelConfig.of({**vars(self.model_config), **fields})
                options = {**options, "model_config": changed}
        super().set_options(options)

    def specs_by_id(self) -> dict[str, RLModuleSpec | RLModule] | None:
        """Return the specs or networks of `rl_module_spec` by module id, or None if it is for a single module."""
        # `validate` refuses other values, but may not have been called yet.
        if not getattr(self.rl_module_spec, "has_module_ids", False):
            return None
        specs: dict[str, RLModuleSpec | RLModule] = self.rl_module_spec.specs_by_id()
        return specs

    def remembers(self, spec: RLModuleSpec | RLModule) -> bool | None:
        """Return whether a network by this spec has a memory; None where only its class, one of your own, knows."""
        if spec.is_built:
            return spec.is_stateful()
        config = self.model_config if spec.model_config is None else spec.model_config
        named = config if isinstance(config, Mapping) else vars(config)
        if any(named.get(kind) is not None for kind in ("recurrent", "attention")):
            return True
        return None if spec.module_class else False

    def prepare(self, name: str, value: object) -> Any:
        """Take of a whole configuration that stands for overrides the training options that differ from defaults."""
        if name != "algorithm_config_overrides_per_module" or not isinstance(value, Mapping):
            return value
        return {
            mid: each.training.changed_options() if hasattr(each, "training") else each for mid, each in value.items()
        }

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
