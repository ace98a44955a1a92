"""Time batches and episodes of Lockstep, or with ``{"library": "rllib"}`` of RLlib, at the work of ``data_work.py``."""

from __future__ import annotations

import data_work
import numpy as np
import protocol

w = protocol.read(__doc__)

if w.library == "rllib":
    from ray import __version__
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.policy.sample_batch import SampleBatch, concat_samples
else:
    from lockstep import __version__
    from lockstep.data import SampleBatch, SingleAgentEpisode, concat_samples


def build(observations: list[object], *, extras: bool = False) -> SingleAgentEpisode:
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


def main() -> None:
    """Measure and report."""
    least = protocol.least_seconds
    parts = data_work.fragments()
    batches = [SampleBatch(columns) for columns in data_work.fragments()]
    whole = concat_samples(batches)
    observations = data_work.observations()
    episode = build(observations, extras=True)
    seconds = {
        "plain_concat": least(lambda: data_work.plain_concat(parts)),
        "concat": least(lambda: concat_samples(batches)),
        "slice": least(lambda: whole[100:300]),
        "build": least(lambda: build(observations)),
        "build_extras": least(lambda: build(observations, extras=True)),
        "slice_episode": least(lambda: episode[50:100]),
    }
    for kind in ("integers", "strings", "flags"):
        rows = SampleBatch(data_work.episodes_by(kind))
        seconds[f"split_{kind}"] = least(rows.split_by_episode)
        if w.library == "rllib":  # its pieces are made at once
            seconds[f"split_{kind}_read"] = seconds[f"split_{kind}"]
        else:
            seconds[f"split_{kind}_read"] = least(lambda batch=rows: list(batch.split_by_episode()))
    protocol.print_line(w.library, __version__, seconds=seconds, numpy=np.__version__)


main()
