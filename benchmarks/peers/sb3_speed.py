"""Compare the CPU seconds of `learn` in Stable-Baselines3 and `lockstep_sb3`, with the defaults of both."""

from __future__ import annotations

import statistics
import subprocess
import sys
from typing import Any

RUNS = {
    "PPO": ("CartPole-v1", 8_192),
    "A2C": ("CartPole-v1", 5_000),
    "DQN": ("CartPole-v1", 6_000),
    "SAC": ("Pendulum-v1", 500),
    "TD3": ("Pendulum-v1", 500),
    "TQC": ("Pendulum-v1", 300),
}
"""Environment and measured steps of each algorithm. A first `learn` of 200 steps is not measured."""

PROGRAM = """
import importlib, sys, time
import torch

name, env, steps, library, seed = sys.argv[1:]
torch.set_num_threads(1)
root = "stable_baselines3" if library == "sb3" else "lockstep_sb3"
if library == "sb3" and name == "TQC":
    root = "sb3_contrib"
model = getattr(importlib.import_module(root), name)("MlpPolicy", env, seed=int(seed), device="cpu")
model.learn(200)
cpu, wall = time.process_time(), time.perf_counter()
model.learn(int(steps))
print(time.process_time() - cpu, time.perf_counter() - wall, model.num_timesteps)
"""


def compare_speed(python: str, repeats: int, names: list[str]) -> dict[str, Any]:
    """Train with both libraries in turns, and compare the medians of their CPU seconds.

    Args:
        python: Interpreter of the environment that has Stable-Baselines3.
        repeats: Runs of each library and algorithm, each with another seed.
        names: Algorithms, keys of `RUNS`.
    """
    found: dict[str, Any] = {}
    interpreters = {"sb3": python, "lockstep": sys.executable}
    for name in names:
        env, steps = RUNS[name]
        runs: dict[str, list[list[float]]] = {"sb3": [], "lockstep": []}
        for seed in range(repeats):
            # The first of two runs has the cooler processor, so the libraries change places.
            for library in sorted(interpreters, reverse=seed % 2 == 0):
                command = [interpreters[library], "-c", PROGRAM, name, env, str(steps), library, str(seed)]
                process = subprocess.run(command, check=True, capture_output=True, text=True, timeout=1200)
                runs[library].append([float(part) for part in process.stdout.split()])

        cpu = {library: statistics.median(run[0] for run in each) for library, each in runs.items()}
        ratio = cpu["sb3"] / cpu["lockstep"]
        found[name] = {"environment": env, "steps": steps, "runs": runs, "cpu_ratio": ratio, "cpu_seconds": cpu}
        print(f"{name} {env} {steps} steps, CPU seconds {cpu}: {ratio:.2f} times", flush=True)
    return found
