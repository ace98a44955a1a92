"""Recipes for tasks that need a memory: CartPole and Pendulum whose velocities are not observed."""

from __future__ import annotations

from lockstep.algorithms import PPOConfig, SACConfig
from lockstep.recipes.recipe import RL_ZOO, Recipe

WITH_VELOCITIES = "the best there is, also where velocities are observed"


def ppo_stateless_cartpole() -> PPOConfig:
    """An LSTM of 64 numbers for the policy and one for the value; normalised rewards, a rate that falls to zero."""
    return (
        PPOConfig()
        .environment("lockstep/StatelessCartPole-v0", normalize_rewards=True)
        .env_runners(num_envs_per_env_runner=8)
        .training(lr=[[0, 1e-3], [100_000, 0.0]], lambda_=0.95, train_batch_size=1000, num_epochs=8)
        .rl_module(model_config={"recurrent": "lstm"})
        .reporting(total_steps=100_000)
    )


def sac_stateless_pendulum() -> SACConfig:
    """Short sequences, since two steps show the velocity. Rewards are normalised, so that returns are about 1, and the
    temperature begins low: at 1 the entropy would be worth more than they are.
    """
    return (
        SACConfig()
        .environment("lockstep/StatelessPendulum-v0", normalize_rewards=True)
        .env_runners(num_envs_per_env_runner=4)
        .training(lr=[[0, 1e-3], [20_000, 0.0]], gamma=0.95, tau=0.01, initial_alpha=0.01, train_batch_size=16)
        .replay(capacity=20_000, learning_starts=1_000, sequence_length=16, burn_in=4, update_per_step=0.5)
        .rl_module(model_config={"hiddens": (64, 64), "recurrent": "lstm"})
        .reporting(total_steps=20_000)
    )


MEMORY: tuple[Recipe, ...] = (
    Recipe(
        "ppo", "lockstep/StatelessCartPole-v0", ppo_stateless_cartpole, 500.0, WITH_VELOCITIES, 100_000, promise=475.0
    ),
    Recipe(
        "sac",
        "lockstep/StatelessPendulum-v0",
        sac_stateless_pendulum,
        -156.995,
        f"{RL_ZOO}, 20k steps, velocities observed",
        20_000,
        promise=None,
    ),
)
