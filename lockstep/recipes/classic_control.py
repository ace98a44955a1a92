"""Recipes for classic control: CartPole, Acrobot, Pendulum, MountainCar.

Where possible the length of a run is a multiple of the rollout length, so that the run ends at exactly this step.
"""

from __future__ import annotations

from typing import TypeVar

from lockstep.algorithms import (
    A2CConfig,
    APPOConfig,
    C51Config,
    CrossQConfig,
    DQNConfig,
    IMPALAConfig,
    IQNConfig,
    PPOConfig,
    PQNConfig,
    QRDQNConfig,
    RainbowConfig,
    REINFORCEConfig,
    SACConfig,
    TD3Config,
    TQCConfig,
    TRPOConfig,
)
from lockstep.recipes.recipe import RL_ZOO, Recipe

Config = TypeVar("Config", DQNConfig, C51Config, QRDQNConfig, IQNConfig, RainbowConfig)
CLEANRL_C51 = "CleanRL, published agent CartPole-v1-c51-seed1, 500k steps"


def ppo_cartpole() -> PPOConfig:
    """Return settings with 100 updates of 1,000 steps.

    The learning rate falls to zero, so that a policy that balances the pole is not changed any more.
    """
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=8)
        .training(lr=[[0, 1e-3], [100_000, 0.0]], train_batch_size=1000, minibatch_size=250, num_epochs=10)
        .reporting(total_steps=100_000)
    )


def a2c_cartpole() -> A2CConfig:
    """Return settings with the usual 5 steps of 16 environments for each update; advantages are not normalised.

    Once every episode reaches the time limit, advantages are noise, which must not be scaled up to a deviation of 1.
    And with 25 steps the value function gets too few gradient steps. With both, six seeds of ten fell from 500 to below
    270.
    """
    return (
        A2CConfig()
        .environment("CartPole-v1", normalize_rewards=True)
        .env_runners(num_envs_per_env_runner=16)
        .training(lr=[[0, 1e-3], [300_000, 0.0]], lambda_=0.95, train_batch_size=80, entropy_coeff=0.01)
        .reporting(total_steps=300_000)
    )


def reinforce_cartpole() -> REINFORCEConfig:
    """Return settings with whole episodes, of at least 1,000 steps together, for each gradient step."""
    return (
        REINFORCEConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=8)
        .training(lr=[[0, 1e-2], [200_000, 0.0]], train_batch_size=1000)
        .reporting(total_steps=200_000)
    )


def trpo_cartpole() -> TRPOConfig:
    """Return settings with 100 updates of 1,000 steps, each with twice the default KL divergence."""
    return (
        TRPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=8)
        .training(lr=[[0, 1e-3], [100_000, 0.0]], lambda_=0.95, train_batch_size=1000, max_kl=0.02)
        .reporting(total_steps=100_000)
    )


def pqn_cartpole() -> PQNConfig:
    """Return settings with 250 rollouts of 64 steps of 32 environments, as the paper has for CartPole.

    Other than in the paper, the network is half as wide, the learning rate is ten times as high, and at the end 5 % of
    the actions are random instead of 20 %.
    """
    return (
        PQNConfig()
        .environment("CartPole-v1")
        .training(lr=[[0, 1e-3], [512_000, 0.0]], train_batch_size=2048, lambda_=0.95, num_epochs=4)
        .training(epsilon=[[0, 1.0], [100_000, 0.05]])
        .rl_module(model_config={"hiddens": (128, 128)})
        .reporting(total_steps=512_000)
    )


def dqn_cartpole() -> DQNConfig:
    """Return settings with one gradient step for 2 environment steps.

    A target network that follows slowly keeps the values from growing without bound. The learning rate falls to zero,
    so that a policy that balances the pole is not changed any more.

    Dueling heads are made for actions whose values are nearly equal, as most are here. Without them only four seeds of
    five end at 500 with the Huber loss, and fewer with squared errors: the cart drifts out after 150 to 270 steps.
    """
    config = _action_values_cartpole(DQNConfig().training(huber_delta=1.0))
    return config.rl_module(model_config={"dueling": True})


def c51_cartpole() -> C51Config:
    """Return the settings of DQN with atoms from 0 to 100, which is the range of returns with gamma 0.99."""
    return _action_values_cartpole(C51Config().training(v_min=0.0, v_max=100.0))


