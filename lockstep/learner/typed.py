"""Keyword types of the options declared in this folder."""

# Written by `python tests/architecture/keyword_types.py` from the fields of the sections: do not edit.

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypedDict

from lockstep.options.schedules import ScheduleLike


class TrainingOptions(TypedDict, total=False):
    """Options of `TrainingSection`."""

    lr: ScheduleLike
    gamma: float
    train_batch_size: int
    minibatch_size: int | Literal["auto"] | None
    num_epochs: int
    shuffle_batch_per_epoch: bool
    grad_clip: float | None
    grad_clip_by: Literal["value", "norm", "global_norm"]
    optimizer: Literal["adam", "adamw", "rmsprop", "sgd"] | Callable[..., Any]
    optimizer_kwargs: dict[str, Any]
    adam_epsilon: float
    nan_policy: Literal["skip", "stop", "zero"]
    learner_class: type | None
    learner_config_dict: dict[str, Any]
    learner_connector: Callable[..., Any] | None
    intrinsic_reward: Literal["rnd"] | Callable[..., Any] | None
    intrinsic_coeff: float
    symmetry: Callable[..., Any] | None
    symmetry_augmentation: bool
    symmetry_loss_coeff: float


class LearnersOptions(TypedDict, total=False):
    """Options of `LearnersSection`."""

    num_learners: int
    num_cpus_per_learner: int
    num_gpus_per_learner: int
    custom_resources_per_learner: dict[str, float]
    max_requests_in_flight_per_learner: int
    never_skip_update: bool
    learner_timeout_s: float


class ResourcesOptions(TypedDict, total=False):
    """Options of `ResourcesSection`."""

    num_cpus_for_main_process: int
    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]
    ray_address: str | None


class FaultToleranceOptions(TypedDict, total=False):
    """Options of `FaultToleranceSection`."""

    max_learner_restarts: int
    restart_failed_env_runners: bool
    max_env_runner_restarts: int
    restart_failed_envs: bool
    max_env_restarts: int
    max_restarts_in_window: int
    restart_window_s: float
    num_standby_processes: int


class FrameworkOptions(TypedDict, total=False):
    """Options of `FrameworkSection`."""

    compile: bool | Literal["auto"]
    compile_after: int
    device: str
    dtype: Literal["float32", "float64"]
    mixed_precision: bool
    fused_losses: bool
    num_threads: int | None


class MultiAgentOptions(TypedDict, total=False):
    """Options of `MultiAgentSection`."""

    policies: Any
    policy_mapping_fn: Callable[..., str] | Mapping[Any, str] | Sequence[Any] | None
    policies_to_train: Collection[Any] | Callable[..., bool] | None
    centralized_critic: Literal["state", "observations"] | bool
    agent_id_in_obs: bool
    count_steps_by: Literal["env_steps", "agent_steps"]
    reward_metric: Callable[..., Any] | None
