"""Runs on tensor environments that each rank makes; the first one writes what came out.
`python tensor_rank_runs.py FOLDER`."""

import os
import sys
from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces

from lockstep import A2CConfig, APPOConfig, DQNConfig, IMPALAConfig, PPOConfig, SACConfig
from lockstep.envs.tensor import CartPole, Pendulum


def on(env, algorithm, **training):
    config = algorithm().environment(env).env_runners(num_envs_per_env_runner=4)
    config.rl_module(model_config={"hiddens": (8,)}).evaluation(evaluation_duration=2, evaluation_num_envs=2)
    config.training(lr=1e-2, **training).framework(dtype="float64")
    return config.reporting(total_steps=128, steps_per_epoch=64).debugging(seed=3)


def replay(env, algorithm, **options):
    config = on(env, algorithm, train_batch_size=6)
    return config.replay(learning_starts=24, capacity=160, update_per_step=0.25, **options)


def explored(config, kind, **options):
    return config.env_runners(exploration=kind, exploration_config=options)


class Swing(Pendulum):
    """Pendulum with short episodes, whose ranks make their shares from the class."""

    time_limit = 13


class Bits(CartPole):
    """CartPole whose observations have goals: the last two numbers, rounded."""

    time_limit = 9
    single_observation_space = spaces.Dict(
        {
            "observation": CartPole.single_observation_space,
            "achieved_goal": spaces.Box(-1e3, 1e3, (2,)),
            "desired_goal": spaces.Box(-1e3, 1e3, (2,)),
        }
    )

    def observe(self, state):
        numbers = super().observe(state)
        achieved = (2.0 * numbers[:, 2:]).round()
        return {"observation": numbers, "achieved_goal": achieved, "desired_goal": torch.ones_like(achieved)}

    def compute_reward(self, achieved_goal, desired_goal, info):
        return -(achieved_goal - desired_goal).abs().sum(-1)


def normalised(config):
    return config.environment(normalize_observations=True, normalize_rewards=True)


def remembering(config, **model):
    return config.rl_module(model_config={"hiddens": (8,), "recurrent_size": 6, "max_seq_len": 5, **model})


PASSES = {"train_batch_size": 64, "minibatch_size": 20, "num_epochs": 2}
MAKE = {
    "ppo": lambda: on("tensor/Pendulum-v1", PPOConfig, **PASSES).environment(normalize_observations=True),
    "ppo, few rows": lambda: on("tensor/CartPole-v1", PPOConfig, **PASSES | {"minibatch_size": 2}),
    "a2c": lambda: on("tensor/CartPole-v1", A2CConfig, train_batch_size=32),
    "ppo, gSDE": lambda: explored(on("tensor/Pendulum-v1", PPOConfig, **PASSES), "gsde", sample_freq=5),
    "ppo, lstm": lambda: remembering(
        on("tensor/CartPole-v1", PPOConfig, **PASSES | {"minibatch_size": 3}).environment(normalize_observations=True),
        recurrent="lstm",
    ),
    "a2c, gru": lambda: remembering(on("tensor/CartPole-v1", A2CConfig, train_batch_size=32), recurrent="gru"),
    "impala": lambda: on("tensor/CartPole-v1", IMPALAConfig, train_batch_size=32),
    "appo": lambda: on("tensor/Pendulum-v1", APPOConfig, train_batch_size=32, use_kl_loss=True),
    "sac": lambda: replay("tensor/Pendulum-v1", SACConfig),
    "sac, correlated noise": lambda: explored(replay("tensor/Pendulum-v1", SACConfig), "ou", sigma=0.3),
    "dqn, noisy weights": lambda: explored(replay("tensor/CartPole-v1", DQNConfig), "noisy"),
    "dqn": lambda: replay("tensor/CartPole-v1", DQNConfig, n_step=3),
    "ppo, a class, normalised": lambda: normalised(on(Swing, PPOConfig, **PASSES)),
    "sac, a class, normalised": lambda: normalised(replay(Swing, SACConfig)),
    "dqn, hindsight": lambda: replay(Bits, DQNConfig, her=True, her_strategy="episode"),
}


def run(kind, reducer=None, folder=None):
    """The policy's numbers at the end, and what was reported of it."""
    trainer = MAKE[kind]().build_trainer(reducer=reducer)
    try:
        trainer.run()
        found = {name: tensor.numpy() for name, tensor in trainer.policy.state_dict().items()}
        collected = trainer.history[-1].train_collect_stat
        state = trainer.train_collector.get_state()
        return {**found, "returns": collected.returns, "lengths under way": state["lengths"]}
    finally:
        trainer.close()


if __name__ == "__main__":
    for kind in MAKE:
        found = run(kind)
        if os.environ["RANK"] == "0":
            np.savez(Path(sys.argv[1]) / f"{kind}.npz", **found)
