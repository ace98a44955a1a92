"""The one form in which all data moves: batches of columns, episodes, and cutting them into parts."""

from lockstep.data.agent_steps import MultiAgentEnvError
from lockstep.data.columns import DEFAULT_MODULE_ID, Columns
from lockstep.data.episode import SingleAgentEpisode
from lockstep.data.files.dataset import OfflineDataset, OfflineMinibatches, parquet_batches, write_rows
from lockstep.data.files.minari import read_minari, read_minari_batch, write_minari
from lockstep.data.minibatch import (
    MiniBatchIterator,
    minibatch_indices,
    multi_minibatch_indices,
    shard_batch,
    shard_episodes,
)
from lockstep.data.multi_agent_episode import MultiAgentEpisode
from lockstep.data.sample_batch import (
    MultiAgentBatch,
    SampleBatch,
    concat_samples,
    concat_samples_into_ma_batch,
    convert_ma_batch_to_sample_batch,
)
from lockstep.data.trees import map_tree

__all__ = [
    "DEFAULT_MODULE_ID",
    "Columns",
    "MiniBatchIterator",
    "MultiAgentBatch",
    "MultiAgentEnvError",
    "MultiAgentEpisode",
    "OfflineDataset",
    "OfflineMinibatches",
    "SampleBatch",
    "SingleAgentEpisode",
    "concat_samples",
    "concat_samples_into_ma_batch",
    "convert_ma_batch_to_sample_batch",
    "map_tree",
    "minibatch_indices",
    "multi_minibatch_indices",
    "parquet_batches",
    "read_minari",
    "read_minari_batch",
    "shard_batch",
    "shard_episodes",
    "write_minari",
    "write_rows",
]
