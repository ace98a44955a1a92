"""Tianshou's classes at the work of ``data_work.py``; its ``ReplayBuffer`` stands in for an episode."""

from __future__ import annotations

from itertools import pairwise

import data_work as w
import tianshou
from tianshou.data import Batch, ReplayBuffer


def build(observations: list[object], *, extras: bool = False) -> ReplayBuffer:
    """A buffer with the 200 steps of an episode, which lie in arrays at once."""
    buffer = ReplayBuffer(size=w.STEPS)
    policy = {"policy": Batch(action_logp=-0.5, vf_preds=0.1)} if extras else {}
    for before, after in pairwise(observations):
        step = {"obs": before, "act": 1, "rew": 1.0, "obs_next": after, "terminated": False, "truncated": False}
        buffer.add(Batch(**step, info={}, **policy))
    return buffer


def main() -> None:
    timer = w.Timer()
    batches = [Batch(**columns) for columns in w.fragments()]
    timer.time("concat", lambda: Batch.cat(batches))
    whole = Batch.cat(batches)
    timer.time("slice", lambda: whole[100:300])
    observations = w.observations()
    timer.time("build", lambda: build(observations))
    timer.time("build_extras", lambda: build(observations, extras=True))
    buffer = build(observations, extras=True)
    timer.time("slice_episode", lambda: buffer[50:100])
    timer.report("tianshou", tianshou.__version__)


main()
