"""Lockstep's replay buffers at the work of ``replay_speed.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
import replay_work as w
import torch

import lockstep
from lockstep.envs import make_vector
from lockstep.replay import PrioritizedVectorReplayBuffer, ReplayBuffer, VectorReplayBuffer
from lockstep.rollout import Collector


def collector() -> Collector:
    """8 environments, a Q network, a buffer."""
    policy = (
        lockstep.DQNConfig()
        .environment(w.ENVIRONMENT)
        .training(epsilon=w.EPSILON)
        .rl_module(model_config={"hiddens": w.HIDDENS, "activation": "relu"})
        .build_policy()
    )
    environments = make_vector(w.ENVIRONMENT, num_envs=w.ENVS)
    made = Collector(policy, environments, VectorReplayBuffer(w.SIZE, w.ENVS), exploration_noise=True)
    made.reset()
    return made


def num_bytes(state: Any) -> int:
    """Of all arrays in a state."""
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list) else []
    return state.nbytes if isinstance(state, np.ndarray) else sum(map(num_bytes, parts))


def main() -> None:
    """Fills the buffers and measures."""
    torch.set_num_threads(1)
    steps, frames, errors = w.steps(), w.frame_steps(), w.errors()

    def add(buffer: ReplayBuffer, step: Any) -> None:
        buffer.add(step)

    def sample(buffer: ReplayBuffer, k: int) -> None:
        buffer.sample(w.BATCH)

    def sample_and_update(buffer: ReplayBuffer, k: int) -> None:
        batch = buffer.sample(w.BATCH)
        buffer.update_weight(batch["batch_indexes"], errors[k % len(errors)])

    def collect_random(collector: Collector, k: int) -> None:
        collector.collect(n_step=w.COLLECTED, random=True)

    def collect(collector: Collector, k: int) -> None:
        collector.collect(n_step=w.COLLECTED)

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
            "collect_random": (collector(), [], collect_random),
            "collect_network": (collector(), [], collect),
        },
        bytes_for_a_frame_row=num_bytes(stacked.get_state()) / len(stacked),
    )


main()
