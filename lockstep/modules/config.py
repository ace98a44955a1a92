"""Configuration section about the networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from lockstep.data.groups import checked_groups
from lockstep.modules.model_config import ModelConfig
from lockstep.modules.multi_rl_module import MultiRLModule, MultiRLModuleSpec
from lockstep.modules.rl_module import RLModule, RLModuleSpec, import_module_class
from lockstep.options.section import ConfigT, Section, option

if TYPE_CHECKING:
    from lockstep.modules.typed import RLModuleOptions

NEW_FIELDS = frozenset(
    {
        "squash_mean",
        "value_hiddens",
        "recurrent_layers",
        "memory_below_hiddens",
        "memory_in",
        "symmetric",
        "batch_norm",
    },
)
"""Fields of `ModelConfig` that are missing in files of version 0.2. Networks of such files were trained with the
defaults of these fields, even if an algorithm sets other values today."""


@dataclass
class RLModuleSection(Section[ConfigT]):
    """Networks of a run."""

    name = "rl_module"

    rl_module_spec: Any = None
    """Network: an `RLModuleSpec`, the name `"module:Class"` of an `RLModule`, or a built `RLModule`. For several
    networks, a `MultiRLModuleSpec` or a `MultiRLModule`. Defaults to the algorithm's network."""
    model_config: Any = option(factory=ModelConfig)
    """Options of the network: a `ModelConfig`, or a dict of its fields."""
    observation_groups: Any = None
    """Entries of a Dict observation that each part sees, such as `{"policy": ["proprio"], "critic": ["proprio",
    "heights"]}`. Parts are "policy", "critic", "teacher" and "intrinsic". A nested entry is named by its path,
    "sensors/left". A part without a group sees all entries. An `"action_mask"` always reaches the policy."""
    algorithm_config_overrides_per_module: Mapping[str, Any] = option(factory=dict)
    """Training options of single modules, `{module_id: {"lr": 1e-4}}`. All other options are those of `training`."""

    def __call__(self, **options: Unpack[RLModuleOptions]) -> ConfigT:
        """Set options and return the configuration."""
        return self.change(options)

    def set_options(self, options: Mapping[str, object]) -> None:
        """Set options. A dict with some fields of `model_config` changes these fields of the default network only.

        With a network of the user's, such a dict is passed to the network as it is.
        """
        fields = options.get("model_config")
        class_name = options.get("rl_module_spec")
        if isinstance(class_name, str):
            options = {**options, "rl_module_spec": RLModuleSpec(module_class=import_module_class(class_name))}

        network = self.rl_module_spec if options.get("rl_module_spec") is None else options["rl_module_spec"]
        if isinstance(fields, Mapping):
            is_complete = vars(ModelConfig()).keys() - fields.keys() <= NEW_FIELDS  # written by `to_dict`
            if is_complete:
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
        """Return whether a network of this spec has a memory; None if only its class, a user's, knows."""
        if spec.is_built:
            return spec.is_stateful()
        config = self.model_config if spec.model_config is None else spec.model_config
        model_options = config if isinstance(config, Mapping) else vars(config)
        if any(model_options.get(kind) is not None for kind in ("recurrent", "attention")):
            return True
        return None if spec.module_class else False

    def prepare(self, name: str, value: object) -> Any:
        """Return the value to set: checked groups, and the changed options of configurations among the overrides."""
        if name == "observation_groups":
            return checked_groups(value) or None
        if name != "algorithm_config_overrides_per_module" or not isinstance(value, Mapping):
            return value
        overrides = {}
        for module_id, override in value.items():
            is_configuration = hasattr(override, "training")
            overrides[module_id] = override.training.changed_options() if is_configuration else override
        return overrides

    def validate(self) -> None:
        """Check the options, and turn a dict of the default network's options into a `ModelConfig`."""
        spec = self.rl_module_spec
        if spec is not None and not isinstance(spec, RLModuleSpec | RLModule | MultiRLModuleSpec | MultiRLModule):
            raise TypeError(
                "rl_module_spec must be an RLModuleSpec, a MultiRLModuleSpec, a built module of one of these, or None, "
                f"not {type(spec).__name__}; wrap_module() takes a plain nn.Module"
            )
        if self.rl_module_spec is None and not isinstance(self.model_config, ModelConfig):
            self.model_config = ModelConfig.of(self.model_config)
