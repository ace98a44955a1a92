"""PPO with a memory on CartPole whose velocities are not observed; all other options are the defaults.

    python benchmarks/learning/memory_ppo.py                                          # an LSTM, five seeds
    python benchmarks/learning/memory_ppo.py --memory attention --normalize-rewards

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


def curve(memory: str, seed: int, steps: int, normalize_rewards: bool) -> list[float]:
    """Return the mean evaluated returns of one run."""
    config = PPOConfig().environment(make_env, normalize_rewards=normalize_rewards)
    config.rl_module(model_config=MEMORIES[memory]).debugging(seed=seed)
    config.reporting(total_steps=steps, steps_per_epoch=steps // 10).evaluation(evaluation_duration=20)
    return [float(epoch.test_collect_stat.returns_stat.mean) for epoch in config.build_trainer()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--memory", choices=MEMORIES, default="lstm")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--normalize-rewards", action="store_true")
    given = parser.parse_args()
    name = f"{given.memory}, rewards normalised," if given.normalize_rewards else given.memory
    for seed in given.seeds:
        returns = curve(given.memory, seed, given.steps, given.normalize_rewards)
        print(f"{name} seed {seed}:", *(f"{each:.0f}" for each in returns), flush=True)
