"""Learn CartPole-v1 without its velocities, which a network with memory has to make up for: seeds one after another.

python benchmarks/memory_cartpole.py dqn --seeds 5 --out benchmarks/results/memory_cartpole.json
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from lockstep import get_config


class WithoutVelocities(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole-v1 that shows the cart's place and the pole's angle alone, in units of the limits that end an episode.

    A step is worth 0.02, so that values stay within what a memory gives out (-1 to 1): CartPole's are up to 100.
    """

    limits = np.array([2.4, 12 * np.pi / 180], np.float32)

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.observation_space = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)

    def reset(self, **options: Any) -> Any:
        """Begin an episode."""
        obs, info = self.env.reset(**options)
        return obs[[0, 2]] / self.limits, info

    def step(self, action: Any) -> Any:
        """Step on."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs[[0, 2]] / self.limits, 0.02 * float(reward), terminated, truncated, info


def configured(algorithm: str) -> Any:
    """Return the configuration of one algorithm."""
    config = get_config(algorithm).environment(WithoutVelocities).env_runners(num_envs_per_env_runner=8)
    config.rl_module(model_config={"hiddens": (64,), "recurrent": "lstm", "recurrent_size": 64})
    config.replay(capacity=150_000, learning_starts=1_000, update_per_step=1 / 16)
    config.replay(sequence_length=32, burn_in=8, n_step=5)
    config.training(train_batch_size=32)
    if algorithm == "dqn":
        config.training(lr=1e-3, target_update_interval=50, epsilon=[[0, 1.0], [10_000, 0.02]], huber_delta=1.0)
        config.rl_module(model_config={"activation": "tanh", "orthogonal_init": True})
    else:
        config.training(lr=1e-3, tau=0.01, target_entropy=0.1, initial_alpha=0.02)
    return config.env_runners(rollout_fragment_length=16)


def main() -> None:
    """Run the seeds, each until two evaluations in a row reach the target, and write what evaluations gave."""
    parser = argparse.ArgumentParser()
    parser.add_argument("algorithm", choices=["dqn", "sac"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--total-steps", type=int, default=150_000)
    parser.add_argument("--target", type=float, default=450.0, help="steps of an episode, a mean of 20")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = []
    for seed in options.seeds:
        began = time.perf_counter()
        config = configured(options.algorithm).debugging(seed=seed)
        config.evaluation(evaluation_interval=1, evaluation_duration=20, evaluation_num_envs=20)
        config.reporting(total_steps=options.total_steps, steps_per_epoch=5_000)
        trainer = config.build_trainer()
        curve: list[float] = []
        for epoch, stats, _ in trainer:
            curve.append(round(float(stats.test_collect_stat.lens_stat.mean), 1))
            print(options.algorithm, seed, 5_000 * epoch, curve[-1], round(time.perf_counter() - began), flush=True)
            if min(curve[-2:]) >= options.target and len(curve) > 1:
                break
        found.append({"algorithm": options.algorithm, "seed": seed, "steps": 5_000 * len(curve), "lengths": curve})
        if options.out is not None:
            options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(options.algorithm, "at the end", [each["lengths"][-1] for each in found])


if __name__ == "__main__":
    main()
