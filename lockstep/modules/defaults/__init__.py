"""Default networks of the algorithms."""

from lockstep.modules.defaults.action_critics import (
    ActionCritics,
    DefaultIQLModule,
    DefaultSACModule,
    DefaultTD3Module,
    DefaultTQCModule,
)
from lockstep.modules.defaults.action_values import DefaultQModule, DistributionalQModule, ImplicitQuantileModule
from lockstep.modules.defaults.actor_critic import (
    DefaultActorCriticModule,
    RecurrentActorCriticModule,
    default_module_class,
)
from lockstep.modules.defaults.normalized_critics import DefaultCrossQModule, NormalizedCritics
from lockstep.modules.defaults.residual_critics import DefaultFlashSACModule
from lockstep.modules.defaults.transition_module import DefaultPolicyModule, TransitionModule

__all__ = [
    "ActionCritics",
    "DefaultActorCriticModule",
    "DefaultCrossQModule",
    "DefaultFlashSACModule",
    "DefaultIQLModule",
    "DefaultPolicyModule",
    "DefaultQModule",
    "DefaultSACModule",
    "DefaultTD3Module",
    "DefaultTQCModule",
    "DistributionalQModule",
    "ImplicitQuantileModule",
    "NormalizedCritics",
    "RecurrentActorCriticModule",
    "TransitionModule",
    "default_module_class",
]
