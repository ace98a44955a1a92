"""Configuration section `offline_data`: recorded data to learn from."""

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
    """Options that say which recorded data an offline algorithm reads."""

    name = "offline_data"

    input_: Any = None
    """Recorded data to learn from: the id of a local Minari dataset; a file of `write_rows`, or a list of such files,
    which are read one after another; an `.npz` or `.parquet` file of a batch; the folder of a saved replay buffer; or a
    `SampleBatch`, `OfflineDataset` or `ReplayBuffer`, which copies of the configuration share."""
    columns: Sequence[str] | Mapping[str, str] | None = None
    """Columns to read, or a dict `{name here: name in the files}`. Defaults to all columns."""
    max_memory_bytes: int = option(256 << 20, ge=0)
    """Largest data set, in bytes, that is held in memory. Rows of a larger one are read from disk for each sample."""

    def __call__(self, **options: Unpack[OfflineDataOptions]) -> ConfigT:
        """Set options of this section, and return the configuration."""
        return self.change(options)

    def validate(self) -> None:
        """Raise an error unless `input_` can hold data. Files are opened later, when they are read."""
        data = self.input_
        if isinstance(data, list | tuple):
            is_allowed = all(isinstance(path, str | Path) for path in data)
        else:
            # Batches, data sets and buffers of the user's own are allowed as well: objects with rows and a length.
            has_rows = hasattr(data, "__getitem__") and hasattr(data, "__len__")
            is_allowed = data is None or isinstance(data, str | Path) or has_rows
        if not is_allowed:
            raise TypeError(
                f"offline_data.input_={data!r} must be the path of a file, a list of paths, the id of a Minari "
                "dataset, a replay buffer or a batch, or None"
            )
        if isinstance(data, list | tuple) and not data:
            raise ValueError(f"offline_data.input_={data!r} names no file; give one path or several, or None")

    def freeze(self) -> None:
        """Refuse later changes of options. Data that is not a list of paths stays the same object."""
        data = self.input_
        super().freeze()
        # `Section.freeze` replaces containers by immutable copies, which must not happen to a buffer of gigabytes.
        if not isinstance(data, list):
            object.__setattr__(self, "input_", data)

    def copy(self) -> Self:
        """Return an independent section that is not frozen. Both sections share the data."""
        data = self.input_
        # `Section.copy` copies deeply, so the data is taken out first.
        options = replace(self, input_=None)
        copied = Section.copy(options)
        copied.input_ = list(data) if isinstance(data, list) else data
        return copied
