"""Episodes whose numbers say where they stand."""

import numpy as np

from lockstep.data import SingleAgentEpisode


def grown(steps=5, terminated=False, **options):
    """Observation i is [i, 10 i], action i is i, reward i is i / 2, extra v is 100 i."""
    episode = SingleAgentEpisode("e", **options)
    episode.add_env_reset(np.array([0.0, 0.0], np.float32), {"at": 0})
    for i in range(steps):
        episode.add_env_step(
            np.array([i + 1, 10 * (i + 1)], np.float32),
            i,
            i / 2,
            {"at": i + 1},
            terminated=terminated and i == steps - 1,
            extra_model_outputs={"v": 100.0 * i},
        )
    return episode


def given(steps=5, lookback=0, **options):
    """Observation i of those stored is i, action i is i, reward i is i / 2, extra v is 10 i."""
    total = steps + lookback
    return SingleAgentEpisode(
        "e",
        observations=np.arange(total + 1),
        actions=np.arange(total),
        rewards=np.arange(total) / 2,
        infos=[{"i": i} for i in range(total + 1)],
        extra_model_outputs={"v": np.arange(total) * 10},
        len_lookback_buffer=lookback,
        **options,
    )


def edited(episode, **changes):
    for name, value in changes.items():
        setattr(episode, name, value)
    return episode


def readable(episode):
    """All that a user can read, lookback included."""
    back = {"indices": slice(-episode.len_lookback_buffer, None), "neg_index_as_lookback": True}
    marks = ("id_", "t", "t_started", "is_terminated", "is_truncated", "len_lookback_buffer", "agent_id", "module_id")
    return {
        "marks": str([getattr(episode, name) for name in (*marks, "custom_data")]),
        "obs": episode.get_observations(**back),
        "actions": episode.get_actions(**back),
        "rewards": episode.get_rewards(**back),
        "extra": {key: episode.get_extra_model_outputs(key, **back) for key in episode._extras},
        "infos": [str(info) for info in episode.get_infos(**back)],
    }
