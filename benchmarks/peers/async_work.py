"""What both sides of `async_speed.py` share: setting, command line, clock and last line (standard library alone)."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

ENVIRONMENT = "CartPole-v1"
HIDDENS = (64, 64)
LEARNING_RATE = 5e-4
WARM_SECONDS = 5.0
"""left out, from the first update on: caches, the queue that fills"""


def parse(description: str) -> argparse.Namespace:
    """The options; call it before torch is imported, since it sets the number of threads to one."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--algorithm", choices=("impala", "appo"), default="impala")
    parser.add_argument("--seconds", type=float, default=20.0, help="of training, after the warm ones")
    parser.add_argument("--runners", type=int, default=2, help="env runners in processes of their own")
    parser.add_argument("--envs", type=int, default=8, help="environments of each")
    parser.add_argument("--fragment", type=int, default=50, help="steps of each environment in a fragment")
    parser.add_argument("--batch", type=int, default=800, help="steps in a train batch")
    parser.add_argument("--seed", type=int, default=0)
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[variable] = "1"
    return parser.parse_args()


class Clock:
    """Steps sampled and steps trained on, from the end of the warm seconds to the last mark."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.began = seconds, 0.0
        self.first: tuple[float, float, float] | None = None
        self.last = (0.0, 0.0, 0.0)

    def mark(self, sampled: float, trained: float) -> bool:
        """Counts since the start; returns whether the time is over."""
        now = time.perf_counter()
        if not trained:
            return False
        self.began = self.began or now
        self.last = (now, sampled, trained)
        if self.first is None:
            self.first = self.last if now - self.began >= WARM_SECONDS else None
            return False
        return now - self.first[0] >= self.seconds

    def report(self, name: str, version: str, **more: object) -> None:
        """Prints the last line: one JSON object."""
        if self.first is None:
            raise SystemExit("the run ended within the warm seconds")
        seconds, sampled, trained = (last - first for last, first in zip(self.last, self.first))
        line = {
            "name": name,
            "version": version,
            "seconds": round(seconds, 3),
            "sampled_per_s": round(sampled / seconds, 1),
            "trained_per_s": round(trained / seconds, 1),
            "python": sys.version.split()[0],
            **more,
        }
        print(json.dumps(line), flush=True)
