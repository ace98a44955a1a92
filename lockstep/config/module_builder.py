"""`ModuleBuilder`: builds a network from a spec and the options of networks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import torch
from gymnasium.spaces import Space
from gymnasium.vector.utils import batch_space

from lockstep.data.groups import (
    INTRINSIC,
    POLICY,
    Groups,
    central_groups,
    needed_paths,
    pruned_space,
    split_state,
    with_state_space,
)
from lockstep.data.trees import map_tree
from lockstep.learner.config import CONFIGURED_MODULES
from lockstep.modules import RLModule, RLModuleSpec, default_module_class
from lockstep.modules.config import RLModuleSection
from lockstep.modules.lazy_layers import initialise_lazy
from lockstep.modules.model_config import ModelConfig
from lockstep.state.sizes import ClaimedSizeError
from lockstep.state.streams import RandomStreams, global_generator


@dataclass
class ModuleBuilder:
    """Builder of networks from the options."""

    rl_module: RLModuleSection[Any]
    _: KW_ONLY
    algorithm: str
    """Name of the algorithm, for messages."""
    observation_groups: Groups | None
    """Observation groups of networks whose spec has none."""
    module_class: type[RLModule] | None
    """Default network class of the algorithm. None stands for an actor-critic, with or without memory."""
    has_central_state: bool
    """Whether observations of several agents have a central state, which critics see."""
    has_intrinsic_reward: bool
    """Whether the algorithm has a network for an intrinsic reward, which observes as well."""
    complete_model_config: Callable[[ModelConfig], ModelConfig]
    """Function that adds what the algorithm and its exploration need to the configuration of a default network."""

    def build(
        self,
        spec: RLModuleSpec | RLModule,
        observation_space: Space[Any],
        action_space: Space[Any],
        streams: RandomStreams,
    ) -> RLModule:
        """Build a network, or initialise the network that the user has built.

        The initial weights depend only on the seed of `streams`.

        Args:
            spec: Spec of the network, or the network itself.
            observation_space: Space of the network's observations, unless the spec has its own.
            action_space: Space that the network acts in, unless the spec has its own.
            streams: Random streams of the network.
        """
        if spec.is_built:
            initialise_lazy(spec)
            return spec
        model_config = spec.model_config
        if model_config is None:
            model_config = self.rl_module.model_config
        module_class = spec.module_class or self.module_class or default_module_class(model_config)
        # Only networks of Lockstep have a `ModelConfig`; a class of the user's own may have any dict.
        if issubclass(module_class, CONFIGURED_MODULES):
            model_config = self.complete_model_config(ModelConfig.of(model_config))
        observation_space = spec.observation_space or observation_space
        groups = self._groups_of(spec, observation_space)
        if spec.critic_space is not None:
            warnings.warn(
                "RLModuleSpec(critic_space=...) has a new form: observations {'obs': ..., 'state': ...} with "
                "observation_groups={'policy': ['obs'], 'critic': ['state', 'obs']}",
                DeprecationWarning,
                stacklevel=2,
            )
            groups = self._central_groups(observation_space)
            observation_space = with_state_space(observation_space, spec.critic_space)
        complete_spec = RLModuleSpec(
            module_class=module_class,
            observation_space=observation_space,
            action_space=spec.action_space or action_space,
            inference_only=spec.inference_only,
            model_config=model_config,
            observation_groups=groups,
        )
        try:
            has_state = self.has_central_state or spec.critic_space is not None
            if has_state and not issubclass(module_class, CONFIGURED_MODULES):
                return self._build_with_state(complete_spec, streams.seed("module"))
            module = complete_spec.build(seed=streams.seed("module"))
            if groups and not issubclass(module_class, CONFIGURED_MODULES):
                self._check_acting(module)
            return module
        except ClaimedSizeError:
            # A `ValueError` about the file that the options come from, and not about the spaces or options.
            raise
        except ValueError as error:
            # A default network cannot be blamed: the message names the algorithm whose default it is.
            if spec.module_class is None and self.algorithm not in str(error):
                raise ValueError(f"{self.algorithm} cannot be built for these spaces or options: {error}") from error
            raise

    def _groups_of(self, spec: RLModuleSpec, observation_space: Space[Any]) -> Groups | None:
        """Return the observation groups of a network: its own, or else the configured ones.

        With a central state, parts without a group see the agent's own observation, and only the critic the state.
        """
        groups = spec.observation_groups or self.observation_groups
        if not self.has_central_state:
            return groups
        own_space, _ = split_state(observation_space)
        return {**self._central_groups(own_space), **(groups or {})}

    def _central_groups(self, own_space: Space[Any]) -> dict[str, tuple[str, ...]]:
        """Return the groups of all parts for an agent's own observation space, of which only the critic's has the
        state."""
        groups = central_groups(own_space)
        if self.has_intrinsic_reward:
            groups[INTRINSIC] = groups[POLICY]
        return groups

    def _check_acting(self, module: RLModule) -> None:
        """Raise `ValueError` if a user's network needs entries to act that its policy does not see.

        Networks with a memory are not checked.
        """
        paths = needed_paths(module.observation_space, module.observation_groups)
        if paths is None or module.is_stateful():
            return
        space = batch_space(pruned_space(module.observation_space, paths), 2)
        space.seed(0)
        with torch.no_grad(), global_generator():
            try:
                module.forward_inference({"obs": map_tree(torch.as_tensor, space.sample())})
            except KeyError as error:
                raise ValueError(
                    f"{type(module).__name__} asks for {error.args[0]!r} when acting, which is not in "
                    f"observation_groups['policy']={list(module.observation_groups['policy'])}: add it there, or read "
                    "it in forward_train and compute_values alone"
                ) from error

    def _build_with_state(self, spec: RLModuleSpec, seed: int) -> RLModule:
        """Build a network of a user's class for observations with a central state.

        A class that was written for version 0.2 expects an agent's own observation space and a `critic_space`. It fails
        with the new space, and is then built for the old ones, with a warning.
        """
        try:
            return spec.build(seed=seed)
        except ClaimedSizeError:
            raise
        except Exception as error:
            own_space, state_space = split_state(spec.observation_space)
            old_spec = replace(spec, observation_space=own_space, observation_groups=None, critic_space=state_space)
            try:
                module = old_spec.build(seed=seed)
            except Exception:
                raise error from None  # the class fits neither form
            warnings.warn(
                f"{type(module).__name__} expects the central state as batch['critic_obs'], as in version 0.2. Let it "
                "read the entry 'state' of batch['obs'], whose space is an entry of observation_space",
                DeprecationWarning,
                stacklevel=2,
            )
            return module
