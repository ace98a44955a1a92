"""Recipes for Box2D: LunarLander and BipedalWalker."""

from __future__ import annotations

from lockstep.algorithms import DQNConfig, PPOConfig, TQCConfig
from lockstep.recipes.mujoco import off_policy
from lockstep.recipes.recipe import RL_ZOO, Recipe


def ppo_lunar_lander() -> PPOConfig:
    """Return settings with a long horizon (gamma 0.999), because the landing is rewarded at the end."""
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


def ppo_lunar_lander_continuous() -> PPOConfig:
    """Return the settings of `ppo_lunar_lander` for continuous actions."""
    return ppo_lunar_lander().environment("LunarLanderContinuous-v3")


def dqn_lunar_lander() -> DQNConfig:
    """Return settings with a target network that follows slowly, 3-step returns, and a decreasing learning rate."""
    return (
        DQNConfig()
        .environment("LunarLander-v3")
        .env_runners(num_envs_per_env_runner=8)
        .training(
            lr=[[0, 6.3e-4], [100_000, 0.0]],
            train_batch_size=128,
            epsilon=[[0, 1.0], [12_000, 0.1]],
            target_update_interval=1,
            tau=0.01,
        )
        .replay(capacity=50_000, learning_starts=1_000, update_per_step=0.5, n_step=3)
        .rl_module(model_config={"hiddens": (256, 256)})
        .reporting(total_steps=100_000)
    )


def ppo_bipedal_walker() -> PPOConfig:
    """Return settings with 32 environments, normalised observations and rewards, and a long horizon."""
    return (
        PPOConfig()
        .environment("BipedalWalker-v3", normalize_observations=True, normalize_rewards=True)
        .env_runners(num_envs_per_env_runner=32)
        .training(
            lr=[[0, 3e-4], [2_000_000, 0.0]],
            gamma=0.999,
            lambda_=0.95,
            clip_param=0.18,
            train_batch_size=8000,
            minibatch_size=250,
            num_epochs=10,
        )
        .rl_module(model_config={"log_std_init": -0.5})
        .reporting(total_steps=2_000_000)
    )


def tqc_bipedal_walker() -> TQCConfig:
    """Return the settings of RL Baselines3 Zoo with eight environments, half as many gradient steps, and no gSDE."""
    config = off_policy(TQCConfig(), "BipedalWalker-v3").training(lr=7.3e-4, gamma=0.98, tau=0.02)
    config.rl_module(model_config={"hiddens": (400, 300), "critic_hiddens": (400, 300), "num_critics": 2})
    return config.reporting(total_steps=500_000)


BOX2D: tuple[Recipe, ...] = (
    Recipe(
        "ppo",
        "LunarLander-v3",
        ppo_lunar_lander,
        242.119,
        f"{RL_ZOO}, LunarLander-v2, 1M steps",
        500_000,
        promise=175.0,
        requires="box2d",
    ),
    Recipe(
        "dqn",
        "LunarLander-v3",
        dqn_lunar_lander,
        154.382,
        f"{RL_ZOO}, LunarLander-v2, 100k steps",
        100_000,
        promise=None,
        requires="box2d",
    ),
    Recipe(
        "ppo",
        "LunarLanderContinuous-v3",
        ppo_lunar_lander_continuous,
        270.863,
        f"{RL_ZOO}, LunarLanderContinuous-v2, 1M steps",
        500_000,
        promise=175.0,
        requires="box2d",
    ),
    Recipe(
        "ppo",
        "BipedalWalker-v3",
        ppo_bipedal_walker,
        287.939,
        f"{RL_ZOO}, 5M steps",
        2_000_000,
        promise=270.0,
        requires="box2d",
    ),
    Recipe(
        "tqc",
        "BipedalWalker-v3",
        tqc_bipedal_walker,
        329.808,
        f"{RL_ZOO}, 500k steps",
        500_000,
        promise=None,
        requires="box2d",
    ),
)
