"""Time batches and episodes of ``lockstep``, ``rllib`` or ``tianshou`` for ``data_speed.py``.

100 fragments of 200 rows in 10 columns, 400 episodes of 50 rows in the same rows, and an episode of 200 steps with an
observation of 4 numbers. Tianshou has no episodes: its ``ReplayBuffer`` stands in for one.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import protocol

w = protocol.read(__doc__)

if w.library == "tianshou":
    from tianshou import __version__
    from tianshou.data import Batch, ReplayBuffer

    concat = Batch.cat
elif w.library == "rllib":
    from ray import __version__
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.policy.sample_batch import SampleBatch as Batch
    from ray.rllib.policy.sample_batch import concat_samples as concat
else:
    from lockstep import __version__
    from lockstep.data import SampleBatch as Batch
    from lockstep.data import SingleAgentEpisode
    from lockstep.data import concat_samples as concat

NUM_FRAGMENTS, ROWS, NUM_EPISODES, STEPS = 100, 200, 400, 200
ID_WIDTH = 32
"""characters of an episode's id, as of a UUID"""


def make_fragments() -> list[dict[str, np.ndarray]]:
    """Return 100 times 10 columns of 200 rows."""
    rng = np.random.default_rng(0)
    return [
        {
            "obs": rng.normal(size=(ROWS, 4)).astype(np.float32),
            "new_obs": rng.normal(size=(ROWS, 4)).astype(np.float32),
            "actions": rng.integers(0, 2, ROWS),
            "rewards": rng.normal(size=ROWS).astype(np.float32),
            "terminateds": np.zeros(ROWS, bool),
            "truncateds": np.zeros(ROWS, bool),
            "t": np.arange(ROWS),
            "agent_index": np.full(ROWS, number),
            "action_logp": rng.normal(size=ROWS).astype(np.float32),
            "vf_preds": rng.normal(size=ROWS).astype(np.float32),
        }
        for number in range(NUM_FRAGMENTS)
    ]


def episodes_by(kind: str) -> dict[str, np.ndarray]:
    """Return the 20,000 rows as 400 episodes told apart by integer ids, by ids of 32 characters, or by their flags."""
    joined = plain_concat(make_fragments())
    length = NUM_FRAGMENTS * ROWS // NUM_EPISODES
    numbers = np.repeat(np.arange(NUM_EPISODES), length)
    joined["terminateds"] = np.arange(len(numbers)) % length == length - 1
    del joined["agent_index"]  # 10 columns with the id
    if kind == "integers":
        joined["eps_id"] = numbers
    elif kind == "strings":
        joined["eps_id"] = np.array([f"{number:0{ID_WIDTH}x}" for number in range(NUM_EPISODES)])[numbers]
    return joined


def plain_concat(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Join the columns with `np.concatenate` alone."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def build_episode(observations: list[np.ndarray], *, extras: bool = False) -> Any:
    """Return an episode of 200 steps, packed into arrays."""
    episode = SingleAgentEpisode()
    episode.add_env_reset(observations[0], {})
    if extras:
        outputs = {"action_logp": -0.5, "vf_preds": 0.1}
        for observation in observations[1:]:
            episode.add_env_step(observation, 1, 1.0, {}, extra_model_outputs=outputs)
    else:
        for observation in observations[1:]:
            episode.add_env_step(observation, 1, 1.0, {})
    return episode.to_numpy()


def build_buffer(observations: list[np.ndarray], *, extras: bool = False) -> Any:
    """Return a buffer with the 200 steps of an episode, which lie in arrays at once."""
    buffer = ReplayBuffer(size=STEPS)
    policy = {"policy": Batch(action_logp=-0.5, vf_preds=0.1)} if extras else {}
    for before, after in pairwise(observations):
        step = {"obs": before, "act": 1, "rew": 1.0, "obs_next": after, "terminated": False, "truncated": False}
        buffer.add(Batch(**step, info={}, **policy))
    return buffer


def main() -> None:
    """Measure and report."""
    least, build = protocol.least_seconds, build_buffer if w.library == "tianshou" else build_episode
    fragments = make_fragments()
    batches = [Batch(columns) for columns in make_fragments()]
    whole = concat(batches)
    observations = list(np.random.default_rng(1).normal(size=(STEPS + 1, 4)).astype(np.float32))
    episode = build(observations, extras=True)
    seconds = {
        "plain_concat": least(lambda: plain_concat(fragments)),
        "concat": least(lambda: concat(batches)),
        "slice": least(lambda: whole[100:300]),
        "build": least(lambda: build(observations)),
        "build_extras": least(lambda: build(observations, extras=True)),
        "slice_episode": least(lambda: episode[50:100]),
    }
    for kind in ("integers", "strings", "flags") if w.library != "tianshou" else ():
        rows = Batch(episodes_by(kind))
        seconds[f"split_{kind}"] = seconds[f"split_{kind}_read"] = least(rows.split_by_episode)
        if w.library == "lockstep":  # RLlib's pieces are made at once
            seconds[f"split_{kind}_read"] = least(lambda batch=rows: list(batch.split_by_episode()))
    protocol.print_line(w.library, __version__, seconds=seconds, numpy=np.__version__)


main()