def qrdqn_cartpole() -> QRDQNConfig:
    """Return the settings of DQN with 10 quantiles and twice the learning rate.

    The loss is a sum over quantiles, and the norm of its gradient is clipped.
    """
    return _action_values_cartpole(QRDQNConfig().training(num_quantiles=10), lr=2e-3)


def iqn_cartpole() -> IQNConfig:
    """Return the settings of QR-DQN with the default 8 quantile levels and the dueling heads of DQN."""
    return _action_values_cartpole(IQNConfig(), lr=2e-3).rl_module(model_config={"dueling": True})


def rainbow_cartpole() -> RainbowConfig:
    """Return the settings of C51. Noisy weights explore, so that the schedule of epsilon has no effect."""
    return _action_values_cartpole(RainbowConfig().training(v_min=0.0, v_max=100.0))


def _action_values_cartpole(config: Config, lr: float = 1e-3) -> Config:
    """Return a configuration with the settings that algorithms with action values have for CartPole."""
    return (
        config.environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=8, rollout_fragment_length=25)
        .training(
            lr=[[0, lr], [50_000, 0.0]],
            train_batch_size=64,
            epsilon=[[0, 1.0], [8_000, 0.04]],
            target_update_interval=1,
            tau=0.01,
        )
        .replay(update_per_step=0.5, n_step=3)
        .rl_module(model_config={"hiddens": (128, 128), "activation": "relu", "orthogonal_init": False})
        .reporting(total_steps=50_000)
    )


def impala_cartpole() -> IMPALAConfig:
    """Return settings with two passes over each batch in minibatches.

    With a single pass, as in the paper, runs need more steps and more often collapse later. Rewards are normalised:
    with values of 0 to 100 the critic explained nothing, gradients were clipped, and four seeds of ten ended below 450.
    """
    return (
        IMPALAConfig()
        .environment("CartPole-v1", normalize_rewards=True)
        .env_runners(num_envs_per_env_runner=16)
        .training(lr=[[0, 1e-3], [200_000, 0.0]], lambda_=0.95, train_batch_size=800, minibatch_size=200, num_epochs=2)
        .reporting(total_steps=200_000)
    )


def appo_cartpole() -> APPOConfig:
    """Return settings close to the recipe for PPO. With fewer passes over each batch some seeds collapse later.

    Rewards are normalised as in IMPALA's recipe. Without that one seed of ten ended at 185.
    """
    return (
        APPOConfig()
        .environment("CartPole-v1", normalize_rewards=True)
        .env_runners(num_envs_per_env_runner=8)
        .training(
            lr=[[0, 1e-3], [100_000, 0.0]],
            lambda_=0.95,
            clip_param=0.2,
            train_batch_size=1000,
            minibatch_size=250,
            num_epochs=10,
        )
        .reporting(total_steps=100_000)
    )


def ppo_acrobot() -> PPOConfig:
    """Return settings with 16 environments and normalised observations."""
    return (
        PPOConfig()
        .environment("Acrobot-v1", normalize_observations=True)
        .env_runners(num_envs_per_env_runner=16)
        .training(
            lr=[[0, 1e-3], [1_000_000, 0.0]], lambda_=0.94, train_batch_size=2000, minibatch_size=250, num_epochs=10
        )
        .reporting(total_steps=1_000_000)
    )


def dqn_acrobot() -> DQNConfig:
    """Return settings like `dqn_cartpole` with squared errors, and a gradient step for 4 environment steps."""
    return _action_values_acrobot(DQNConfig())


def a2c_acrobot() -> A2CConfig:
    """Return settings with 5 steps of 16 environments for each update, and normalised observations and rewards."""
    return (
        A2CConfig()
        .environment("Acrobot-v1", normalize_observations=True, normalize_rewards=True)
        .env_runners(num_envs_per_env_runner=16)
        .training(lr=[[0, 1e-3], [500_000, 0.0]], train_batch_size=80, entropy_coeff=0.0)
        .reporting(total_steps=500_000)
    )


def qrdqn_acrobot() -> QRDQNConfig:
    """Return the settings of `dqn_acrobot` with 25 quantiles."""
    return _action_values_acrobot(QRDQNConfig().training(num_quantiles=25))


