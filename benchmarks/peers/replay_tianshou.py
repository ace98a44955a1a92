"""Tianshou's replay buffers at the work of ``replay_speed.py``."""

from __future__ import annotations

from typing import Any

import replay_work as w
import tianshou
from tianshou.data import Batch, PrioritizedVectorReplayBuffer, ReplayBuffer, VectorReplayBuffer

NAMES = {
    "obs": "obs",
    "act": "actions",
    "rew": "rewards",
    "terminated": "terminateds",
    "truncated": "truncateds",
    "obs_next": "new_obs",
}


def main() -> None:
    """Fills the buffers and measures."""
    errors = w.errors()
    steps, frames = (
        [Batch(**{name: step[ours] for name, ours in NAMES.items()}, info=Batch()) for step in given]
        for given in (w.steps(), w.frame_steps())
    )
    single = [Batch(**{name: step[name][0] for name in NAMES}, info=Batch()) for step in frames]

    def add(buffer: Any, step: Any) -> None:
        buffer.add(step)

    def sample(buffer: Any, k: int) -> None:
        buffer.sample(w.BATCH)

    def sample_and_update(buffer: Any, k: int) -> None:
        _, indices = buffer.sample(w.BATCH)
        buffer.update_weight(indices, errors[k % len(errors)])

    def full(buffer: Any, given: list[Any]) -> Any:
        while len(buffer) < buffer.maxsize:
            for step in given:
                buffer.add(step)
        return buffer

    uniform = full(VectorReplayBuffer(w.SIZE, w.ENVS), steps)
    large = full(VectorReplayBuffer(w.LARGE, w.ENVS), steps)
    prioritized = full(PrioritizedVectorReplayBuffer(w.SIZE, w.ENVS, alpha=0.6, beta=0.4), steps)
    stacked = full(ReplayBuffer(w.FRAMES, stack_num=4, ignore_obs_next=True), single)
    w.measure(
        "tianshou",
        tianshou.__version__,
        add,
        {
            "add": (uniform, steps, None),
            "add_prioritized": (prioritized, steps, None),
            "add_frames": (stacked, single, None),
            "sample": (uniform, [], sample),
            "sample_large": (large, [], sample),
            "sample_prioritized": (prioritized, [], sample_and_update),
            "sample_frames": (stacked, [], sample),
        },
    )


main()
