"""Runs that each rank makes, one after another; the first one writes what came out. `python rank_runs.py FOLDER`."""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from agent_games import CountingGame, game_config

from lockstep import A2CConfig, DQNConfig, IQLConfig, PPOConfig, SACConfig, SampleBatch
from lockstep.data import write_rows


def on(env, algorithm, **training):
    config = algorithm().environment(env, normalize_observations=True).env_runners(num_envs_per_env_runner=4)
    config.rl_module(model_config={"hiddens": (8,)}).evaluation(evaluation_duration=2, evaluation_num_envs=2)
    config.training(lr=1e-2, **training).framework(dtype="float64")
    return config.reporting(total_steps=128, steps_per_epoch=64).debugging(seed=3)


def replay(config, **options):
    return config.training(train_batch_size=8).replay(learning_starts=24, capacity=400, update_per_step=0.25, **options)


def game():
    config = game_config(CountingGame, PPOConfig, num_envs=4).framework(dtype="float64")
    return config.training(train_batch_size=32, minibatch_size=8, num_epochs=2, lr=1e-2).reporting(total_steps=96)


def offline():
    rng, rows = np.random.default_rng(0), 160
    columns = {
        "obs": rng.normal(size=(rows, 4)).astype(np.float32),
        "new_obs": rng.normal(size=(rows, 4)).astype(np.float32),
        "actions": rng.integers(0, 2, rows),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "terminateds": np.arange(rows) % 20 == 19,
        "truncateds": np.zeros(rows, bool),
    }
    path = write_rows(Path(tempfile.mkdtemp()) / "rows.npy", SampleBatch(columns))
    config = IQLConfig().environment("CartPole-v1").offline_data(input_=str(path)).framework(dtype="float64")
    config.rl_module(model_config={"hiddens": (8,)}).training(train_batch_size=32).evaluation(evaluation_duration=2)
    return config.reporting(total_steps=20, steps_per_epoch=10).debugging(seed=3)


MAKE = {
    "a2c, gru": lambda: on("CartPole-v1", A2CConfig, train_batch_size=32).rl_module(model_config={"recurrent": "gru"}),
    "dqn, prioritised": lambda: replay(on("CartPole-v1", DQNConfig), prioritized=True),
    "sac": lambda: replay(on("Pendulum-v1", SACConfig)),
    "ppo, several agents": game,
    "iql, offline": offline,
}


def run(kind):
    """The policy's numbers at the end."""
    trainer = MAKE[kind]().build_trainer()
    try:
        trainer.run()
        return {name: tensor.numpy() for name, tensor in trainer.policy.state_dict().items()}
    finally:
        trainer.close()


if __name__ == "__main__":
    for kind in MAKE:
        found = run(kind)
        if os.environ["RANK"] == "0":
            np.savez(Path(sys.argv[1]) / f"{kind}.npz", **found)
