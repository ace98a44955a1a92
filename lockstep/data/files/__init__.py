"""Data sets in files: rows of `.npy` files, Parquet, and Minari data sets, read and written as batches."""

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
