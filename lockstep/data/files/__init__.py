"""Data sets too large for memory, and Minari's, read and written as batches. (`SampleBatch` reads npz and Parquet.)"""

from lockstep.data.files.dataset import OfflineDataset, OfflineMinibatches, parquet_batches, write_rows
from lockstep.data.files.minari import read_minari, read_minari_batch, write_minari

__all__ = [
    "OfflineDataset",
    "OfflineMinibatches",
    "parquet_batches",
    "read_minari",
    "read_minari_batch",
    "write_minari",
    "write_rows",
]
