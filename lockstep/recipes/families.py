"""Settings for all environments of a family, where no recipe is for the very one: published ones, without a promise.

Atari (`ALE/Name-v5`, see `lockstep.envs.atari`): four frames are stacked, and the sign of rewards is learned from (Mnih
et al. 2015), while returns are the game's. Evaluation draws actions, or takes a few by chance: a policy that never
presses FIRE would play some games without end.

PPO and A2C: the settings of RL Baselines3 Zoo for Atari, near to those of Schulman et al. 2017, table 5, and Mnih et
al. 2016, but for a clipping of 0.1 throughout and, with A2C, Adam and a falling learning rate. DQN, C51, QR-DQN: those
of Dopamine (Castro et al. 2018, https://arxiv.org/abs/1812.06110), which are for sticky actions, with a memory of
100,000 steps and eight environments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from gymnasium.spaces import Space

from lockstep.algorithms import A2CConfig, AlgorithmConfig, C51Config, DQNConfig, PPOConfig, QRDQNConfig
from lockstep.connectors import ClipRewards

AnyConfig = TypeVar("AnyConfig", bound=AlgorithmConfig)
ActionValues = TypeVar("ActionValues", DQNConfig, C51Config, QRDQNConfig)
STEPS = 10_000_000


@dataclass(frozen=True)
class Family:
    """Settings of one algorithm for environments whose ids have a pattern."""

    algorithm: str
    pattern: str
    """with `*` for any letters"""
    config: Callable[[], AlgorithmConfig]
    """makes a new configuration without an environment"""
    source: str
    total_steps: int = STEPS


def sign_of_rewards(observation_space: Space[Any], action_space: Space[Any]) -> ClipRewards:
    """Return a learner connector that leaves the sign of rewards."""
    return ClipRewards(sign=True)


def _on_atari(config: AnyConfig) -> AnyConfig:
    config.environment(frame_stack=4)
    config.env_runners(num_envs_per_env_runner=8)
    config.training(learner_connector=sign_of_rewards)
    config.evaluation(evaluation_duration=10)
    config.reporting(total_steps=STEPS)
    return config


def ppo_atari() -> PPOConfig:
    """128 steps of 8 environments, four passes over minibatches of 256."""
    return (
        _on_atari(PPOConfig())
        .training(
            lr=[[0, 2.5e-4], [STEPS, 0.0]],
            clip_param=0.1,
            entropy_coeff=0.01,
            train_batch_size=1024,
            minibatch_size=256,
            num_epochs=4,
        )
        .rl_module(model_config={"vf_share_layers": True})
        .evaluation(evaluation_explore=True)
    )


def a2c_atari() -> A2CConfig:
    """5 steps of 16 environments."""
    return (
        _on_atari(A2CConfig())
        .env_runners(num_envs_per_env_runner=16)
        .training(lr=[[0, 7e-4], [STEPS, 0.0]], train_batch_size=80, vf_loss_coeff=0.25, entropy_coeff=0.01)
        .rl_module(model_config={"vf_share_layers": True})
        .evaluation(evaluation_explore=True)
    )


def dqn_atari() -> DQNConfig:
    """A gradient step for four environment steps, the target network copied every 8,000 of these."""
    return _action_values(DQNConfig().training(huber_delta=1.0), 6.25e-5)


def c51_atari() -> C51Config:
    """As DQN, 51 atoms from -10 to 10; the learning rate of Bellemare et al. 2017."""
    return _action_values(C51Config().training(v_min=-10.0, v_max=10.0), 2.5e-4, 0.01 / 32)


def qrdqn_atari() -> QRDQNConfig:
    """As DQN, 200 quantiles; the learning rate of Dabney et al. 2018."""
    return _action_values(QRDQNConfig().training(num_quantiles=200), 5e-5, 0.01 / 32)


def _action_values(config: ActionValues, lr: float, adam_epsilon: float = 1.5e-4) -> ActionValues:
    return (
        _on_atari(config)
        .training(
            lr=lr,
            adam_epsilon=adam_epsilon,
            train_batch_size=32,
            epsilon=[[0, 1.0], [20_000, 1.0], [270_000, 0.01]],
            target_update_interval=2_000,
        )
        .replay(capacity=100_000, learning_starts=20_000, update_per_step=0.25)
        .rl_module(model_config={"orthogonal_init": False})
        .evaluation(epsilon=0.001)
    )


ZOO, DOPAMINE = "RL Baselines3 Zoo", "Dopamine"
FAMILIES: tuple[Family, ...] = (
    Family("ppo", "ALE/*", ppo_atari, ZOO),
    Family("a2c", "ALE/*", a2c_atari, ZOO),
    Family("dqn", "ALE/*", dqn_atari, DOPAMINE),
    Family("c51", "ALE/*", c51_atari, DOPAMINE),
    Family("qrdqn", "ALE/*", qrdqn_atari, DOPAMINE),
)
"""At most one for each algorithm and environment."""


def find_family(algorithm: str, env_id: object) -> Family | None:
    """Return the settings of an algorithm for the family of an environment's id; None where there are none."""
    for family in FAMILIES:
        if family.algorithm == algorithm and isinstance(env_id, str) and fnmatchcase(env_id, family.pattern):
            return family
    return None
