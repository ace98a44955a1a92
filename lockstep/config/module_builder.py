"""`ModuleBuilder`: from a spec and the options of networks to a network."""

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
    """Builds networks, as the options say."""

    rl_module: RLModuleSection[Any]
    _: KW_ONLY
    algorithm: str
    module_class: type[RLModule] | None
    """The algorithm's class of network; None: an actor with a state value, with memory or without."""
    complete_model_config: Callable[[ModelConfig], ModelConfig]
    """Adds what the algorithm and its exploration need to the configuration of a default network."""

    def build(
        self,
        spec: RLModuleSpec | RLModule,
        observation_space: Space[Any],
        action_space: Space[Any],
        streams: RandomStreams,
    ) -> RLModule:
        """Build a network; its initial weights depend on the seed of its streams only."""
        if spec.is_built:
            initialise_lazy(spec)
            return spec
        model_config = spec.model_config if spec.model_config is not None else self.rl_module.model_config
        module_class = spec.module_class or self.module_class or default_module_class(model_config)
        if issubclass(module_class, CONFIGURED_MODULES):
            # A network of your own may have a dict of its own.
            model_config = self.complete_model_config(ModelConfig.of(model_config))
        filled = RLModuleSpec(
            module_class=module_class,
            observation_space=spec.observation_space or observation_space,
            action_space=spec.action_space or action_space,
            inference_only=spec.inference_only,
            model_config=model_config,
            critic_space=spec.critic_space,
        )
        try:
            return filled.build(seed=streams.seed("module"))
        except ClaimedSizeError:
            raise  # is about the file that the options come from
        except ValueError as error:
            if spec.module_class is None and self.algorithm not in str(error):
                raise ValueError(f"{self.algorithm} cannot be built for these spaces or options: {error}") from error
            raise
