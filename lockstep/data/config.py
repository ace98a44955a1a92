"""The section of a configuration about data that was collected before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from lockstep.options.section import ConfigT, Section, option

if TYPE_CHECKING:
    from lockstep.data.typed import OfflineDataOptions


@dataclass
class OfflineDataSection(Section[ConfigT]):
    """Where offline data is, and what of it is read."""

    name = "offline_data"

    input_: Any = None
    """the id of a local Minari dataset; a file of `write_rows`, or several, which follow one another; an `.npz` or
    `.parquet` file of a batch; the folder of a saved replay buffer; or a `SampleBatch`, `OfflineDataset` or
    `ReplayBuffer`, which is shared by copies"""
    columns: Sequence[str] | Mapping[str, str] | None = None
    """columns to read; as a dict `{name here: name in the files}`; `None`: all"""
    max_memory_bytes: int = option(256 << 20, ge=0)
    """size up to which the rows are held in memory; larger data is read from disk where it is needed"""

    def __call__(self, **options: Unpack[OfflineDataOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options)

    def validate(self) -> None:
        """Refuse an `input_` that is no data; files are opened when they are read."""
        data = self.input_
        paths = data if isinstance(data, list | tuple) else [data]
        is_data = hasattr(data, "__getitem__") and hasattr(data, "__len__")
        if not all(isinstance(path, str | Path) or (path is data and (is_data or path is None)) for path in paths):
            raise TypeError(
                f"offline_data.input_={data!r} must be the path of a file, a list of paths, the id of a Minari "
                "dataset, a replay buffer or a batch, or None"
            )
        if not paths:
            raise ValueError(f"offline_data.input_={data!r} names no file; give one path or several, or None")

    def freeze(self) -> None:
        """Refuse changes from now on; data that are no list of paths stay the same object."""
        data = self.input_
        super().freeze()
        if not isinstance(data, list):
            object.__setattr__(self, "input_", data)

    def copy(self) -> Self:
        """Return an independent section that is not frozen, of the same data."""
        data = self.input_
        options = replace(self, input_=None)
        copied = Section.copy(options)
        copied.input_ = list(data) if isinstance(data, list) else data
        return copied
