"""Networks: `RLModule` and its specs, default networks for every space, encoders, exploration and actors."""

from typing import Any

from lockstep.modules.action_dist import ActionDist
from lockstep.modules.actors import (
    ActingWeights,
    Actor,
    NumpyActor,
    NumpyRecurrentActor,
    ParameterAddresses,
    RecurrentActor,
    TorchActor,
    make_actor,
)
from lockstep.modules.defaults.action_critics import (
    ActionCritics,
    DefaultIQLModule,
    DefaultSACModule,
    DefaultTD3Module,
    DefaultTQCModule,
)
from lockstep.modules.defaults.action_values import (
    LEVEL_NOISE,
    WEIGHT_NOISE,
    DefaultQModule,
    DistributionalQModule,
    ImplicitQuantileModule,
)
from lockstep.modules.defaults.actor_critic import (
    DefaultActorCriticModule,
    RecurrentActorCriticModule,
    default_module_class,
)
from lockstep.modules.defaults.normalized_critics import BatchRenorm, DefaultCrossQModule, NormalizedCritics
from lockstep.modules.defaults.residual_critics import DefaultFlashSACModule
from lockstep.modules.defaults.transition_module import DefaultPolicyModule, MemoryFeatures, TransitionModule
from lockstep.modules.encoders import (
    Encoder,
    Features,
    FlatFeatures,
    ImageFeatures,
    JoinedFeatures,
    OneHotFeatures,
    is_image,
)
from lockstep.modules.exploration import (
    AddedNoise,
    EpsilonGreedy,
    Exploration,
    GaussianNoise,
    NoisyWeights,
    OrnsteinUhlenbeckNoise,
    RepeatedNoise,
    StateDependentNoise,
)
from lockstep.modules.layers import BatchedMLP, NoisyLinear, StateDependentHead
from lockstep.modules.memory import GatedTransformer, MemoryEncoder, Recurrence
from lockstep.modules.mirror import ActionMirror
from lockstep.modules.model_config import AttentionConfig, ModelConfig
from lockstep.modules.multi_rl_module import (
    ALL_MODULES,
    DEFAULT_MODULE_ID,
    MultiRLModule,
    MultiRLModuleSpec,
    check_module_id,
)
from lockstep.modules.rl_module import RLModule, RLModuleSpec, WrappedModule, wrap_module
from lockstep.state.moved import moved_name

__all__ = [
    "ALL_MODULES",
    "DEFAULT_MODULE_ID",
    "LEVEL_NOISE",
    "WEIGHT_NOISE",
    "ActingWeights",
    "ActionCritics",
    "ActionDist",
    "ActionMirror",
    "Actor",
    "AddedNoise",
    "AttentionConfig",
    "BatchRenorm",
    "BatchedMLP",
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
    "Encoder",
    "EpsilonGreedy",
    "Exploration",
    "Features",
    "FlatFeatures",
    "GatedTransformer",
    "GaussianNoise",
    "ImageFeatures",
    "ImplicitQuantileModule",
    "JoinedFeatures",
    "MemoryEncoder",
    "MemoryFeatures",
    "ModelConfig",
    "MultiRLModule",
    "MultiRLModuleSpec",
    "NoisyLinear",
    "NoisyWeights",
    "NormalizedCritics",
    "NumpyActor",
    "NumpyRecurrentActor",
    "OneHotFeatures",
    "OrnsteinUhlenbeckNoise",
    "ParameterAddresses",
    "RLModule",
    "RLModuleSpec",
    "Recurrence",
    "RecurrentActor",
    "RecurrentActorCriticModule",
    "RepeatedNoise",
    "StateDependentHead",
    "StateDependentNoise",
    "TorchActor",
    "TransitionModule",
    "WrappedModule",
    "check_module_id",
    "default_module_class",
    "is_image",
    "make_actor",
    "wrap_module",
]

_MOVED = {
    "ParameterPlaces": "lockstep.modules:ParameterAddresses",
    "Remembered": "lockstep.modules:MemoryFeatures",
}


def __getattr__(name: str) -> Any:
    """Return objects by the names that they had before."""
    return moved_name(__name__, name, _MOVED)
