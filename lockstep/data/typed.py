"""Keyword types of the options declared in this folder."""

# Written by `python tests/architecture/keyword_types.py` from the fields of the sections: do not edit.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict


class OfflineDataOptions(TypedDict, total=False):
    """Options of `OfflineDataSection`."""

    input_: Any
    columns: Sequence[str] | Mapping[str, str] | None
    max_memory_bytes: int
