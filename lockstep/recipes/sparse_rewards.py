"""Recipes for tasks with a single reward that is far away: hindsight and intrinsic rewards."""

from __future__ import annotations

from lockstep.algorithms import DQNConfig, PPOConfig
from lockstep.recipes.recipe import Recipe


def dqn_bit_flipping() -> DQNConfig:
    """Return settings for 15 bits with hindsight. With `replay(her=False)` they learn nothing: every return is -15."""
    return (
        DQNConfig()
        .environment("lockstep/BitFlipping-v0")
        .env_runners(num_envs_per_env_runner=8, rollout_fragment_length=10)
        .training(
            lr=1e-3,
            gamma=0.98,
            train_batch_size=128,
            epsilon=[[0, 1.0], [10_000, 0.05]],
            target_update_interval=1,
            tau=0.02,
        )
        .replay(update_per_step=0.25, her=True)
        .rl_module(model_config={"hiddens": (128,), "activation": "relu", "orthogonal_init": False})
        .reporting(total_steps=20_000)
    )


def ppo_sparse_maze() -> PPOConfig:
    """Return settings with an intrinsic reward for new cells. Without it (`"rnd"`) the exit is never found."""
    return (
        PPOConfig()
        .environment("lockstep/SparseMaze-v0")
        .env_runners(num_envs_per_env_runner=16)
        .training(
            lr=5e-4,
            train_batch_size=2000,
            minibatch_size=250,
            num_epochs=8,
            entropy_coeff=0.02,
            intrinsic_reward="rnd",
            intrinsic_coeff=0.1,
        )
        .reporting(total_steps=200_000)
    )


SPARSE_REWARDS: tuple[Recipe, ...] = (
    Recipe(
        "dqn",
        "lockstep/BitFlipping-v0",
        dqn_bit_flipping,
        -6.5,
        "the best there is: 7.5 of 15 bits differ in the mean, the last step costs nothing",
        20_000,
        promise=-7.5,
    ),
    Recipe("ppo", "lockstep/SparseMaze-v0", ppo_sparse_maze, 1.0, "the best there is", 200_000, promise=1.0),
)
