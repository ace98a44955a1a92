"""Recipes for data that are there already: those that `benchmarks/make_offline_data.py` makes with our own agents.

    python benchmarks/make_offline_data.py CartPole-v1     # writes lockstep/cartpole/expert-v0 and others (Minari)
    lockstep train bc CartPole-v1

`expert`: what a trained agent did. `medium-replay`: all that it had remembered when it was half as good. Steps are
gradient steps. `offline_data(input_=...)` takes other data of the same environment.
"""

from __future__ import annotations

from typing import TypeVar

from lockstep.algorithms import (
    AlgorithmConfig,
    BCConfig,
    CQLConfig,
    IQLConfig,
    MARWILConfig,
    TD3BCConfig,
)
from lockstep.recipes.recipe import Recipe

Config = TypeVar("Config", bound=AlgorithmConfig)
SOURCE = "Lockstep, benchmarks/results/offline_learning.md"


def bc_cartpole() -> BCConfig:
    """Imitates an agent that keeps the pole up."""
    return _on(BCConfig(), "CartPole-v1", "expert")


def bc_pendulum() -> BCConfig:
    """Imitates an agent that swings the pendulum up."""
    return _on(BCConfig(), "Pendulum-v1", "expert")


def marwil_cartpole() -> MARWILConfig:
    """The norm of the advantages begins near where it will be, so that the first steps do not imitate one row only."""
    return _on(MARWILConfig(), "CartPole-v1").training(beta=2.0, moving_average_sqd_adv_norm_start=100.0)


def marwil_pendulum() -> MARWILConfig:
    """A shorter horizon: returns of whole episodes say little about one action."""
    config = _on(MARWILConfig(), "Pendulum-v1")
    return config.training(beta=3.0, gamma=0.95, moving_average_sqd_adv_norm_start=10_000.0)


def cql_cartpole() -> CQLConfig:
    """A lower target entropy than half of the highest: the pole falls by chance actions."""
    config = _rectified(_on(CQLConfig(), "CartPole-v1"))
    return config.training(lr=1e-3, actor_lr=1e-3, min_q_weight=1.0, tau=0.01, target_entropy=0.1)


def cql_pendulum() -> CQLConfig:
    """Few sampled actions are enough for one dimension."""
    config = _rectified(_on(CQLConfig(), "Pendulum-v1"))
    return config.training(lr=1e-3, actor_lr=3e-4, min_q_weight=1.0, tau=0.01, num_actions=4)


def iql_cartpole() -> IQLConfig:
    """As `iql_pendulum`."""
    return _implicit("CartPole-v1")


def iql_pendulum() -> IQLConfig:
    """A larger learning rate and faster targets than the paper's, for a run of 5,000 gradient steps."""
    return _implicit("Pendulum-v1")


def td3_bc_pendulum() -> TD3BCConfig:
    """Values lie about -100 and differ by a few, and the data are mostly bad: with the paper's alpha of 2.5, scaled by
    the mean value, the policy only imitates them.
    """
    return _rectified(_on(TD3BCConfig(), "Pendulum-v1")).training(lr=1e-3, tau=0.01, alpha=200.0)


def _implicit(env: str) -> IQLConfig:
    return _rectified(_on(IQLConfig(), env)).training(lr=1e-3, tau=0.01, beta=3.0, expectile=0.8)


def _on(config: Config, env: str, data: str = "medium-replay") -> Config:
    config.environment(env).offline_data(input_=f"lockstep/{env.partition('-')[0].lower()}/{data}-v0")
    return config.rl_module(model_config={"hiddens": (64, 64)}).reporting(total_steps=5_000, steps_per_epoch=1_000)


def _rectified(config: Config) -> Config:
    return config.rl_module(model_config={"activation": "relu"})


OFFLINE: tuple[Recipe, ...] = tuple(
    Recipe(
        make().algorithm,
        str(make().environment.env),
        make,
        reference,
        SOURCE,
        5_000,
        promise=promise,
        requires="offline",
    )
    for make, reference, promise in (
        (bc_cartpole, 500.0, 475.0),
        (bc_pendulum, -157.4, -200.0),
        (marwil_cartpole, 321.1, 250.0),
        (marwil_pendulum, -440.1, -600.0),
        (cql_cartpole, 314.5, 290.0),
        (cql_pendulum, -160.4, -260.0),
        (iql_cartpole, 275.6, 250.0),
        (iql_pendulum, -203.4, -500.0),
        (td3_bc_pendulum, -153.5, -250.0),
    )
)
