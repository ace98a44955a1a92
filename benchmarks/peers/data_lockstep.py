"""Lockstep's classes at the work of ``data_work.py``."""

from __future__ import annotations

import data_work as w

import lockstep
from lockstep.data import SampleBatch, SingleAgentEpisode, concat_samples


def build(observations: list[object], *, extras: bool = False) -> SingleAgentEpisode:
    """An episode of 200 steps, packed into arrays."""
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
    timer = w.Timer()
    batches = [SampleBatch(columns) for columns in w.fragments()]
    timer.time("concat", lambda: concat_samples(batches))
    whole = concat_samples(batches)
    timer.time("slice", lambda: whole[100:300])
    for kind in ("integers", "strings", "flags"):
        episodes = SampleBatch(w.episodes_by(kind))
        timer.time(f"split_{kind}", episodes.split_by_episode)
        timer.time(f"split_{kind}_read", lambda batch=episodes: list(batch.split_by_episode()))
    observations = w.observations()
    timer.time("build", lambda: build(observations))
    timer.time("build_extras", lambda: build(observations, extras=True))
    episode = build(observations, extras=True)
    timer.time("slice_episode", lambda: episode[50:100])
    timer.report("lockstep", lockstep.__version__)


main()
