"""Modules that come while a policy is there: from a spec, from another module, from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import torch

from lockstep.config.base import BaseConfig, Spaces
from lockstep.config.json_form import from_plain
from lockstep.connectors import ModuleConnectors
from lockstep.data.spaces import space_from
from lockstep.learner.checkpointing import state_from_folders
from lockstep.modules import RLModule, RLModuleSpec
from lockstep.options.schedules import stages_of
from lockstep.state.checkpoint import read_checkpoint
from lockstep.state.sizes import claims_of
from lockstep.state.streams import RandomStreams
from lockstep.state.trust import FileNames

ConfigT = TypeVar("ConfigT", bound=BaseConfig)


class Source(NamedTuple):
    """A module that another one begins as."""

    spec: RLModuleSpec
    weights: Mapping[str, Any]
    connectors: Mapping[str, Any]
    """the state of its connectors"""

    @classmethod
    def of_checkpoint(cls, module_id: str, path: str | Path, *, trust: bool = False) -> Self:
        """Return the module of a checkpoint: of a module alone, or of a policy that has this one, or only one.

        `trust`: the user's word that what the checkpoint names may be used.
        """
        folders = read_checkpoint(Path(path))
        if {"weights", "spec"} <= set(folders.get("", {})):
            tree, connectors = folders[""], ModuleConnectors().get_state()
        else:
            trees = {
                name.rpartition("/")[2]: tree for name, tree in folders.items() if {"weights", "spec"} <= set(tree)
            }
            chosen = module_id if module_id in trees else next(iter(trees), None)
            if chosen is None or (chosen != module_id and len(trees) > 1):
                raise ValueError(
                    f"init_from={path!r} has the modules {sorted(trees)}; {module_id!r} is needed, or only one"
                )
            tree, connectors = trees[chosen], state_from_folders(folders)["connectors"][chosen]
        names = FileNames(Path(path), tree["spec"], trust)
        with claims_of(path):
            spec = RLModuleSpec.from_dict(tree["spec"], names=names)
        return cls(spec, tree["weights"], connectors)

    def statistics(self) -> dict[str, Any]:
        """Return the statistics of its connectors, for episodes of others."""
        rewards = self.connectors["rewards"]
        return {**self.connectors, "rewards": None if rewards is None else {**rewards, "returns": np.zeros(0)}}


@dataclass(frozen=True)
class NewModule:
    """A module, the connectors around it, and its spaces before them."""

    module: RLModule
    connectors: ModuleConnectors
    spaces: Spaces

    @classmethod
    def build(
        cls,
        config: BaseConfig,
        module_id: str,
        spec: RLModuleSpec | RLModule,
        spaces: Spaces,
        source: Source | None,
        frozen: bool,
    ) -> Self:
        """Build it as it would be in a configuration that has it from the beginning, then take over from `source`."""
        connectors, seen = config.build_connectors(*spaces)
        if frozen and not spec.is_built:
            spec = replace(spec, inference_only=True)
        module = config.build_module(spec, *seen, RandomStreams(config.debugging.seed).child(module_id))
        if frozen and not module.inference_only:
            raise ValueError(f"module {module_id!r} is to be frozen; build it with inference_only=True")
        if source is not None:
            try:
                module.set_state(source.weights)
                connectors.set_state(source.statistics())
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"what module {module_id!r} is to begin as does not fit it: {error}") from error
        return cls(module, connectors, spaces)

    @classmethod
    def of_recipe(cls, config: BaseConfig, recipe: Mapping[str, Any], names: FileNames) -> Self:
        """Build it as a policy's state says; its weights come with the learners' state."""
        spaces = space_from(recipe["observation_space"]), space_from(recipe["action_space"])
        spec = RLModuleSpec.from_dict(recipe["spec"], names=names)
        return cls(spec.build(), config.build_connectors(*spaces)[0], spaces)

    def to_act(self, dtype: torch.dtype) -> tuple[RLModule, ModuleConnectors]:
        """Return what acts where learners are in other processes."""
        self.module.acting_connectors = self.connectors.acting_names
        return self.module.to(dtype), self.connectors


def overrides_in(recipe: Mapping[str, Any], names: FileNames) -> Any:
    """Return the training options of a module that a policy's state has."""
    return from_plain("training", recipe["config_overrides"], names)


def with_modules(config: ConfigT, modules: Mapping[str, Any], file: FileNames) -> ConfigT:
    """Return a configuration with the modules of a policy's state, if they are others than its own.

    `file`: finds the objects that the state names.
    """
    has_critic = any("critic_space" in recipe["spec"] for recipe in modules.values())  # only the environment knows it
    if list(config.module_specs()) == list(modules) and not has_critic:
        return config
    specs, added = {}, {}
    for mid, recipe in modules.items():
        names = file.of_part(recipe)
        spec = RLModuleSpec.from_dict(recipe["spec"], names=names)
        specs[mid] = replace(spec, observation_space=None, action_space=None)
        added[mid] = overrides_in(recipe, names)
    configured = config.rl_module.algorithm_config_overrides_per_module
    overrides = {mid: added[mid] or configured.get(mid) for mid in modules if added[mid] or mid in configured}
    who_learns = [
        [step, allowed if allowed is None or callable(allowed) else [mid for mid in allowed if mid in modules]]
        for step, allowed in stages_of("policies_to_train", config.multi_agent.policies_to_train)
    ]
    changed = config.copy().rl_module(rl_module_spec=None, algorithm_config_overrides_per_module=overrides)
    return changed.multi_agent(policies=specs, policies_to_train=who_learns)
