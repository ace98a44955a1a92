"""Lockstep's replay buffers at the work of ``replay_speed.py``."""

from __future__ import annotations

from typing import Any

import replay_work as w

import lockstep
from lockstep.replay import PrioritizedVectorReplayBuffer, ReplayBuffer, VectorReplayBuffer


def main() -> None:
    """Fills the buffers and measures."""
    steps, frames, errors = w.steps(), w.frame_steps(), w.errors()

    def add(buffer: ReplayBuffer, step: Any) -> None:
        buffer.add(step)

    def sample(buffer: ReplayBuffer, k: int) -> None:
        buffer.sample(w.BATCH)

    def sample_and_update(buffer: ReplayBuffer, k: int) -> None:
        batch = buffer.sample(w.BATCH)
        buffer.update_weight(batch["batch_indexes"], errors[k % len(errors)])

    def full(buffer: ReplayBuffer, given: list[Any]) -> ReplayBuffer:
        while len(buffer) < buffer.maxsize:
            for step in given:
                buffer.add(step)
        return buffer

    uniform = full(VectorReplayBuffer(w.SIZE, w.ENVS), steps)
    large = full(VectorReplayBuffer(w.LARGE, w.ENVS), steps)
    prioritized = full(PrioritizedVectorReplayBuffer(w.SIZE, w.ENVS, 0.6, 0.4), steps)
    stacked = full(ReplayBuffer(w.FRAMES, stack_num=4, ignore_obs_next=True), frames)
    n_step = full(VectorReplayBuffer(w.SIZE, w.ENVS, n_step=3), steps)
    w.measure(
        "lockstep",
        lockstep.__version__,
        add,
        {
            "add": (uniform, steps, None),
            "add_prioritized": (prioritized, steps, None),
            "add_frames": (stacked, frames, None),
            "sample": (uniform, [], sample),
            "sample_large": (large, [], sample),
            "sample_prioritized": (prioritized, [], sample_and_update),
            "sample_frames": (stacked, [], sample),
            "sample_n_step": (n_step, [], sample),
        },
    )


main()