def _action_values_acrobot(config: Config) -> Config:
    """Return a configuration with the settings that algorithms with action values have for Acrobot."""
    return (
        config.environment("Acrobot-v1")
        .env_runners(num_envs_per_env_runner=8)
        .training(
            lr=[[0, 1e-3], [100_000, 0.0]],
            train_batch_size=128,
            epsilon=[[0, 1.0], [20_000, 0.05]],
            target_update_interval=1,
            tau=0.01,
        )
        .replay(capacity=50_000, learning_starts=1_000, update_per_step=0.25, n_step=3)
        .rl_module(model_config={"hiddens": (128, 128)})
        .reporting(total_steps=100_000)
    )


def trpo_acrobot() -> TRPOConfig:
    """Return settings with 50 updates of 2,000 steps and normalised observations."""
    return (
        TRPOConfig()
        .environment("Acrobot-v1", normalize_observations=True)
        .env_runners(num_envs_per_env_runner=8)
        .training(lr=1e-3, lambda_=0.95, train_batch_size=2000)
        .reporting(total_steps=100_000)
    )


def ppo_pendulum() -> PPOConfig:
    """Return settings with a horizon of 20 steps (gamma 0.95), with which the value function is easy to learn.

    With gamma 0.9 swinging back does not pay: from some positions full torque holds the pole still at 24 degrees from
    the bottom, for a return of -1,492. Without the entropy bonus one seed of ten stops exploring at -640.
    """
    return (
        PPOConfig()
        .environment("Pendulum-v1", normalize_observations=True, normalize_rewards=True)
        .env_runners(num_envs_per_env_runner=4)
        .training(
            lr=[[0, 1e-3], [100_000, 0.0]],
            gamma=0.95,
            lambda_=0.95,
            entropy_coeff=0.01,
            train_batch_size=2000,
            minibatch_size=50,
            num_epochs=10,
        )
        .reporting(total_steps=100_000)
    )


def sac_pendulum() -> SACConfig:
    """Return settings with small networks, which are enough here, and four environments."""
    return (
        SACConfig()
        .environment("Pendulum-v1")
        .env_runners(num_envs_per_env_runner=4)
        .training(lr=1e-3)
        .replay(capacity=20_000, learning_starts=400)
        .rl_module(model_config={"hiddens": (64, 64)})
        .reporting(total_steps=20_000)
    )


def tqc_pendulum() -> TQCConfig:
    """Return settings like `sac_pendulum` with two small critics, for half as many steps."""
    return (
        TQCConfig()
        .environment("Pendulum-v1")
        .env_runners(num_envs_per_env_runner=4)
        .training(lr=1e-3)
        .replay(capacity=20_000, learning_starts=400)
        .rl_module(model_config={"hiddens": (64, 64), "critic_hiddens": (64, 64), "num_critics": 2})
        .reporting(total_steps=10_000)
    )


def crossq_pendulum() -> CrossQConfig:
    """Return settings like `tqc_pendulum` with critics wider than the policy, though less so than in the paper."""
    return (
        CrossQConfig()
        .environment("Pendulum-v1")
        .env_runners(num_envs_per_env_runner=4)
        .replay(capacity=20_000, learning_starts=400)
        .rl_module(model_config={"hiddens": (64, 64), "critic_hiddens": (128, 128)})
        .reporting(total_steps=10_000)
    )


def td3_pendulum() -> TD3Config:
    """Return settings like `sac_pendulum` with more random actions at the beginning and a shorter horizon."""
    return (
        TD3Config()
        .environment("Pendulum-v1")
        .env_runners(num_envs_per_env_runner=4)
        .training(lr=1e-3, gamma=0.98)
        .replay(capacity=20_000, learning_starts=1_000)
        .rl_module(model_config={"hiddens": (64, 64)})
        .reporting(total_steps=20_000)
    )


def ppo_mountain_car() -> PPOConfig:
    """Return settings with 16 environments, short rollouts, and normalised observations and rewards."""
    return (
        PPOConfig()
        .environment("MountainCar-v0", normalize_observations=True, normalize_rewards=True)
        .env_runners(num_envs_per_env_runner=16)
        .training(lr=[[0, 1e-3], [1_000_000, 0.0]], lambda_=0.98, train_batch_size=400, minibatch_size=80, num_epochs=4)
        .reporting(total_steps=1_000_000)
    )


