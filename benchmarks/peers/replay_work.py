"""Do the work of ``replay_speed.py``, the same for every library.

Steps of 8 environments as of CartPole (float32 observations of 4 numbers, an integer action), ready in arrays; buffers
of 100,000 transitions, full; 256 rows drawn. Collectors: 8 CartPole-v1 stepped in one process into such a buffer, with
random actions or with a Q network of two layers of 64 and epsilon 0.1.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import protocol

ENVS, SIZE, LARGE, BATCH, STEPS = 8, 100_000, 1_000_000, 256, 1_000
FRAME_SIZE, FRAMES = (84, 84), 20_000
ENVIRONMENT, HIDDENS, EPSILON, COLLECTED = "CartPole-v1", (64, 64), 0.1, 2_048


def steps() -> list[dict[str, np.ndarray]]:
    """Return vector steps by Lockstep's names."""
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
    """Return steps of one environment that shows frames."""
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
    """Return errors of 256 rows for new priorities."""
    rng = np.random.default_rng(1)
    return [rng.random(BATCH) for _ in range(50)]


def full(buffer: Any, steps: list[Any]) -> Any:
    """Fill a buffer and return it."""
    while len(buffer) < buffer.maxsize:
        for step in steps:
            buffer.add(step)
    return buffer


def measure(
    buffers: dict[str, Any],
    steps: list[Any],
    frames: list[Any],
    indices_of: Callable[[Any], Any],
    collector: Callable[[], Any],
) -> dict[str, float]:
    """Return the processor's seconds for one call of each work, the least of several stretches of calls.

    ``buffers`` are full: uniform, large, prioritized, stacked and, where a library has it, n_step. ``indices_of`` tells
    the rows of a sample. A call of a collector collects `COLLECTED` steps.
    """
    drawn = itertools.cycle(errors())

    def add_all(buffer: Any, rows: list[Any]) -> None:
        for step in rows:
            buffer.add(step)

    def sample_and_update() -> None:
        buffers["prioritized"].update_weight(indices_of(buffers["prioritized"].sample(BATCH)), next(drawn))

    least, by_random, by_network = protocol.least_seconds, collector(), collector()
    seconds = {
        "add": least(lambda: add_all(buffers["uniform"], steps), calls=len(steps)),
        "add_prioritized": least(lambda: add_all(buffers["prioritized"], steps), calls=len(steps)),
        "add_frames": least(lambda: add_all(buffers["stacked"], frames), calls=len(frames)),
        "sample": least(lambda: buffers["uniform"].sample(BATCH)),
        "sample_large": least(lambda: buffers["large"].sample(BATCH)),
        "sample_prioritized": least(sample_and_update),
        "sample_frames": least(lambda: buffers["stacked"].sample(BATCH)),
        "collect_random": least(lambda: by_random.collect(n_step=COLLECTED, random=True)),
        "collect_network": least(lambda: by_network.collect(n_step=COLLECTED)),
    }
    if "n_step" in buffers:
        seconds["sample_n_step"] = least(lambda: buffers["n_step"].sample(BATCH))
    return seconds
