"""Data sets in files: data larger than memory, Minari datasets, and recorded rows to sample from.

`SampleBatch` itself reads and writes `.npz` and Parquet files.
"""

from lockstep.data.files.dataset import OfflineDataset, OfflineMinibatches, parquet_batches, write_rows
from lockstep.data.files.minari import read_minari, read_minari_batch, write_minari
from lockstep.data.files.offline_rows import OfflineRows

__all__ = [
    "OfflineDataset",
    "OfflineMinibatches",
    "OfflineRows",
    "parquet_batches",
    "read_minari",
    "read_minari_batch",
    "write_minari",
    "write_rows",
]