def dqn_mountain_car() -> DQNConfig:
    """Return settings in which the policy does not change for 16 steps.

    Such a policy swings the car; one that changed after every step never reached the top. Values begin near 0 while the
    true ones are near -50, so that untried actions look good: this optimism has to drive the exploration.
    """
    return (
        DQNConfig()
        .environment("MountainCar-v0")
        .env_runners(num_envs_per_env_runner=4, rollout_fragment_length=16)
        .training(
            lr=[[0, 4e-3], [128_000, 0.0]],
            gamma=0.98,
            train_batch_size=128,
            epsilon=[[0, 1.0], [24_000, 0.07]],
            target_update_interval=300,
            huber_delta=1.0,
            grad_clip=10.0,
        )
        .replay(capacity=10_000, learning_starts=1_000, update_per_step=0.5, n_step=3)
        .rl_module(model_config={"hiddens": (256, 256)})
        .reporting(total_steps=128_000)
    )


def trpo_mountain_car() -> TRPOConfig:
    """Return settings with 100 updates of 2,000 steps, and normalised observations and rewards."""
    return (
        TRPOConfig()
        .environment("MountainCar-v0", normalize_observations=True, normalize_rewards=True)
        .env_runners(num_envs_per_env_runner=8)
        .training(lr=1e-3, lambda_=0.95, train_batch_size=2000)
        .reporting(total_steps=200_000)
    )


def ppo_mountain_car_continuous() -> PPOConfig:
    """Return settings with noise that stays the same for 16 steps (gSDE), which drives the car up the hill.

    The only reward is far away, hence gamma 0.9999.
    """
    return (
        PPOConfig()
        .environment("MountainCarContinuous-v0", normalize_observations=True, normalize_rewards=True)
        .env_runners(num_envs_per_env_runner=8, exploration="gsde", exploration_config={"sample_freq": 16})
        .training(
            lr=[[0, 3e-4], [100_000, 0.0]],
            gamma=0.9999,
            lambda_=0.9,
            train_batch_size=1000,
            minibatch_size=250,
            num_epochs=10,
        )
        .rl_module(model_config={"log_std_init": -1.0})
        .reporting(total_steps=100_000)
    )


def tqc_mountain_car() -> TQCConfig:
    """Return settings like `sac_mountain_car` with two small critics and half as many gradient steps."""
    return (
        TQCConfig()
        .environment("MountainCarContinuous-v0")
        .env_runners(num_envs_per_env_runner=4, exploration="ou", exploration_config={"sigma": 0.5})
        .training(lr=3e-4, gamma=0.9999, tau=0.01, alpha=0.1, train_batch_size=256)
        .replay(capacity=50_000, learning_starts=1_000, update_per_step=0.5)
        .rl_module(model_config={"hiddens": (64, 64), "critic_hiddens": (64, 64), "num_critics": 2})
        .reporting(total_steps=50_000)
    )


def sac_mountain_car() -> SACConfig:
    """Return settings with noise that is correlated in time (Ornstein-Uhlenbeck), which drives the car up the hill.

    The only reward is far away, hence gamma 0.9999. With half as many gradient steps and a learning rate of 1e-3 a seed
    fell from 93 to -65.
    """
    return (
        SACConfig()
        .environment("MountainCarContinuous-v0")
        .env_runners(num_envs_per_env_runner=4, exploration="ou", exploration_config={"sigma": 0.5})
        .training(lr=3e-4, gamma=0.9999, tau=0.01, alpha=0.1, train_batch_size=512)
        .replay(capacity=50_000, learning_starts=1_000, update_per_step=1.0)
        .rl_module(model_config={"hiddens": (64, 64)})
        .reporting(total_steps=50_000)
    )


