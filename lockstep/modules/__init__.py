"""Networks: `RLModule` and its specs, the default actor-critic for every space, encoders, acting."""

from lockstep.modules.acting import Actor, NumpyActor, TorchActor, make_actor
from lockstep.modules.acting_weights import ActingWeights, flatten_module, load_flat
from lockstep.modules.action_critics import ActionCritics
from lockstep.modules.action_dist import ActionDist
from lockstep.modules.action_values import DefaultQModule, DistributionalQModule
from lockstep.modules.actor_critic import DefaultActorCriticModule
from lockstep.modules.batched import BatchedMLP
from lockstep.modules.deterministic import DefaultTD3Module
from lockstep.modules.encoders import Encoder
from lockstep.modules.exploration import EpsilonGreedy, Exploration, GaussianNoise
from lockstep.modules.implicit_q import DefaultIQLModule
from lockstep.modules.model_config import ModelConfig
from lockstep.modules.multi_rl_module import (
    ALL_MODULES,
    DEFAULT_MODULE_ID,
    MultiRLModule,
    MultiRLModuleSpec,
    check_module_id,
)
from lockstep.modules.policy_only import DefaultPolicyModule
from lockstep.modules.recurrent import Recurrence, RecurrentActorCriticModule, default_module_class
from lockstep.modules.recurrent_acting import NumpyRecurrentActor, RecurrentActor
from lockstep.modules.rl_module import RLModule, RLModuleSpec
from lockstep.modules.soft_actor_critic import DefaultSACModule
from lockstep.modules.wrap import wrap_module

__all__ = [
    "ALL_MODULES",
    "DEFAULT_MODULE_ID",
    "ActingWeights",
    "ActionCritics",
    "ActionDist",
    "Actor",
    "BatchedMLP",
    "DefaultActorCriticModule",
    "DefaultIQLModule",
    "DefaultPolicyModule",
    "DefaultQModule",
    "DefaultSACModule",
    "DefaultTD3Module",
    "DistributionalQModule",
    "Encoder",
    "EpsilonGreedy",
    "Exploration",
    "GaussianNoise",
    "ModelConfig",
    "MultiRLModule",
    "MultiRLModuleSpec",
    "NumpyActor",
    "NumpyRecurrentActor",
    "RLModule",
    "RLModuleSpec",
    "Recurrence",
    "RecurrentActor",
    "RecurrentActorCriticModule",
    "TorchActor",
    "check_module_id",
    "default_module_class",
    "flatten_module",
    "load_flat",
    "make_actor",
    "wrap_module",
]
