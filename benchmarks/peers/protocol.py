"""What every peer script shares: the setting, the command line, the clock and the last line.

The setting is the same for all: PPO on CartPole-v1 with 8 environments stepped in one process, 128 steps
from each for one update, 4 epochs of minibatches of 256, separate policy and value networks of two 64-unit
tanh layers, Adam. A script parses the options *before* it imports torch, so that the number of threads
holds for every library underneath; it marks the clock after each update and ends with one JSON line.

This file uses the standard library alone (and torch once it is loaded): it runs in every peer's environment.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import deque
from typing import Any

ENVIRONMENT = "CartPole-v1"
NUM_ENVS = 8
STEPS_PER_ENV = 128
BATCH = NUM_ENVS * STEPS_PER_ENV
NUM_EPOCHS = 4
MINIBATCH = 256
HIDDENS = (64, 64)
LEARNING_RATE = 3e-4
GAMMA = 0.99
LAMBDA = 0.95
CLIP = 0.2
ENTROPY_COEFFICIENT = 0.01
VALUE_COEFFICIENT = 0.5
MAX_GRAD_NORM = 0.5
ADAM_EPSILON = 1e-5

WARM_UPDATES = 5  # updates left out of the steady rate: caches, lazy imports, compilers


def parse(description: str, *switches: tuple[str, str] | tuple[str, str, int]) -> argparse.Namespace:
    """Read ``--steps --threads --seed`` and the script's own ``switches``; fix the number of threads.

    A switch is a name and a help text, and a default where it takes a whole number. Call this before torch is
    imported. ``--steps`` is rounded up to whole updates.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=65_536, help="environment steps over all environments")
    parser.add_argument("--threads", type=int, default=1, help="threads for torch and the libraries below it")
    parser.add_argument("--seed", type=int, default=0)
    for name, text, *default in switches:
        if default:
            parser.add_argument(name, type=int, default=default[0], help=f"{text} (default {default[0]})")
        else:
            parser.add_argument(name, action="store_true", help=text)
    options = parser.parse_args()
    if options.steps < BATCH or options.threads < 1:
        parser.error(f"--steps must be at least {BATCH} (one update) and --threads at least 1")
    options.steps = -(-options.steps // BATCH) * BATCH
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[variable] = str(options.threads)
    import torch

    torch.set_num_threads(options.threads)
    return options


class Clock:
    """The time at the end of each update, the clock's and the processor's, and the returns of the last 20 training
    episodes.
    """

    def __init__(self) -> None:
        self.marks: list[tuple[int, float, float]] = []
        self.returns: deque[float] = deque(maxlen=20)

    def start(self) -> None:
        """Start the clock: everything is built, nothing is collected yet."""
        self.marks = [(0, time.perf_counter(), time.process_time())]

    def mark(self, steps: int) -> None:
        """One more update is done, ``steps`` environment steps since the start."""
        if steps > self.marks[-1][0]:
            self.marks.append((steps, time.perf_counter(), time.process_time()))

    def episode(self, episode_return: float) -> None:
        """A training episode ended."""
        self.returns.append(float(episode_return))

    def report(self, name: str, version: str, threads: int, **more: Any) -> None:
        """Print the last line: one JSON object."""
        (_, began, processor_began), (steps, ended, processor_ended) = self.marks[0], self.marks[-1]
        warm = self.marks[min(WARM_UPDATES, max(len(self.marks) - 2, 0))]
        import torch

        line = {
            "name": name,
            "version": version,
            "steps": steps,
            "seconds_total_loop": round(ended - began, 4),
            "steps_per_s": round(steps / (ended - began), 1),
            "steady_steps_per_s": round((steps - warm[0]) / (ended - warm[1]), 1),
            "processor_steps_per_s": round(steps / (processor_ended - processor_began), 1),
            "processor_steady_steps_per_s": round((steps - warm[0]) / (processor_ended - warm[2]), 1),
            "final_return": round(sum(self.returns) / len(self.returns), 2) if self.returns else None,
            "threads": threads,
            "torch": torch.__version__,
            "python": sys.version.split()[0],
            **more,
        }
        print(json.dumps(line), flush=True)
