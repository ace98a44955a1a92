"""Types of annotations, and the tuples that buffers return."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, SupportsFloat, TypeAlias

import gymnasium as gym
import numpy as np
from torch import Tensor

if TYPE_CHECKING:
    from lockstep_sb3.common.callbacks import BaseCallback
    from lockstep_sb3.common.vec_env import VecEnv

GymEnv: TypeAlias = "gym.Env | VecEnv"
GymObs: TypeAlias = tuple[Any, ...] | dict[str, Any] | np.ndarray | int
GymResetReturn: TypeAlias = tuple[GymObs, dict[str, Any]]
GymStepReturn: TypeAlias = tuple[GymObs, float, bool, bool, dict[str, Any]]
AtariResetReturn: TypeAlias = tuple[np.ndarray, dict[str, Any]]
AtariStepReturn: TypeAlias = tuple[np.ndarray, SupportsFloat, bool, bool, dict[str, Any]]
TensorDict: TypeAlias = dict[str, Tensor]
PyTorchObs: TypeAlias = Tensor | TensorDict
OptimizerStateDict: TypeAlias = dict[str, Any]
Schedule: TypeAlias = Callable[[float], float]
"""Function of the remaining progress, which falls from 1 to 0."""
MaybeCallback: TypeAlias = "Callable[..., Any] | list[BaseCallback] | BaseCallback | None"


class RolloutBufferSamples(NamedTuple):
    """Rows of a rollout. All but the observations and actions are `[N]`."""

    observations: Tensor
    actions: Tensor
    old_values: Tensor
    old_log_prob: Tensor
    advantages: Tensor
    returns: Tensor


class DictRolloutBufferSamples(NamedTuple):
    """Rows of a rollout with observations that are dicts."""

    observations: TensorDict
    actions: Tensor
    old_values: Tensor
    old_log_prob: Tensor
    advantages: Tensor
    returns: Tensor


class ReplayBufferSamples(NamedTuple):
    """Transitions of a replay buffer. `dones`, `rewards` and `discounts` are `[N, 1]`.

    `dones` is 1 where the episode terminated, and 0 where it was truncated. `discounts` are the factors of the next
    values for sums of several rewards, otherwise None.
    """

    observations: Tensor
    actions: Tensor
    next_observations: Tensor
    dones: Tensor
    rewards: Tensor
    discounts: Tensor | None = None


class DictReplayBufferSamples(NamedTuple):
    """Transitions of a replay buffer with observations that are dicts."""

    observations: TensorDict
    actions: Tensor
    next_observations: TensorDict
    dones: Tensor
    rewards: Tensor
    discounts: Tensor | None = None


class RolloutReturn(NamedTuple):
    """Result of collecting steps: their number, the number of episodes that ended, and whether training continues."""

    episode_timesteps: int
    n_episodes: int
    continue_training: bool


class TrainFrequencyUnit(Enum):
    """Unit of the steps between two updates."""

    STEP = "step"
    EPISODE = "episode"


class TrainFreq(NamedTuple):
    """Number and unit of the steps between two updates."""

    frequency: int
    unit: TrainFrequencyUnit


class PolicyPredictor(Protocol):
    """Object with the method `predict`, such as a model or a policy."""

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """Return actions for observations, and the next state of a recurrent policy."""
        ...
