"""Collecting while learning: which fragments an asynchronous algorithm learns from, and the collector of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.algorithms.policy import Policy
from lockstep.rollout import EnvRunnerGroup
from lockstep.rollout.group_collector import AsyncGroupCollector

if TYPE_CHECKING:
    from lockstep.algorithms.config import AlgorithmConfig


def collects_while_learning(config: AlgorithmConfig) -> bool:
    """Does the algorithm allow it, and are there env runners in other processes?"""
    return config.is_asynchronous and config.env_runners.num_env_runners > 0


def fragments_of(config: AlgorithmConfig) -> tuple[int, int]:
    """Vector steps of a fragment, and fragments in a train batch: as many as reach `train_batch_size`.

    Without a `rollout_fragment_length`, fragments of all runners make one batch.
    """
    num_envs = config.env_runners.num_envs_per_env_runner
    length = config.env_runners.rollout_fragment_length or -(
        -config.training.train_batch_size // (config.env_runners.num_env_runners * num_envs)
    )
    return int(length), max(1, -(-config.training.train_batch_size // (length * num_envs)))


def steps_per_batch(config: AlgorithmConfig) -> int:
    """Environment steps in a train batch: whole fragments."""
    length, number = fragments_of(config)
    return length * number * int(config.env_runners.num_envs_per_env_runner)


def check_asynchronous(config: AlgorithmConfig) -> None:
    """Raises `ValueError` for what does not go with collecting while learning."""
    if config.env_runners.batch_mode != "truncate_episodes":
        raise ValueError(
            f"env_runners.batch_mode={config.env_runners.batch_mode!r}: {config.algorithm} collects fragments of equal "
            "length from env runners in other processes; use 'truncate_episodes', or num_env_runners=0"
        )
    if getattr(config.rl_module.model_config, "recurrent", None) is not None and config.max_lag > 0:
        raise ValueError(
            f"training.max_lag={config.max_lag}: a network with memory learns from its present self only; set max_lag=0"
        )


def build_async_collector(config: AlgorithmConfig, policy: Policy, group: EnvRunnerGroup) -> AsyncGroupCollector:
    """The collector over the runners of `group`."""
    length, number = fragments_of(config)
    return AsyncGroupCollector(
        policy, group, fragment_length=length, fragments_per_batch=number, max_lag=config.max_lag
    )
