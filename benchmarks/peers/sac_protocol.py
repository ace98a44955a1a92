"""What the scripts of ``benchmarks/sac_pendulum.py`` share: the setting, the command line, the clock, the last line.

The setting is the same for all: SAC or TD3 on one Pendulum-v1, one gradient step on 256 transitions for each step, two
critics and a policy of two 256-unit rectified layers, Adam with 1e-3, tau 0.005, gamma 0.99, a learned temperature; TD3
with a policy delay of 2. The first 500 steps take random actions, 100 more are left out of the rate. With one thread
rates are steps in a second of the processor's time, which is the clock's on an idle machine and says more on a busy
one; with several, whose times would be added up, in a second of the clock. ``ms_per_step`` is by the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

ENVIRONMENT = "Pendulum-v1"
RANDOM_STEPS = 500
WARM_STEPS = 100  # caches, lazy imports
HIDDENS = (256, 256)
BATCH = 256
LEARNING_RATE = 1e-3
GAMMA = 0.99
TAU = 0.005
CAPACITY = 100_000
NUM_RETURNS = 5  # training episodes (of 200 steps) in the return that a run reports
NOISE, TARGET_NOISE, NOISE_CLIP, POLICY_DELAY = 0.1, 0.2, 0.5, 2


def parse(
    description: str, *switches: tuple[str, str], algorithms: Sequence[str] = ("sac", "td3")
) -> argparse.Namespace:
    """Read ``--algorithm --steps --threads --seed`` and the script's own ``switches``; fix the number of threads.

    Call this before torch is imported.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--algorithm", choices=algorithms, default=algorithms[0])
    parser.add_argument("--steps", type=int, default=3_000, help="steps, the first 600 of which are not measured")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    for name, text in switches:
        parser.add_argument(name, action="store_true", help=text)
    options = parser.parse_args()
    if options.steps <= RANDOM_STEPS + WARM_STEPS:
        parser.error(f"--steps must be above {RANDOM_STEPS + WARM_STEPS}")
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[variable] = str(options.threads)
    import torch

    torch.set_num_threads(options.threads)
    return options


class Clock:
    """The time since the measured part began, and the returns of the last training episodes."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.began: tuple[int, float, float] | None = None
        self.ended = (0, 0.0, 0.0)
        self.returns: deque[float] = deque(maxlen=NUM_RETURNS)

    def mark(self, steps: int) -> None:
        """So many environment steps, with their gradient steps, are done."""
        if steps >= RANDOM_STEPS + WARM_STEPS and (self.began is None or steps > self.ended[0]):
            self.ended = steps, time.perf_counter(), time.process_time()
            self.began = self.began or self.ended

    def episode(self, episode_return: float) -> None:
        """A training episode ended."""
        self.returns.append(float(episode_return))

    def report(self, name: str, version: str, options: argparse.Namespace, *, gradient_steps: int) -> None:
        """Print the last line: one JSON object."""
        import torch

        assert self.began is not None
        steps, wall, processor = (end - begin for begin, end in zip(self.began, self.ended, strict=True))
        rate = steps / (processor if options.threads == 1 else wall)
        line: dict[str, Any] = {
            "name": name,
            "version": version,
            "algorithm": options.algorithm,
            "steps": steps,
            "steps_per_s": round(rate, 1),
            "steady_steps_per_s": round(rate, 1),
            "final_return": round(sum(self.returns) / len(self.returns), 1) if self.returns else None,
            "gradient_steps": gradient_steps,
            "ms_per_step": round(1e3 * wall / steps, 4),
            "processor_ms_per_step": round(1e3 * processor / steps, 4),
            "threads": options.threads,
            "torch": torch.__version__,
            "python": sys.version.split()[0],
        }
        print(json.dumps(line), flush=True)
