"""Recipes for games with images as observations: the five games of MinAtar, and Pong.

MinAtar (Young & Tian 2019, https://arxiv.org/abs/1903.03176): the network is the paper's, one convolution of 16
filters of 3 x 3 and 128 units. Runs have 2,000,000 frames instead of 5,000,000. In an evaluation actions are drawn, or
one of a hundred is random: some games would not end otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from lockstep.algorithms import DQNConfig, PPOConfig, PQNConfig
from lockstep.recipes.families import ppo_atari
from lockstep.recipes.recipe import Recipe

FRAMES = 2_000_000
"""Number of frames of a MinAtar run."""
MINATAR_NETWORK = {
    "conv_filters": ((16, 3, 1),),
    "conv_activation": "relu",
    "image_hiddens": (128,),
    "activation": "relu",
}


def ppo_minatar(env: str) -> PPOConfig:
    """Return settings with 80 steps of 50 environments, and one network for policy and value."""
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
    """Return settings with 40 steps of 50 environments, and exploration in the first tenth of the run."""
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
    """Return settings close to the paper's.

    As in the paper, learning begins after 5,000 frames, the buffer holds 100,000 transitions, and errors are clipped at
    1. Different are Adam, double Q-learning, sixteen environments, one batch of 64 for eight frames instead of eight of
    32, and a target network that is copied every 2,000 frames.
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
    """Return the settings for all Atari games with 16 environments and four times the learning rate."""
    return (
        ppo_atari()
        .environment("ALE/Pong-v5")
        .env_runners(num_envs_per_env_runner=16)
        .training(lr=[[0, 1e-3], [2_000_000, 0.0]], train_batch_size=2000, minibatch_size=250)
        .reporting(total_steps=2_000_000)
    )


DALEY = "Daley et al. 2025 (RLC), DQN, evaluated with epsilon 0.01, {} frames (30 seeds)"
GYMNAX = "gymnax-blines, PPO, 10M steps, without sticky actions"
GREENQUIST = "github.com/nickgreenquist/deep-rl-from-scratch, PPO, 5M frames (3 seeds)"

PROMISES = {"Breakout": {"pqn": 19.0, "ppo": 11.0}}
"""Promised return by game and algorithm, for the games that have run with three seeds."""


def minatar_recipes() -> Iterator[Recipe]:
    """Yield the recipes of three algorithms for each MinAtar game."""
    for game, dqn, frames, ppo, source in (
        ("Asterix", 28.80, "2M", 15.0, GYMNAX),
        ("Breakout", 24.03, "2M", 28.0, GYMNAX),
        ("Freeway", 57.66, "2M", 58.0, GYMNAX),
        ("Seaquest", 72.69, "10M", 24.5, GREENQUIST),
        ("SpaceInvaders", 107.30, "2M", 131.0, GYMNAX),
    ):
        env = f"MinAtar/{game}-v1"
        published = DALEY.format(frames)
        promises = PROMISES.get(game, {})
        yield Recipe("pqn", env, partial(pqn_minatar, env), dqn, published, FRAMES, promise=promises.get("pqn"))
        yield Recipe("ppo", env, partial(ppo_minatar, env), ppo, source, FRAMES, promise=promises.get("ppo"))
        yield Recipe("dqn", env, partial(dqn_minatar, env), dqn, published, FRAMES, promise=None)


GAMES: tuple[Recipe, ...] = (
    *minatar_recipes(),
    Recipe(
        "ppo",
        "ALE/Pong-v5",
        ppo_pong,
        16.69,
        "SLM-Lab, PPO, sticky actions, 10M frames as it counts them (4 seeds)",
        2_000_000,
        promise=None,
        requires="atari",
    ),
)
