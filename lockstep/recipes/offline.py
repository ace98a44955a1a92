"""Recipes for the data sets that `benchmarks/learning/make_offline_data.py` makes with Lockstep's own agents.

    python benchmarks/learning/make_offline_data.py CartPole-v1     # writes lockstep/cartpole/expert-v0 and others
    lockstep train bc CartPole-v1

Data sets: `expert` has the episodes of a trained agent; `medium-replay` has its whole replay buffer when it was half as
good; `replay` has its whole replay buffer at the end. Steps are gradient steps. `offline_data(input_=...)` takes other
data of the same environment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lockstep.algorithms import AlgorithmConfig, BCConfig, CQLConfig, IQLConfig, MARWILConfig, TD3BCConfig
from lockstep.recipes.recipe import Recipe

Config = TypeVar("Config", bound=AlgorithmConfig)


def bc_cartpole() -> BCConfig:
    """Return settings that imitate an agent that balances the pole."""
    return _on(BCConfig(), "CartPole-v1", "expert")


def bc_pendulum() -> BCConfig:
    """Return settings that imitate an agent that swings the pendulum up."""
    return _on(BCConfig(), "Pendulum-v1", "expert")


def marwil_cartpole() -> MARWILConfig:
    """Return settings whose advantage norm begins near its later value; else the first steps imitate one row only."""
    return _on(MARWILConfig(), "CartPole-v1").training(beta=2.0, moving_average_sqd_adv_norm_start=100.0)


def marwil_pendulum() -> MARWILConfig:
    """Return settings with a shorter horizon, because returns of whole episodes say little about one action."""
    config = _on(MARWILConfig(), "Pendulum-v1")
    return config.training(beta=3.0, gamma=0.95, moving_average_sqd_adv_norm_start=10_000.0)


def cql_cartpole() -> CQLConfig:
    """Return settings with a target entropy below half of the highest: random actions let the pole fall."""
    config = _rectified(_on(CQLConfig(), "CartPole-v1"))
    return config.training(lr=1e-3, actor_lr=1e-3, min_q_weight=1.0, tau=0.01, target_entropy=0.1)


def cql_pendulum() -> CQLConfig:
    """Return settings with few sampled actions, which are enough for one dimension."""
    config = _rectified(_on(CQLConfig(), "Pendulum-v1"))
    return config.training(lr=1e-3, actor_lr=3e-4, min_q_weight=1.0, tau=0.01, num_actions=4)


def iql_cartpole() -> IQLConfig:
    """Return the settings of `iql_pendulum`."""
    return _implicit("CartPole-v1")


def iql_pendulum() -> IQLConfig:
    """Return settings with a higher learning rate and faster targets than the paper, for 5,000 gradient steps."""
    return _implicit("Pendulum-v1")


def td3_bc_pendulum() -> TD3BCConfig:
    """Return settings with a high alpha.

    Values are about -100 and differ only by a few, and the data are mostly bad. With the paper's alpha of 2.5, which is
    divided by the mean absolute value, the policy only imitates the data.
    """
    return _rectified(_on(TD3BCConfig(), "Pendulum-v1")).training(lr=1e-3, tau=0.01, alpha=200.0)


def bc_half_cheetah() -> BCConfig:
    """Return settings with the networks and the learning rate of the other algorithms."""
    return _rectified(_half_cheetah(BCConfig())).training(train_batch_size=256)


def cql_half_cheetah() -> CQLConfig:
    """Return settings with fewer sampled actions than the paper's 10, which would take most of the time."""
    return _half_cheetah(CQLConfig()).training(actor_lr=3e-4, tau=0.01, num_actions=4)


def iql_half_cheetah() -> IQLConfig:
    """Return settings with a tenth of the paper's beta, and matrix products in float32.

    The paper's beta of 3 is for rewards divided by a thousandth of the range of returns, which is about 10 here.
    """
    return _half_cheetah(IQLConfig()).training(beta=0.3, tau=0.01).framework(mixed_precision=False)


def td3_bc_half_cheetah() -> TD3BCConfig:
    """Return the settings of the paper with another learning rate and faster targets."""
    return _half_cheetah(TD3BCConfig()).training(tau=0.01)


def _half_cheetah(config: Config) -> Config:
    """Return a configuration with the settings that all algorithms have for HalfCheetah.

    Runs are short: the papers have a million gradient steps, with a learning rate of 3e-4 and targets half as fast.
    Matrix products are in bfloat16.
    """
    config.environment("HalfCheetah-v5").offline_data(input_="lockstep/halfcheetah/replay-v0").training(lr=1e-3)
    config.rl_module(model_config={"hiddens": (256, 256)}).framework(mixed_precision=True)
    return config.reporting(total_steps=50_000, steps_per_epoch=10_000)


def _implicit(env: str) -> IQLConfig:
    """Return the settings of IQL for one of the small environments."""
    return _rectified(_on(IQLConfig(), env)).training(lr=1e-3, tau=0.01, beta=3.0, expectile=0.8)


def _on(config: Config, env: str, data: str = "medium-replay") -> Config:
    """Return a configuration with the settings that all algorithms have for the small environments."""
    config.environment(env).offline_data(input_=f"lockstep/{env.partition('-')[0].lower()}/{data}-v0")
    return config.rl_module(model_config={"hiddens": (64, 64)}).reporting(total_steps=5_000, steps_per_epoch=1_000)


def _rectified(config: Config) -> Config:
    """Return a configuration whose networks have ReLU activations."""
    return config.rl_module(model_config={"activation": "relu"})


def _recipe(
    make: Callable[[], AlgorithmConfig],
    reference: float,
    promise: float | None = None,
    *,
    results: str = "offline_learning",
) -> Recipe:
    """Return the recipe of a configuration. `results` is the file in benchmarks/results that has its return."""
    config = make()
    env = str(config.environment.env)
    requires = "offline,mujoco" if env == "HalfCheetah-v5" else "offline"
    source = f"Lockstep, benchmarks/results/{results}.md"
    steps = config.reporting.total_steps or 0
    return Recipe(config.algorithm, env, make, reference, source, steps, promise, requires)


OFFLINE: tuple[Recipe, ...] = (
    _recipe(bc_cartpole, 500.0, 475.0),
    _recipe(bc_pendulum, -158.2, -200.0),
    _recipe(marwil_cartpole, 461.5, 290.0),
    _recipe(marwil_pendulum, -427.9, -600.0),
    _recipe(cql_cartpole, 260.7, 230.0),
    _recipe(cql_pendulum, -155.0, -260.0),
    _recipe(iql_cartpole, 273.7, 240.0),
    _recipe(iql_pendulum, -236.0, -500.0),
    _recipe(td3_bc_pendulum, -154.3, -250.0),
    _recipe(bc_half_cheetah, 4583.7, results="offline_half_cheetah"),
    _recipe(cql_half_cheetah, 6852.2, results="offline_half_cheetah_replay"),
    _recipe(iql_half_cheetah, 5080.0, results="offline_half_cheetah_replay"),
    _recipe(td3_bc_half_cheetah, 8377.7, results="offline_half_cheetah"),
)
