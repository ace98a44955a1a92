"""Keyword types of the options declared in this folder."""

# Written by `python tests/architecture/keyword_types.py` from the fields of the sections: do not edit.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypedDict


class EnvRunnersOptions(TypedDict, total=False):
    """Options of `EnvRunnersSection`."""

    num_env_runners: int
    num_envs_per_env_runner: int
    vectorize_mode: Literal["auto", "sync", "async", "vector", "envpool"]
    rollout_fragment_length: int | None
    batch_mode: Literal["truncate_episodes", "complete_episodes"]
    explore: bool
    exploration: Literal["epsilon", "normal", "ou", "gsde", "noisy"] | None
    exploration_config: dict[str, Any]
    allow_host: bool
    step_timeout: float | None
    sample_timeout_s: float
    max_requests_in_flight_per_env_runner: int
    num_cpus_per_env_runner: float
    num_gpus_per_env_runner: float
    custom_resources_per_env_runner: dict[str, float]
    env_to_module_connector: Callable[..., Any] | None
    module_to_env_connector: Callable[..., Any] | None
    add_default_connectors: bool


class EvaluationOptions(TypedDict, total=False):
    """Options of `EvaluationSection`."""

    evaluation_interval: int
    evaluation_duration: int
    evaluation_duration_unit: Literal["episodes", "timesteps"]
    evaluation_num_envs: int
    evaluation_num_env_runners: int
    evaluation_parallel_to_training: bool
    evaluation_config: dict[str, Any]
    custom_evaluation_function: Callable[..., Any] | None
    evaluation_explore: bool
    epsilon: float
    stop_return: float | None
    max_episode_steps: int | None
