"""Recipes for games that are seen as images: the five of MinAtar, and Pong.

MinAtar's (Young & Tian 2019, https://arxiv.org/abs/1903.03176): the network of the paper, one convolution of 16 filters
of 3 x 3 and 128 units, and 2,000,000 frames instead of 5,000,000. Evaluation draws actions, or takes one of a hundred
by chance: some games would not end otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from lockstep.algorithms import DQNConfig, PPOConfig, PQNConfig
from lockstep.recipes.families import ppo_atari
from lockstep.recipes.recipe import RL_ZOO, Recipe

FRAMES = 2_000_000
MINATAR_NETWORK = {
    "conv_filters": ((16, 3, 1),),
    "conv_activation": "relu",
    "image_hiddens": (128,),
    "activation": "relu",
}


def ppo_minatar(env: str) -> PPOConfig:
    """80 steps of 50 environments, a rate that falls to zero, one network for the policy and the value."""
    return (
        PPOConfig()
        .environment(env)
        .env_runners(num_envs_per_env_runner=50)
        .training(
            lr=[[0, 1e-3], [FRAMES, 0.0]],
            lambda_=0.95,
            entropy_coeff=0.01,
            train_batch_size=4000,
            minibatch_size=500,
            num_epochs=4,
        )
        .rl_module(model_config={**MINATAR_NETWORK, "vf_share_layers": True})
        .evaluation(evaluation_explore=True, evaluation_duration=20)
        .reporting(total_steps=FRAMES)
    )


def pqn_minatar(env: str) -> PQNConfig:
    """40 steps of 50 environments, exploration over a tenth of the run."""
    return (
        PQNConfig()
        .environment(env)
        .env_runners(num_envs_per_env_runner=50)
        .training(
            lr=[[0, 5e-4], [FRAMES, 0.0]],
            epsilon=[[0, 1.0], [200_000, 0.05]],
            train_batch_size=2000,
            minibatch_size=125,
        )
        .rl_module(model_config=MINATAR_NETWORK)
        .evaluation(epsilon=0.01, evaluation_duration=20)
        .reporting(total_steps=FRAMES)
    )


def dqn_minatar(env: str) -> DQNConfig:
    """As in the paper: learning after 5,000 frames, a memory of 100,000, errors clipped at 1. Not as there: Adam,
    double Q-learning, sixteen environments, a batch of 64 for eight frames instead of eight of 32, a target network
    that is copied every 2,000 frames.
    """
    return (
        DQNConfig()
        .environment(env)
        .env_runners(num_envs_per_env_runner=16)
        .training(
            lr=2.5e-4,
            train_batch_size=64,
            epsilon=[[0, 1.0], [5_000, 1.0], [205_000, 0.05]],
            target_update_interval=250,
            huber_delta=1.0,
        )
        .replay(capacity=100_000, learning_starts=5_000, update_per_step=1 / 8)
        .rl_module(model_config={**MINATAR_NETWORK, "orthogonal_init": False})
        .evaluation(epsilon=0.01, evaluation_duration=20)
        .reporting(total_steps=FRAMES)
    )


def ppo_pong() -> PPOConfig:
    """As for all games of Atari, with 16 environments, twice the learning rate, and a run of 2,000,000 steps."""
    return (
        ppo_atari()
        .environment("ALE/Pong-v5")
        .env_runners(num_envs_per_env_runner=16)
        .training(lr=[[0, 5e-4], [2_000_000, 0.0]], train_batch_size=2000, minibatch_size=250)
        .reporting(total_steps=2_000_000)
    )


MINATAR_GAMES = ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")


def minatar_recipes() -> Iterator[Recipe]:
    """Yield the recipes of the three algorithms for each game."""
    for game in MINATAR_GAMES:
        env = f"MinAtar/{game}-v1"
        for algorithm, config in (("ppo", ppo_minatar), ("pqn", pqn_minatar), ("dqn", dqn_minatar)):
            yield Recipe(algorithm, env, partial(config, env), 0.0, "TODO", FRAMES, promise=None)


GAMES: tuple[Recipe, ...] = (
    *minatar_recipes(),
    Recipe(
        "ppo",
        "ALE/Pong-v5",
        ppo_pong,
        20.989,
        f"{RL_ZOO}, PongNoFrameskip-v4, 10M steps",
        2_000_000,
        promise=None,
        requires="atari",
    ),
)
