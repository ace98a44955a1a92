"""Recipes for the MuJoCo robots."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TypeVar

from lockstep.algorithms import CrossQConfig, FlashSACConfig, PPOConfig, SACConfig, TQCConfig
from lockstep.recipes.recipe import Recipe

TIANSHOU_PPO = "Tianshou's published benchmark, v3, 1M steps (mean over 10 seeds of the best of each)"


def ppo_mujoco(env: str) -> PPOConfig:
    """Return settings close to Tianshou's benchmark, which has 64 environments and minibatches of 64.

    Observations and rewards are normalised, and the learning rate falls to zero.
    """
    return (
        PPOConfig()
        .environment(env, normalize_observations=True, normalize_rewards=True)
        .env_runners(num_envs_per_env_runner=16)
        .training(
            lr=[[0, 3e-4], [1_000_000, 0.0]],
            lambda_=0.95,
            vf_loss_coeff=0.25,
            train_batch_size=2000,
            minibatch_size=80,
            num_epochs=10,
        )
        .rl_module(model_config={"log_std_init": -0.5})
        .reporting(total_steps=1_000_000)
    )


def ppo_half_cheetah() -> PPOConfig:
    """Return the settings of the other robots with a shorter horizon and less noise at the beginning.

    Without these one seed of three ended at 3,548, on its back.
    """
    config = ppo_mujoco("HalfCheetah-v5").training(gamma=0.98, lambda_=0.92)
    return config.rl_module(model_config={"log_std_init": -1.0})


def ppo_swimmer() -> PPOConfig:
    """Return the settings of the other robots with a long horizon, as a stroke pays late. Gamma 0.99 ended at 44."""
    return ppo_mujoco("Swimmer-v5").training(gamma=0.9999)


def ppo_ant() -> PPOConfig:
    """Return the settings of the other robots with the observations and rewards of v3, which had no contact forces.

    With these 78 numbers, which mostly say nothing, five seeds ended between 1,379 and 2,629.
    """
    of_v3 = {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0.0}
    return ppo_mujoco("Ant-v5").environment(env_config=of_v3)


OffPolicy = TypeVar("OffPolicy", SACConfig, TQCConfig, CrossQConfig)


def off_policy(config: OffPolicy, env: str) -> OffPolicy:
    """Return a configuration with Tianshou's settings: a learning rate of 1e-3, and 10,000 random steps first.

    Different are eight environments, a gradient step for two environment steps, and matrix products in bfloat16.
    """
    config.environment(env).env_runners(num_envs_per_env_runner=8).training(lr=1e-3)
    config.replay(capacity=300_000, learning_starts=10_000, update_per_step=0.5)
    config.framework(mixed_precision=True)
    return config.reporting(total_steps=300_000)


def sac_mujoco(env: str) -> SACConfig:
    """Return settings with two critics of two layers of 256 units."""
    return off_policy(SACConfig(), env)


def tqc_mujoco(env: str) -> TQCConfig:
    """Return settings with two critics of two layers of 256 units, as RL Baselines3 Zoo has.

    The paper has five critics of three layers of 512 units.
    """
    return off_policy(TQCConfig(), env).rl_module(model_config={"num_critics": 2, "critic_hiddens": (256, 256)})


def crossq_mujoco(env: str) -> CrossQConfig:
    """Return settings with two critics of two layers of 256 units. Those of the paper have 2,048."""
    return off_policy(CrossQConfig(), env).rl_module(model_config={"critic_hiddens": (256, 256)})


def flashsac_mujoco(env: str, width: int = 64) -> FlashSACConfig:
    """Return settings with critics of two residual blocks of `width` units. Those of the published code have 256.

    The batch has 256 rows, not 512, the learning rate falls further, and matrix products are in bfloat16.
    """
    config = FlashSACConfig().environment(env).env_runners(num_envs_per_env_runner=8)
    config.rl_module(model_config={"hiddens": (width,), "critic_hiddens": (width, width)})
    config.training(train_batch_size=256, num_atoms=51, lr=[[0, 1e-3], [300_000, 1e-4]])
    config.replay(capacity=300_000, learning_starts=5_000).framework(mixed_precision=True)
    config.evaluation(evaluation_duration=5)
    return config.reporting(total_steps=300_000, steps_per_epoch=30_000)


OFF_POLICY_PROMISES = {("sac", "HalfCheetah-v5"): 7300.0, ("crossq", "HalfCheetah-v5"): 9600.0}
"""Promised return by algorithm and environment, for those that have run with three seeds."""
FLASHSAC = "FlashSAC's published curves, v4, 300k steps (mean of 5 seeds)"
TIANSHOU_SAC = "Tianshou's published benchmark, SAC, v3, 300k steps (10 seeds, lr 1e-3)"


def ppo_recipes() -> Iterator[Recipe]:
    """Yield the recipes of PPO."""
    for env, config, reference, promise in (
        ("HalfCheetah-v5", ppo_half_cheetah, 5783.9, 5150.0),
        ("Hopper-v5", partial(ppo_mujoco, "Hopper-v5"), 2609.3, 2200.0),
        ("Walker2d-v5", partial(ppo_mujoco, "Walker2d-v5"), 3588.5, 900.0),
        ("Ant-v5", ppo_ant, 3258.4, 3100.0),
        ("Swimmer-v5", ppo_swimmer, 66.7, 42.0),
        ("InvertedDoublePendulum-v5", partial(ppo_mujoco, "InvertedDoublePendulum-v5"), 9231.3, 7900.0),
    ):
        yield Recipe("ppo", env, config, reference, TIANSHOU_PPO, 1_000_000, promise, requires="mujoco")


def off_policy_recipes() -> Iterator[Recipe]:
    """Yield the recipes of three off-policy algorithms for each robot."""
    for env, reference in (("HalfCheetah-v5", 9059.256), ("Hopper-v5", 3387.66), ("Walker2d-v5", 3386.777)):
        for algorithm, config in (("sac", sac_mujoco), ("tqc", tqc_mujoco), ("crossq", crossq_mujoco)):
            make = partial(config, env)
            promise = OFF_POLICY_PROMISES.get((algorithm, env))
            yield Recipe(algorithm, env, make, reference, TIANSHOU_SAC, 300_000, promise, requires="mujoco")


def flashsac_recipes() -> Iterator[Recipe]:
    """Yield the recipes of FlashSAC. They take more than half an hour on one core, and Humanoid more than two hours."""
    for env, width, reference, promise in (
        ("HalfCheetah-v5", 64, 11481.0, 10_400.0),
        ("Hopper-v5", 64, 3674.0, 3_100.0),
        ("Walker2d-v5", 64, 6050.0, 5_300.0),
        ("Humanoid-v5", 128, 10570.0, 8_700.0),
    ):
        make = partial(flashsac_mujoco, env, width)
        yield Recipe("flashsac", env, make, reference, FLASHSAC, 300_000, promise, requires="mujoco")


MUJOCO: tuple[Recipe, ...] = (*ppo_recipes(), *off_policy_recipes(), *flashsac_recipes())
