"""Time Tianshou's classes at the work of ``data_work.py``; its ``ReplayBuffer`` stands in for an episode."""

from __future__ import annotations

from itertools import pairwise

import data_work
import numpy as np
import protocol

protocol.read(__doc__)

import tianshou  # noqa: E402
from tianshou.data import Batch, ReplayBuffer  # noqa: E402


def build(observations: list[object], *, extras: bool = False) -> ReplayBuffer:
    """Return a buffer with the 200 steps of an episode, which lie in arrays at once."""
    buffer = ReplayBuffer(size=data_work.STEPS)
    policy = {"policy": Batch(action_logp=-0.5, vf_preds=0.1)} if extras else {}
    for before, after in pairwise(observations):
        step = {"obs": before, "act": 1, "rew": 1.0, "obs_next": after, "terminated": False, "truncated": False}
        buffer.add(Batch(**step, info={}, **policy))
    return buffer


def main() -> None:
    """Measure and report."""
    least = protocol.least_seconds
    batches = [Batch(**columns) for columns in data_work.fragments()]
    whole = Batch.cat(batches)
    observations = data_work.observations()
    buffer = build(observations, extras=True)
    seconds = {
        "concat": least(lambda: Batch.cat(batches)),
        "slice": least(lambda: whole[100:300]),
        "build": least(lambda: build(observations)),
        "build_extras": least(lambda: build(observations, extras=True)),
        "slice_episode": least(lambda: buffer[50:100]),
    }
    protocol.print_line("tianshou", tianshou.__version__, seconds=seconds, numpy=np.__version__)


main()
