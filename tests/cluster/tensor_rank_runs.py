"""Runs on tensor environments that each rank makes; the first one writes what came out.
`python tensor_rank_runs.py FOLDER [DEVICE]`."""

import os
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch
from algorithm_cases import OFF_POLICY, class_of, has_option, takes
from gymnasium import spaces

from lockstep import A2CConfig, APPOConfig, DQNConfig, IMPALAConfig, PPOConfig, SACConfig, get_config
from lockstep.envs.tensor import CartPole, Pendulum


def on(env, algorithm, **training):
    config = algorithm().environment(env).env_runners(num_envs_per_env_runner=4)
    config.rl_module(model_config={"hiddens": (8,), "critic_hiddens": (8,)}).evaluation(
        evaluation_duration=2, evaluation_num_envs=2
    )
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
    "ppo, stacks": lambda: on(Swing, PPOConfig, **PASSES).environment(frame_stack=3, normalize_observations=True),
    "sac, stacks": lambda: replay(Swing, SACConfig).environment(frame_stack=3),
    "ppo, float32": lambda: on("tensor/Pendulum-v1", PPOConfig, **PASSES).framework(dtype="float32"),
    "sac, float32": lambda: replay("tensor/Pendulum-v1", SACConfig).framework(dtype="float32"),
}
SHARING = [
    name for name in OFF_POLICY if class_of(name).learns_from_tensors and not get_config(name).replay.prioritized
]
for algorithm in SHARING:
    env = Swing if takes(algorithm, "box") else "tensor/CartPole-v1"
    MAKE.setdefault(algorithm, partial(replay, env, class_of(algorithm)))
REPEATED = next(name for name in SHARING if has_option(name, "noise_repeat"))
"""An algorithm whose random numbers are kept for several steps."""
TOLERANCE = {"float64": 1e-10, "float32": 1e-5}
"""How far rounding may move the numbers of ranks from those of one process. Other random numbers give 1e-3 and more."""


def run(kind, reducer=None, device="cpu"):
    """The policy's numbers at the end, and what was reported of it."""
    trainer = MAKE[kind]().framework(device=device).build_trainer(reducer=reducer)
    try:
        trainer.run()
        found = {name: tensor.cpu().numpy() for name, tensor in trainer.policy.state_dict().items()}
        collected = trainer.history[-1].train_collect_stat
        state = trainer.train_collector.get_state()
        return {**found, "returns": collected.returns, "lengths under way": state["lengths"]}
    finally:
        trainer.close()


if __name__ == "__main__":
    folder, *device = sys.argv[1:]
    for kind in MAKE:
        found = run(kind, None, *device)
        if os.environ.get("RANK", "0") == "0":
            np.savez(Path(folder) / f"{kind}.npz", **found)
