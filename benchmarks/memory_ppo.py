"""PPO with a memory, at its default options, on CartPole whose velocities are not observed.

    python benchmarks/memory_ppo.py                       # five seeds
    python benchmarks/memory_ppo.py --memory attention --steps 100000 0

One line for each seed: the mean return of 20 episodes after each tenth of the run.
"""

from __future__ import annotations

import argparse

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import TransformObservation

from lockstep import PPOConfig

MEMORIES = {"lstm": {"recurrent": "lstm"}, "gru": {"recurrent": "gru"}, "attention": {"attention": {}}}


def make_env() -> gym.Env:
    """Make CartPole that shows its position and its angle only."""
    env = gym.make("CartPole-v1")
    bounds = env.observation_space
    seen = gym.spaces.Box(bounds.low[[0, 2]], bounds.high[[0, 2]], dtype=np.float32)
    return TransformObservation(env, lambda obs: obs[[0, 2]], seen)


def curve(memory: str, seed: int, steps: int) -> list[float]:
    """Return the mean evaluated returns of one run."""
    config = PPOConfig().environment(make_env).rl_module(model_config=MEMORIES[memory]).debugging(seed=seed)
    config.reporting(total_steps=steps, steps_per_epoch=steps // 10).evaluation(evaluation_duration=20)
    return [float(epoch.test_collect_stat.returns_stat.mean) for epoch in config.build_trainer()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--memory", choices=MEMORIES, default="lstm")
    parser.add_argument("--steps", type=int, default=100_000)
    given = parser.parse_args()
    for seed in given.seeds:
        returns = curve(given.memory, seed, given.steps)
        print(f"{given.memory} seed {seed}:", *(f"{each:.0f}" for each in returns), flush=True)
