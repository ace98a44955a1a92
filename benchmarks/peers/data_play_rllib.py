"""Plays sequences of operations on RLlib's batches and episodes (see ``data_player.py``)."""

from __future__ import annotations

import logging

import data_batch_operations
import data_episode_operations
import data_multi_operations
import data_player
import ray
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.policy import sample_batch
from ray.rllib.policy.view_requirement import ViewRequirement

logging.disable(logging.WARNING)
data_player.main(
    data_player.Library(
        name="rllib",
        version=ray.__version__,
        SampleBatch=sample_batch.SampleBatch,
        MultiAgentBatch=sample_batch.MultiAgentBatch,
        SingleAgentEpisode=SingleAgentEpisode,
        MultiAgentEpisode=MultiAgentEpisode,
        concat_samples=sample_batch.concat_samples,
        concat_samples_into_ma_batch=sample_batch.concat_samples_into_ma_batch,
        convert_ma_batch_to_sample_batch=sample_batch.convert_ma_batch_to_sample_batch,
        requirement=lambda name: ViewRequirement(data_col=name),
    ),
    data_batch_operations.OPERATIONS | data_episode_operations.OPERATIONS | data_multi_operations.OPERATIONS,
)
