"""Recipes for environments that need an extra: Box2D and MuJoCo."""

from __future__ import annotations

from lockstep.algorithms import PPOConfig, SACConfig
from lockstep.recipes.recipe import RL_ZOO, Recipe


def ppo_lunar_lander() -> PPOConfig:
    """A long horizon (gamma 0.999): the landing is paid at the end."""
    return (
        PPOConfig()
        .environment("LunarLander-v3")
        .env_runners(num_envs_per_env_runner=20)
        .training(
            lr=[[0, 1e-3], [500_000, 0.0]],
            gamma=0.999,
            lambda_=0.98,
            entropy_coeff=0.01,
            train_batch_size=2500,
            minibatch_size=125,
            num_epochs=10,
        )
        .reporting(total_steps=500_000)
    )


def ppo_half_cheetah() -> PPOConfig:
    """Normalised observations and rewards, falling learning rate."""
    return (
        PPOConfig()
        .environment("HalfCheetah-v4", normalize_observations=True, normalize_rewards=True)
        .env_runners(num_envs_per_env_runner=4)
        .training(
            lr=[[0, 3e-4], [1_000_000, 0.0]],
            gamma=0.98,
            lambda_=0.92,
            train_batch_size=2000,
            minibatch_size=100,
            num_epochs=10,
        )
        .rl_module(model_config={"log_std_init": -1.0})
        .reporting(total_steps=1_000_000)
    )


def sac_half_cheetah() -> SACConfig:
    """The paper's settings; four environments, 10,000 random steps first."""
    return (
        SACConfig()
        .environment("HalfCheetah-v4")
        .env_runners(num_envs_per_env_runner=4)
        .replay(capacity=300_000, learning_starts=10_000)
        .reporting(total_steps=300_000)
    )


ROBOTS: tuple[Recipe, ...] = (
    Recipe(
        "ppo",
        "LunarLander-v3",
        ppo_lunar_lander,
        242.119,
        f"{RL_ZOO}, LunarLander-v2, 1M steps",
        500_000,
        band=200.0,
        requires="box2d",
    ),
    Recipe(
        "ppo",
        "HalfCheetah-v4",
        ppo_half_cheetah,
        1700.0,
        "Schulman et al. 2017, figure 3, 1M steps (about 1,700); RL Baselines3 Zoo, tuned, v3: 5,819",
        1_000_000,
        band=1700.0,
        requires="mujoco",
    ),
    Recipe(
        "sac",
        "HalfCheetah-v4",
        sac_half_cheetah,
        9059.256,
        "Tianshou's published benchmark, 300k steps (10 seeds, v3, lr 1e-3); Stable-Baselines3, one run, v5: 7,032",
        300_000,
        band=4000.0,
        requires="mujoco",
    ),
)
