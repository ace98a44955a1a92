"""Plays sequences of operations on Lockstep's batches and episodes (see ``data_player.py``)."""

from __future__ import annotations

import data_batch_operations
import data_episode_operations
import data_multi_operations
import data_player

import lockstep
from lockstep import data

data_player.main(
    data_player.Library(
        name="lockstep",
        version=lockstep.__version__,
        SampleBatch=data.SampleBatch,
        MultiAgentBatch=data.MultiAgentBatch,
        SingleAgentEpisode=data.SingleAgentEpisode,
        MultiAgentEpisode=data.MultiAgentEpisode,
        concat_samples=data.concat_samples,
        concat_samples_into_ma_batch=data.concat_samples_into_ma_batch,
        convert_ma_batch_to_sample_batch=data.convert_ma_batch_to_sample_batch,
        requirement=lambda name: name,
    ),
    data_batch_operations.OPERATIONS | data_episode_operations.OPERATIONS | data_multi_operations.OPERATIONS,
)
