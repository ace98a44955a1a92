"""Time Lockstep's replay buffers at the work of ``replay_speed.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
import protocol
import replay_work as work

import lockstep
from lockstep.envs import make_vector
from lockstep.replay import PrioritizedVectorReplayBuffer, ReplayBuffer, VectorReplayBuffer
from lockstep.rollout import Collector

protocol.read(__doc__)


def collector() -> Collector:
    """Return a collector with 8 environments, a Q network, a buffer."""
    policy = (
        lockstep.DQNConfig()
        .environment(work.ENVIRONMENT)
        .training(epsilon=work.EPSILON)
        .rl_module(model_config={"hiddens": work.HIDDENS, "activation": "relu"})
        .build_policy()
    )
    environments = make_vector(work.ENVIRONMENT, num_envs=work.ENVS)
    made = Collector(policy, environments, VectorReplayBuffer(work.SIZE, work.ENVS), exploration_noise=True)
    made.reset()
    return made


def num_bytes(state: Any) -> int:
    """Return the bytes of all arrays in a state."""
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list) else []
    return state.nbytes if isinstance(state, np.ndarray) else sum(map(num_bytes, parts))


def main() -> None:
    """Fill the buffers and measure."""
    steps, frames = work.steps(), work.frame_steps()
    buffers: dict[str, ReplayBuffer] = {
        "uniform": VectorReplayBuffer(work.SIZE, work.ENVS),
        "large": VectorReplayBuffer(work.LARGE, work.ENVS),
        "prioritized": PrioritizedVectorReplayBuffer(work.SIZE, work.ENVS, 0.6, 0.4),
        "n_step": VectorReplayBuffer(work.SIZE, work.ENVS, n_step=3),
    }
    for buffer in buffers.values():
        work.full(buffer, steps)
    stacked = work.full(ReplayBuffer(work.FRAMES, stack_num=4, ignore_obs_next=True), frames)
    buffers["stacked"] = stacked
    seconds = work.measure(buffers, steps, frames, lambda batch: batch["batch_indexes"], collector)
    row = num_bytes(stacked.get_state()) / len(stacked)
    protocol.print_line("lockstep", lockstep.__version__, seconds=seconds, bytes_for_a_frame_row=row)


main()
