"""`ModuleBuilder`: builds a network from a spec and the options of networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

from gymnasium.spaces import Space

from lockstep.learner.config import CONFIGURED_MODULES
from lockstep.modules import RLModule, RLModuleSpec, default_module_class
from lockstep.modules.config import RLModuleSection
from lockstep.modules.lazy_layers import initialise_lazy
from lockstep.modules.model_config import ModelConfig
from lockstep.state.sizes import ClaimedSizeError
from lockstep.state.streams import RandomStreams


@dataclass
class ModuleBuilder:
    """Builder of networks from the options."""

    rl_module: RLModuleSection[Any]
    _: KW_ONLY
    algorithm: str
    """Name of the algorithm, for messages."""
    module_class: type[RLModule] | None
    """Default network class of the algorithm. None stands for an actor-critic, with or without memory."""
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
        complete_spec = RLModuleSpec(
            module_class=module_class,
            observation_space=spec.observation_space or observation_space,
            action_space=spec.action_space or action_space,
            inference_only=spec.inference_only,
            model_config=model_config,
            critic_space=spec.critic_space,
        )
        try:
            return complete_spec.build(seed=streams.seed("module"))
        except ClaimedSizeError:
            # A `ValueError` about the file that the options come from, and not about the spaces or options.
            raise
        except ValueError as error:
            # A default network cannot be blamed: the message names the algorithm whose default it is.
            if spec.module_class is None and self.algorithm not in str(error):
                raise ValueError(f"{self.algorithm} cannot be built for these spaces or options: {error}") from error
            raise
