"""Settings for all environments of a family. They are used if there is no recipe for the environment itself.

These settings are published ones, and promise no return.

Atari (`ALE/Name-v5`, see `lockstep.envs.atari`): four frames are stacked. The algorithms learn from the sign of the
rewards (Mnih et al. 2015), while returns count the game's own rewards. In an evaluation actions are drawn, or a few are
random: a policy that never presses FIRE would play some games without an end.

PPO and A2C have the settings of RL Baselines3 Zoo for Atari. They are close to Schulman et al. 2017, table 5, and Mnih
et al. 2016, except for a constant clipping range of 0.1 and, with A2C, Adam and a decreasing learning rate.

DQN, C51 and QR-DQN have the settings of Dopamine (Castro et al. 2018, https://arxiv.org/abs/1812.06110), which are for
sticky actions, with a replay buffer of 100,000 steps and eight environments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar, TypeVar

from gymnasium.spaces import Space

from lockstep.algorithms import A2CConfig, AlgorithmConfig, C51Config, DQNConfig, PPOConfig, QRDQNConfig
from lockstep.connectors import ClipRewards

AnyConfig = TypeVar("AnyConfig", bound=AlgorithmConfig)
ActionValues = TypeVar("ActionValues", DQNConfig, C51Config, QRDQNConfig)
STEPS = 10_000_000


@dataclass(frozen=True)
class Family:
    """Settings of one algorithm for the environments whose ids match a pattern."""

    algorithm: str
    """Name of the algorithm."""
    pattern: str
    """Pattern of the ids, with `*` for any letters."""
    config: Callable[[], AlgorithmConfig]
    """Function that returns a new configuration, without an environment."""
    source: str
    """Where the settings were published."""
    total_steps: int = STEPS
    """Number of environment steps of the run."""
    is_for_long_runs: ClassVar[bool] = True
    """Whether the settings are for long runs only, so that a short run has to begin to learn earlier."""

    @property
    def description(self) -> str:
        """The family as a source of settings, in words."""
        return f"the settings of {self.source} for {self.algorithm} on {self.pattern} (no return is promised)"


def sign_of_rewards(observation_space: Space[Any], action_space: Space[Any]) -> ClipRewards:
    """Return a learner connector that replaces rewards by their signs."""
    return ClipRewards(sign=True)


def _on_atari(config: AnyConfig) -> AnyConfig:
    """Return a configuration with the settings that all algorithms have on Atari."""
    config.environment(frame_stack=4)
    config.env_runners(num_envs_per_env_runner=8)
    config.training(learner_connector=sign_of_rewards)
    config.evaluation(evaluation_duration=10)
    config.reporting(total_steps=STEPS)
    return config


def ppo_atari() -> PPOConfig:
    """Return settings with 128 steps of 8 environments, and four passes over minibatches of 256."""
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
    """Return settings with 5 steps of 16 environments."""
    return (
        _on_atari(A2CConfig())
        .env_runners(num_envs_per_env_runner=16)
        .training(lr=[[0, 7e-4], [STEPS, 0.0]], train_batch_size=80, vf_loss_coeff=0.25, entropy_coeff=0.01)
        .rl_module(model_config={"vf_share_layers": True})
        .evaluation(evaluation_explore=True)
    )


def dqn_atari() -> DQNConfig:
    """Return settings with a gradient step for four environment steps; targets are copied every 8,000 of them."""
    return _action_values(DQNConfig().training(huber_delta=1.0), 6.25e-5)


def c51_atari() -> C51Config:
    """Return the settings of DQN with 51 atoms from -10 to 10, and the learning rate of Bellemare et al. 2017."""
    return _action_values(C51Config().training(v_min=-10.0, v_max=10.0), 2.5e-4, 0.01 / 32)


def qrdqn_atari() -> QRDQNConfig:
    """Return the settings of DQN with 200 quantiles, and the learning rate of Dabney et al. 2018."""
    return _action_values(QRDQNConfig().training(num_quantiles=200), 5e-5, 0.01 / 32)


def _action_values(config: ActionValues, lr: float, adam_epsilon: float = 1.5e-4) -> ActionValues:
    """Return a configuration with the settings that algorithms with action values have on Atari."""
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


ZOO = "RL Baselines3 Zoo"
DOPAMINE = "Dopamine"
FAMILIES: tuple[Family, ...] = (
    Family("ppo", "ALE/*", ppo_atari, ZOO),
    Family("a2c", "ALE/*", a2c_atari, ZOO),
    Family("dqn", "ALE/*", dqn_atari, DOPAMINE),
    Family("c51", "ALE/*", c51_atari, DOPAMINE),
    Family("qrdqn", "ALE/*", qrdqn_atari, DOPAMINE),
)
"""All settings of families, at most one for each algorithm and environment."""


def find_family(algorithm: str, env_id: object) -> Family | None:
    """Return the settings of an algorithm for the family of an environment's id, None if there are none."""
    for family in FAMILIES:
        if family.algorithm == algorithm and isinstance(env_id, str) and fnmatchcase(env_id, family.pattern):
            return family
    return None
