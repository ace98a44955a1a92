"""The work of ``replay_speed.py``, the same for every library. NumPy and the standard library alone.

Steps of 8 environments as of CartPole (float32 observations of 4 numbers, an integer action), ready in arrays; buffers
of 100,000 transitions, full; 256 rows drawn. Collectors: 8 CartPole-v1 stepped in one process into such a buffer, with
random actions or with a Q network of two layers of 64 and epsilon 0.1.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

ENVS, SIZE, LARGE, BATCH, STEPS = 8, 100_000, 1_000_000, 256, 1_000
FRAME_SIZE, FRAMES = (84, 84), 20_000
ENVIRONMENT, HIDDENS, EPSILON, COLLECTED = "CartPole-v1", (64, 64), 0.1, 2_048
CALLS = {"sample_frames": 20, "collect_random": 1, "collect_network": 1}
"""how often the slow ones are called in one stretch"""


def steps() -> list[dict[str, np.ndarray]]:
    """Vector steps by Lockstep's names."""
    rng = np.random.default_rng(0)
    return [
        {
            "obs": rng.random((ENVS, 4), dtype=np.float32),
            "actions": rng.integers(0, 2, ENVS),
            "rewards": np.ones(ENVS, np.float32),
            "terminateds": rng.random(ENVS) < 0.02,
            "truncateds": np.zeros(ENVS, bool),
            "new_obs": rng.random((ENVS, 4), dtype=np.float32),
        }
        for _ in range(STEPS)
    ]


def frame_steps() -> list[dict[str, np.ndarray]]:
    """Steps of one environment that shows frames."""
    rng = np.random.default_rng(0)
    shown = rng.integers(0, 256, (STEPS + 1, 1, *FRAME_SIZE), dtype=np.uint8)
    return [
        {
            "obs": shown[k],
            "actions": np.array([k % 6]),
            "rewards": np.ones(1, np.float32),
            "terminateds": np.array([k % 250 == 249]),
            "truncateds": np.zeros(1, bool),
            "new_obs": shown[k + 1],
        }
        for k in range(STEPS)
    ]


def errors() -> list[np.ndarray]:
    """Errors of 256 rows for new priorities."""
    rng = np.random.default_rng(1)
    return [rng.random(BATCH) for _ in range(50)]


def measure(
    name: str,
    version: str,
    add: Callable[[Any, Any], Any],
    works: dict[str, tuple[Any, list[Any], Any]],
    **facts: Any,
) -> None:
    """Times each work and prints one JSON line.

    `works`: name -> (full buffer, steps to add or [], draw(buffer, k) or None). Seconds of processor time for one call,
    the least of several stretches of calls. A call of a collector collects `COLLECTED` steps. `facts` are printed too.
    """
    seconds = {}
    for work, (buffer, given, draw) in works.items():
        stretches = []
        for _ in range(7):
            began = time.process_time()
            if given:
                for step in given:
                    add(buffer, step)
                calls = len(given)
            else:
                calls = CALLS.get(work, 200)
                for k in range(calls):
                    draw(buffer, k)
            stretches.append((time.process_time() - began) / calls)
        seconds[work] = min(stretches)
    said = {"name": name, "version": version, "python": sys.version.split()[0], "seconds": seconds, **facts}
    print(json.dumps(said))
