"""The section of a configuration about data that was collected before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.data.offline import OfflineDataset
from lockstep.state.sections import Section


@dataclass
class OfflineDataSection(Section):
    """Where offline data is, and what of it is read."""

    input_: str | Path | Sequence[str | Path] | None = None
    """a file of `write_rows`, or several, which follow one another"""
    columns: Sequence[str] | Mapping[str, str] | None = None
    """columns to read; as a dict `{name here: name in the files}`; `None`: all"""
    max_memory_bytes: int = 256 << 20
    """size up to which the rows are held in memory; larger data is read from disk where it is needed"""

    def validate(self) -> None:
        """Raises `TypeError` or `ValueError` naming the option; the files are opened by `build` only."""
        given: Any = self.input_
        paths = [given] if given is None or isinstance(given, str | Path) else given
        if not isinstance(paths, list | tuple) or not all(p is given or isinstance(p, str | Path) for p in paths):
            raise TypeError(f"offline_data.input_={given!r} must be the path of a file, a list of paths, or None")
        if not paths:
            raise ValueError(f"offline_data.input_={given!r} names no file; give one path or several, or None")
        wanted: Any = self.columns
        names = [*wanted, *wanted.values()] if isinstance(wanted, Mapping) else wanted
        if names is not None and (
            not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names)
        ):
            raise TypeError(
                f"offline_data.columns={wanted!r} must be a list of names, a dict {{name here: name in the files}}, or "
                "None"
            )
        if self.max_memory_bytes < 0:
            raise ValueError(f"offline_data.max_memory_bytes={self.max_memory_bytes} must be at least 0")

    def build(self) -> OfflineDataset:
        """The data set. `ValueError` where no file is named, and what `OfflineDataset` raises."""
        self.validate()
        if self.input_ is None:
            raise ValueError(
                "offline_data.input_ is not set; give the path of a file that write_rows wrote, or several"
            )
        return OfflineDataset(self.input_, columns=self.columns, max_memory_bytes=self.max_memory_bytes)