CLASSIC_CONTROL: tuple[Recipe, ...] = (
    Recipe("ppo", "CartPole-v1", ppo_cartpole, 500.0, f"{RL_ZOO}, 100k steps", 100_000, promise=475.0),
    Recipe("a2c", "CartPole-v1", a2c_cartpole, 500.0, f"{RL_ZOO}, 500k steps", 300_000, promise=475.0),
    Recipe("reinforce", "CartPole-v1", reinforce_cartpole, 500.0, f"{RL_ZOO}, A2C, 500k steps", 200_000, promise=475.0),
    Recipe("trpo", "CartPole-v1", trpo_cartpole, 500.0, f"{RL_ZOO}, 100k steps", 100_000, promise=475.0),
    Recipe("pqn", "CartPole-v1", pqn_cartpole, 500.0, f"{RL_ZOO}, DQN, 50k steps", 512_000, promise=475.0),
    Recipe("dqn", "CartPole-v1", dqn_cartpole, 500.0, f"{RL_ZOO}, 50k steps", 50_000, promise=475.0),
    Recipe("impala", "CartPole-v1", impala_cartpole, 500.0, f"{RL_ZOO}, A2C, 500k steps", 200_000, promise=475.0),
    Recipe("appo", "CartPole-v1", appo_cartpole, 500.0, f"{RL_ZOO}, PPO, 100k steps", 100_000, promise=475.0),
    Recipe("c51", "CartPole-v1", c51_cartpole, 500.0, CLEANRL_C51, 50_000, promise=475.0),
    Recipe("qrdqn", "CartPole-v1", qrdqn_cartpole, 500.0, f"{RL_ZOO}, 50k steps", 50_000, promise=475.0),
    Recipe("iqn", "CartPole-v1", iqn_cartpole, 500.0, f"{RL_ZOO}, QR-DQN, 50k steps", 50_000, promise=475.0),
    Recipe("rainbow", "CartPole-v1", rainbow_cartpole, 500.0, CLEANRL_C51, 50_000, promise=460.0),
    Recipe("ppo", "Acrobot-v1", ppo_acrobot, -73.506, f"{RL_ZOO}, 1M steps", 1_000_000, promise=-75.0),
    Recipe("dqn", "Acrobot-v1", dqn_acrobot, -76.639, f"{RL_ZOO}, 100k steps", 100_000, promise=-92.0),
    Recipe("a2c", "Acrobot-v1", a2c_acrobot, -83.353, f"{RL_ZOO}, 500k steps", 500_000, promise=-88.0),
    Recipe("qrdqn", "Acrobot-v1", qrdqn_acrobot, -69.135, f"{RL_ZOO}, 100k steps", 100_000, promise=-86.0),
    Recipe("trpo", "Acrobot-v1", trpo_acrobot, -83.114, f"{RL_ZOO}, 100k steps", 100_000, promise=-96.0),
    Recipe("ppo", "Pendulum-v1", ppo_pendulum, -172.225, f"{RL_ZOO}, 100k steps, with gSDE", 100_000, promise=-205.0),
    Recipe("sac", "Pendulum-v1", sac_pendulum, -156.995, f"{RL_ZOO}, 20k steps", 20_000, promise=-170.0),
    Recipe("tqc", "Pendulum-v1", tqc_pendulum, -151.34, f"{RL_ZOO}, 20k steps", 10_000, promise=-165.0),
    Recipe("crossq", "Pendulum-v1", crossq_pendulum, -151.34, f"{RL_ZOO}, TQC, 20k steps", 10_000, promise=-295.0),
    Recipe("td3", "Pendulum-v1", td3_pendulum, -151.855, f"{RL_ZOO}, 20k steps", 20_000, promise=-170.0),
    Recipe("ppo", "MountainCar-v0", ppo_mountain_car, -110.423, f"{RL_ZOO}, 1M steps", 1_000_000, promise=-118.0),
    Recipe("dqn", "MountainCar-v0", dqn_mountain_car, -100.849, f"{RL_ZOO}, 120k steps", 128_000, promise=-102.0),
    Recipe("trpo", "MountainCar-v0", trpo_mountain_car, -107.278, f"{RL_ZOO}, 100k steps", 200_000, promise=-113.0),
    Recipe(
        "ppo",
        "MountainCarContinuous-v0",
        ppo_mountain_car_continuous,
        88.343,
        f"{RL_ZOO}, 20k steps",
        100_000,
        promise=92.0,
    ),
    Recipe("tqc", "MountainCarContinuous-v0", tqc_mountain_car, 63.641, f"{RL_ZOO}, 50k steps", 50_000, promise=None),
    Recipe("sac", "MountainCarContinuous-v0", sac_mountain_car, 94.679, f"{RL_ZOO}, 50k steps", 50_000, promise=95.0),
)
