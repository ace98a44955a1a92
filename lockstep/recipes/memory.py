"""Recipes for tasks that need a memory: CartPole and Pendulum whose velocities are not observed."""

from __future__ import annotations

from lockstep.algorithms import PPOConfig
from lockstep.recipes.recipe import Recipe

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


MEMORY: tuple[Recipe, ...] = (
    Recipe(
        "ppo", "lockstep/StatelessCartPole-v0", ppo_stateless_cartpole, 500.0, WITH_VELOCITIES, 100_000, promise=475.0
    ),
)
