"""Compressed columns: rows of bytes (lz4) in place of arrays, which still slice, join and shuffle as rows."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.data.codec import plain_array, plain_dtype, restored_leaf
from lockstep.data.columns import Columns
from lockstep.data.trees import Leaf, Tree, map_tree
from lockstep.options.checks import install_hint

DEFAULT_COLUMNS = frozenset({Columns.OBS, Columns.NEXT_OBS})


@dataclass(frozen=True, slots=True, eq=False)
class CompressedBlock:
    """Rows of one array, compressed together: their bytes, their stored type, and what kind of leaf they were."""

    content: bytes
    num_rows: int
    row_shape: tuple[int, ...]
    stored: str
    kind: Mapping[str, str]

    def rows(self) -> np.ndarray:
        """Return the rows [num_rows, *row_shape]."""
        dtype, shape = plain_dtype(self.stored), (self.num_rows, *self.row_shape)
        content = _lz4().decompress(self.content, uncompressed_size=math.prod(shape) * dtype.itemsize)
        return np.frombuffer(content, dtype).reshape(shape)


@dataclass(frozen=True, slots=True, eq=False)
class CompressedRow:
    """Row `index` of a block. What stands in a compressed column in place of a row."""

    block: CompressedBlock
    index: int

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + len(self.block.content) // self.block.num_rows

    def __repr__(self) -> str:
        return f"<{len(self.block.content) // self.block.num_rows} bytes>"


def _lz4() -> Any:
    try:
        import lz4.block  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise ImportError(f"compressed columns need lz4: {install_hint('compression')}") from None
    return lz4.block


def is_compressed(leaf: Leaf) -> bool:
    """Return whether a leaf holds compressed rows."""
    return (
        isinstance(leaf, np.ndarray)
        and leaf.dtype == object
        and any(isinstance(row, CompressedRow) for row in leaf.reshape(-1))
    )


def compress_column(name: str, column: Tree, bulk: bool, lead: int) -> Any:
    """Return the column with compressed rows; the first `lead` axes count rows. Empty leaves stay as they are."""
    return map_tree(lambda leaf: leaf if is_compressed(leaf) else _compress_leaf(leaf, name, bulk, lead), column)


def _compress_leaf(leaf: Leaf, name: str, bulk: bool, lead: int) -> Any:
    array, kind = plain_array(leaf, name)
    lead = min(lead, array.ndim)
    outer, row_shape = array.shape[:lead], array.shape[lead:]
    flat = np.ascontiguousarray(array).reshape((math.prod(outer), *row_shape))
    if not flat.size:
        return leaf
    lz4, stored = _lz4(), array.dtype.str

    def block(rows: np.ndarray) -> CompressedBlock:
        content = lz4.compress(rows.tobytes(), store_size=False)
        return CompressedBlock(content, len(rows), row_shape, stored, kind)

    whole = block(flat) if bulk else None
    packed = np.empty(len(flat), dtype=object)
    for index in range(len(flat)):
        packed[index] = CompressedRow(whole, index) if whole else CompressedRow(block(flat[index : index + 1]), 0)
    return packed.reshape(outer)


def decompress_column(name: str, column: Tree) -> Any:
    """Return the column with arrays and tensors in place of compressed rows; other leaves as they are."""
    return map_tree(lambda leaf: _decompress_leaf(leaf, name) if is_compressed(leaf) else leaf, column)


def _decompress_leaf(leaf: np.ndarray, name: str) -> Any:
    rows = leaf.reshape(-1)
    example = next(row for row in rows if isinstance(row, CompressedRow))
    first = example.block
    out = np.zeros((len(rows), *first.row_shape), plain_dtype(first.stored))
    opened: dict[int, np.ndarray] = {}
    for index, row in enumerate(rows):
        if row is None:  # the rows that right_zero_pad added
            continue
        if not isinstance(row, CompressedRow) or row.block.row_shape != first.row_shape or row.block.kind != first.kind:
            raise ValueError(
                f"column {name!r} holds {_row_in_words(example)} and, in row {index}, {_row_in_words(row)}; decompress "
                "batches of different kinds before joining them"
            )
        if row.block.num_rows == 1:
            out[index] = row.block.rows()[0]
            continue
        number = id(row.block)
        if number not in opened:
            opened[number] = row.block.rows()
        out[index] = opened[number][row.index]
    return restored_leaf(out.reshape((*leaf.shape, *first.row_shape)), first.kind)


def _row_in_words(row: object) -> str:
    if isinstance(row, CompressedRow):
        return f"compressed {row.block.kind['dtype']}{list(row.block.row_shape)}"
    return f"a {type(row).__name__}"


def wanted_columns(columns: Collection[str], present: Collection[str]) -> list[str]:
    """Return the columns to work on, in order; `KeyError` for a missing one unless they are the default."""
    wanted = {columns} if isinstance(columns, str) else set(columns)
    missing = sorted(wanted - set(present))
    if missing and wanted != DEFAULT_COLUMNS:
        raise KeyError(f"no column {missing[0]!r} to compress; columns are {sorted(present)}")
    if Columns.SEQ_LENS in wanted:
        raise ValueError("'seq_lens' counts the rows and cannot be compressed")
    return [name for name in present if name in wanted]
