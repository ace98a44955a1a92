"""Modules that are added to a policy in a run: from a specification, from another module or from a checkpoint."""

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
from lockstep.data.groups import has_state, space_of_old_file
from lockstep.data.spaces import space_from
from lockstep.learner.checkpointing import state_from_folders
from lockstep.modules import RLModule, RLModuleSpec
from lockstep.options.schedules import stages_of
from lockstep.state.checkpoint import read_checkpoint
from lockstep.state.sizes import claims_of
from lockstep.state.streams import RandomStreams
from lockstep.state.trust import FileNames

ConfigT = TypeVar("ConfigT", bound=BaseConfig)


class InitialModule(NamedTuple):
    """Module whose weights and statistics a new module begins with."""

    spec: RLModuleSpec
    """Specification of the module."""
    weights: Mapping[str, Any]
    """Weights of the module."""
    connectors: Mapping[str, Any]
    """State of the module's connectors."""

    @classmethod
    def from_checkpoint(cls, module_id: str, path: str | Path, *, trust: bool = False) -> Self:
        """Return the module in a checkpoint.

        Args:
            module_id: Id of the new module. In the checkpoint of a policy with several modules it selects one.
            path: Checkpoint of a module alone, or of a policy. The policy must have a module of this id, or only one
                module, whose id does not matter.
            trust: Whether all objects that the checkpoint names may be used.

        Raises:
            ValueError: The checkpoint has several modules, and none of this id.
        """
        folders = read_checkpoint(Path(path))
        if is_module_tree(folders.get("", {})):
            # The checkpoint of a module alone has no connectors.
            tree = folders[""]
            connectors = ModuleConnectors().get_state()
        else:
            trees = {name.rpartition("/")[2]: tree for name, tree in folders.items() if is_module_tree(tree)}
            chosen = module_id if module_id in trees else next(iter(trees), None)
            if chosen is None or (chosen != module_id and len(trees) > 1):
                raise ValueError(
                    f"init_from={path!r} has the modules {sorted(trees)}; {module_id!r} is needed, or only one"
                )
            tree = trees[chosen]
            connectors = state_from_folders(folders)["connectors"][chosen]
        names = FileNames(Path(path), tree["spec"], trust)
        # A damaged file may claim layers that are larger than the memory: that is refused before they are allocated.
        with claims_of(path):
            spec = RLModuleSpec.from_dict(tree["spec"], names=names)
        return cls(spec, tree["weights"], connectors)

    def statistics(self) -> dict[str, Any]:
        """Return the statistics of the connectors for a new module.

        Normalised rewards are divided by the deviation of discounted returns, so the state also has the returns so far
        of the running episodes. These are left out, because the new module does not continue the episodes.
        """
        rewards = self.connectors["rewards"]
        if rewards is not None:
            rewards = {**rewards, "returns": np.zeros(0)}
        return {**self.connectors, "rewards": rewards}


@dataclass(frozen=True)
class NewModule:
    """Network that is added to a policy, its connectors, and the spaces of its environment."""

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
        initial: InitialModule | None,
        frozen: bool,
        overrides: Mapping[str, Any] | None = None,
    ) -> Self:
        """Build a module with the same initial weights, bit for bit, as if the configuration had contained it from the
        beginning.

        Args:
            config: The configuration of the policy.
            module_id: Id of the module, from which its initial weights are seeded.
            spec: Specification of the module, or a finished network.
            spaces: Observation space and action space of the environment.
            initial: Module whose weights and statistics the new one gets.
            frozen: Whether the module only acts.
            overrides: Training options of the module.

        Raises:
            ValueError: A finished network that shall be frozen is not built for it, or `initial` does not fit.
        """
        connectors, module_spaces = config.build_connectors(*spaces, module_id, spec=spec, overrides=overrides)
        if frozen and not spec.is_built:
            spec = replace(spec, inference_only=True)
        module = config.build_module(spec, *module_spaces, RandomStreams(config.debugging.seed).child(module_id))
        if frozen and not module.inference_only:
            raise ValueError(f"module {module_id!r} is to be frozen; build it with inference_only=True")
        if initial is not None:
            try:
                module.set_state(initial.weights)
                connectors.set_state(initial.statistics())
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(
                    f"the weights or statistics that module {module_id!r} is to begin with do not fit: {error}"
                ) from error
        return cls(module, connectors, spaces)

    @classmethod
    def from_recipe(cls, config: BaseConfig, module_id: str, recipe: Mapping[str, Any], names: FileNames) -> Self:
        """Build a module from its description in a policy's state. Its weights are part of the learners' state.

        Args:
            config: The configuration of the policy.
            module_id: Id of the module.
            recipe: The description.
            names: Resolver of the objects that the description names.
        """
        spaces = (recipe_space(recipe), space_from(recipe["action_space"]))
        spec = RLModuleSpec.from_dict(recipe["spec"], names=names)
        overrides = overrides_in(recipe, names)
        connectors, _ = config.build_connectors(*spaces, module_id, spec=spec, overrides=overrides)
        return cls(spec.build(), connectors, spaces)

    def acting_parts(self, dtype: torch.dtype) -> tuple[RLModule, ModuleConnectors]:
        """Return the network and the connectors that act, for a policy whose learners are in other processes.

        The network is converted to `dtype`.
        """
        # Learners set this attribute on their networks; no learner in this process has this one.
        self.module.acting_connectors = self.connectors.acting_names
        return self.module.to(dtype), self.connectors


def recipe_space(recipe: Mapping[str, Any]) -> Any:
    """Return the observation space of the environment in a module's description.

    In files of version 0.2 it lacks the central state of several agents, whose space is in the module's spec.
    """
    space = space_from(recipe["observation_space"])
    if "critic_space" not in recipe["spec"] or has_state(space):
        return space
    return space_of_old_file(space, space_from(recipe["spec"]["critic_space"]))


def is_module_tree(tree: Mapping[str, Any]) -> bool:
    """Return whether a folder of a checkpoint holds a module. `tree`: the folder's content by name."""
    return {"weights", "spec"} <= set(tree)


def overrides_in(recipe: Mapping[str, Any], names: FileNames) -> Any:
    """Return a module's own training options from its description in a policy's state."""
    return from_plain("training", recipe["config_overrides"], names)


def with_modules(config: ConfigT, modules: Mapping[str, Any], file: FileNames) -> ConfigT:
    """Return a configuration with the modules of a policy's state; `config` itself if it has the same modules.

    Args:
        config: The configuration.
        modules: Descriptions of the modules, by module id.
        file: Resolver of the objects that the state names.
    """
    if list(config.module_specs()) == list(modules):
        return config
    configured_overrides = config.rl_module.algorithm_config_overrides_per_module
    specs = {}
    overrides = {}
    for module_id, recipe in modules.items():
        names = file.of_part(recipe)
        spec = RLModuleSpec.from_dict(recipe["spec"], names=names)
        specs[module_id] = replace(spec, observation_space=None, action_space=None)
        own_overrides = overrides_in(recipe, names)
        if own_overrides or module_id in configured_overrides:
            overrides[module_id] = own_overrides or configured_overrides.get(module_id)

    # Modules that were removed in the run cannot learn any more.
    policies_to_train = []
    for step, allowed in stages_of("policies_to_train", config.multi_agent.policies_to_train):
        if allowed is not None and not callable(allowed):
            allowed = [module_id for module_id in allowed if module_id in modules]
        policies_to_train.append([step, allowed])
    changed = config.copy().rl_module(rl_module_spec=None, algorithm_config_overrides_per_module=overrides)
    return changed.multi_agent(policies=specs, policies_to_train=policies_to_train)
