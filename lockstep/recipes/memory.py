"""Recipes for tasks that need a memory: CartPole and Pendulum without observed velocities."""

from __future__ import annotations

from typing import Any

from gymnasium import Space

from lockstep.algorithms import DQNConfig, PPOConfig, SACConfig
from lockstep.connectors import ScaleRewards
from lockstep.recipes.recipe import RL_ZOO, Recipe

WITH_VELOCITIES = "the best there is, also where velocities are observed"


def ppo_stateless_cartpole() -> PPOConfig:
    """Return settings with an LSTM of 64 units for the policy, another for the value, and normalised rewards."""
    return (
        PPOConfig()
        .environment("lockstep/StatelessCartPole-v0", normalize_rewards=True)
        .env_runners(num_envs_per_env_runner=8)
        .training(lr=[[0, 1e-3], [100_000, 0.0]], lambda_=0.95, train_batch_size=1000, num_epochs=8)
        .rl_module(model_config={"recurrent": "lstm"})
        .reporting(total_steps=100_000)
    )


def small_rewards(observation_space: Space[Any], action_space: Space[Any]) -> ScaleRewards:
    """Return a learner connector that multiplies rewards by 0.02, so that returns are of the order of 1."""
    return ScaleRewards(0.02)


def dqn_stateless_cartpole() -> DQNConfig:
    """Return settings with sequences of 32 steps, after up to 8 steps that only fill the memory.

    Rewards are scaled down because the outputs of an LSTM lie between -1 and 1.
    """
    return (
        DQNConfig()
        .environment("lockstep/StatelessCartPole-v0", normalize_observations=True)
        .env_runners(num_envs_per_env_runner=8, rollout_fragment_length=16)
        .training(
            lr=[[0, 1e-3], [128_000, 0.0]],
            train_batch_size=32,
            epsilon=[[0, 1.0], [10_000, 0.02]],
            target_update_interval=50,
            huber_delta=1.0,
            learner_connector=small_rewards,
        )
        .replay(capacity=128_000, sequence_length=32, burn_in=8, n_step=5, update_per_step=1 / 16)
        .rl_module(model_config={"hiddens": (64,), "activation": "tanh", "orthogonal_init": True, "recurrent": "lstm"})
        .reporting(total_steps=128_000)
    )


def sac_stateless_pendulum() -> SACConfig:
    """Return settings with short sequences, since two steps show the velocity.

    Rewards are normalised, so that returns are about 1. The temperature begins low: at 1 the entropy would count more
    than the returns.
    """
    return (
        SACConfig()
        .environment("lockstep/StatelessPendulum-v0", normalize_rewards=True)
        .env_runners(num_envs_per_env_runner=4)
        .training(lr=[[0, 1e-3], [30_000, 0.0]], gamma=0.95, tau=0.01, initial_alpha=0.01, train_batch_size=16)
        .replay(capacity=30_000, learning_starts=1_000, sequence_length=16, burn_in=4, update_per_step=0.5)
        .rl_module(model_config={"hiddens": (64, 64), "recurrent": "lstm"})
        .reporting(total_steps=30_000)
    )


MEMORY: tuple[Recipe, ...] = (
    Recipe(
        "ppo", "lockstep/StatelessCartPole-v0", ppo_stateless_cartpole, 500.0, WITH_VELOCITIES, 100_000, promise=475.0
    ),
    Recipe(
        "dqn", "lockstep/StatelessCartPole-v0", dqn_stateless_cartpole, 500.0, WITH_VELOCITIES, 128_000, promise=495.0
    ),
    Recipe(
        "sac",
        "lockstep/StatelessPendulum-v0",
        sac_stateless_pendulum,
        -156.995,
        f"{RL_ZOO}, 20k steps, velocities observed",
        30_000,
        promise=-295.0,
    ),
)
