"""Columns of rows compressed with lz4, which can be sliced, joined and shuffled like other rows.

A compressed column is an array of objects, one `CompressedRow` for each row.
"""

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
    """Rows of one array that were compressed together."""

    content: bytes
    num_rows: int
    row_shape: tuple[int, ...]
    stored: str
    """Name of the numpy dtype of the rows."""
    kind: Mapping[str, str]
    """Kind of the leaf, for `restored_leaf`."""

    def rows(self) -> np.ndarray:
        """Return the rows `[num_rows, *row_shape]`, decompressed."""
        dtype = plain_dtype(self.stored)
        shape = (self.num_rows, *self.row_shape)
        content = _lz4().decompress(self.content, uncompressed_size=math.prod(shape) * dtype.itemsize)
        return np.frombuffer(content, dtype).reshape(shape)


@dataclass(frozen=True, slots=True, eq=False)
class CompressedRow:
    """Row `index` of a block: the entry of a compressed column."""

    block: CompressedBlock
    index: int

    @property
    def num_bytes(self) -> int:
        """This row's share of the bytes of its block."""
        return len(self.block.content) // self.block.num_rows

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + self.num_bytes

    def __repr__(self) -> str:
        return f"<{self.num_bytes} bytes>"


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
    """Return a column with compressed rows. Empty and compressed leaves stay as they are.

    Args:
        name: Column name, for errors.
        column: Column to compress, which may be nested.
        bulk: Compress all rows of a leaf as one block. It is smaller, and all of it is read for a single row.
        lead: Number of leading axes that count rows: 2 for time-major columns, else 1.
    """

    def compress(leaf: Leaf) -> Any:
        return leaf if is_compressed(leaf) else _compress_leaf(leaf, name, bulk, lead)

    return map_tree(compress, column)


def _compress_leaf(leaf: Leaf, name: str, bulk: bool, lead: int) -> Any:
    array, kind = plain_array(leaf, name)
    lead = min(lead, array.ndim)
    outer_shape = array.shape[:lead]
    row_shape = array.shape[lead:]
    flat = np.ascontiguousarray(array).reshape((math.prod(outer_shape), *row_shape))
    if not flat.size:
        return leaf

    lz4 = _lz4()
    stored = array.dtype.str

    def block(rows: np.ndarray) -> CompressedBlock:
        content = lz4.compress(rows.tobytes(), store_size=False)
        return CompressedBlock(content, len(rows), row_shape, stored, kind)

    packed = np.empty(len(flat), dtype=object)
    if bulk:
        whole = block(flat)
        for index in range(len(flat)):
            packed[index] = CompressedRow(whole, index)
    else:
        for index in range(len(flat)):
            packed[index] = CompressedRow(block(flat[index : index + 1]), 0)
    return packed.reshape(outer_shape)


def decompress_column(name: str, column: Tree) -> Any:
    """Return a column with arrays and tensors in place of compressed rows. Other leaves stay as they are."""
    return map_tree(lambda leaf: _decompress_leaf(leaf, name) if is_compressed(leaf) else leaf, column)


def _decompress_leaf(leaf: np.ndarray, name: str) -> Any:
    rows = leaf.reshape(-1)
    blocks = [_block_of(row) for row in rows]
    first = next(block for block in blocks if block is not None)
    out = np.zeros((len(rows), *first.row_shape), plain_dtype(first.stored))
    decompressed: dict[int, np.ndarray] = {}
    """Rows of each block of several rows, by the id of the block, so that each is decompressed once."""

    for index, (row, block) in enumerate(zip(rows, blocks)):
        if row is None:  # padding of `right_zero_pad`, which stays zero
            continue
        if block is None or block.row_shape != first.row_shape or block.kind != first.kind:
            description = f"a {type(row).__name__}" if block is None else _describe_block(block)
            raise ValueError(
                f"column {name!r} holds {_describe_block(first)} and, in row {index}, {description}; decompress "
                "batches of different kinds before joining them"
            )
        if block.num_rows == 1:
            out[index] = block.rows()[0]
            continue
        block_id = id(block)
        if block_id not in decompressed:
            decompressed[block_id] = block.rows()
        out[index] = decompressed[block_id][row.index]
    return restored_leaf(out.reshape((*leaf.shape, *first.row_shape)), first.kind)


def _block_of(row: object) -> CompressedBlock | None:
    """Return the block that a compressed row is in; None for any other object."""
    return row.block if isinstance(row, CompressedRow) else None


def _describe_block(block: CompressedBlock) -> str:
    return f"compressed {block.kind['dtype']}{list(block.row_shape)}"


def columns_to_compress(columns: Collection[str], present: Collection[str]) -> list[str]:
    """Return the names of the columns to compress or decompress, in the order of the batch.

    Raises:
        KeyError: a column is missing. The default columns may be missing.
        ValueError: `seq_lens` is among the columns.
    """
    wanted = {columns} if isinstance(columns, str) else set(columns)
    missing = sorted(wanted - set(present))
    if missing and wanted != DEFAULT_COLUMNS:
        raise KeyError(f"no column {missing[0]!r} to compress; columns are {sorted(present)}")
    if Columns.SEQ_LENS in wanted:
        raise ValueError("'seq_lens' counts the rows and cannot be compressed")
    return [name for name in present if name in wanted]
