"""Lossless storage of columns in Parquet files, and Parquet files as a stream of batches.

Each leaf is one Parquet column (`obs/camera`), stored in one of these encodings (`how` in the code):

- `plain`: numbers,
- `list`: rows of numbers, as fixed-size lists,
- `bytes`: rows of bytes and types that Parquet lacks, as fixed-size binary,
- `text`: text,
- `json`: objects, each as a JSON text,
- `nothing`: rows without a single byte, which have no Parquet column.

A JSON note in the file's metadata, under `lockstep`, holds what Parquet cannot express: nesting, shapes, whether a leaf
was a tensor or an array, and the layout.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from lockstep.data.codec import (
    MissingColumnError,
    array_keys,
    decode_column,
    decode_note,
    encode_note,
    objects_to_text,
    plain_dtype,
    text_to_objects,
)
from lockstep.data.trees import Tree
from lockstep.options.checks import check_whole, install_hint
from lockstep.state.replace import replacing_file
from lockstep.state.sizes import ClaimedSizeError, bytes_of, check_claim, count_of

_NOTE = b"lockstep"
"""Metadata key of the note."""


def import_pyarrow() -> Any:
    """Return the package pyarrow; `ImportError` says what to install."""
    try:
        import pyarrow.parquet  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise ImportError(f"Parquet files need pyarrow: {install_hint('offline')}") from None
    return pyarrow


# ---- writing -------------------------------------------------------------------------------------------------


def write_parquet(
    path: Path, columns: Mapping[str, Tree], marks: Mapping[str, Any], compression: str, row_group_size: int
) -> Path:
    """Write columns to one Parquet file, and return its path. The file appears when it is complete."""
    pyarrow = import_pyarrow()
    check_whole("row_group_size", row_group_size, 1)
    path = path if path.suffix == ".parquet" else path.with_name(path.name + ".parquet")
    fields: dict[str, Any] = {}

    def put(array: np.ndarray, name: str) -> Any:
        how, field = _to_arrow(pyarrow, array)
        key = {"how": how, "dtype": array.dtype.str, "shape": list(array.shape)}
        return key if field is None else {**key, "name": _add(fields, name, field)}

    def put_objects(rows: np.ndarray, name: str) -> Any:
        field = pyarrow.array(objects_to_text(rows, name), type=pyarrow.string())
        return {"how": "json", "shape": list(rows.shape), "name": _add(fields, name, field)}

    note = encode_note(columns, marks, put, put_objects)

    # Parquet columns have equal lengths: columns with one row for each sequence are filled with nulls.
    longest = max((len(field) for field in fields.values()), default=0)
    for name, field in fields.items():
        fields[name] = pyarrow.concat_arrays([field, pyarrow.nulls(longest - len(field), field.type)])

    table = pyarrow.table(fields)
    table = table.replace_schema_metadata({_NOTE: note.encode()})
    with replacing_file(path) as temporary:
        pyarrow.parquet.write_table(
            table,
            temporary,
            compression=compression,
            row_group_size=row_group_size,
            write_page_checksum=True,
            store_schema=True,
        )
    return path


def _add(fields: dict[str, Any], name: str, field: Any) -> str:
    """Add a Parquet column, and return its name, which gets a "+" until it is unique ("a/b" may be a key itself)."""
    while name in fields:
        name += "+"
    fields[name] = field
    return name


def _to_arrow(pyarrow: ModuleType, array: np.ndarray) -> tuple[str, Any]:
    """Return the encoding of an array, and its rows as an arrow array (None if a row has no bytes)."""
    width = math.prod(array.shape[1:])
    if width * array.dtype.itemsize == 0:
        return "nothing", None

    kind = array.dtype.kind
    is_native = array.dtype.isnative
    rows = np.ascontiguousarray(array)
    if kind == "U" and array.ndim == 1 and is_native:
        texts = rows.tolist()
        if not _has_surrogates(texts):
            return "text", pyarrow.array(texts, type=pyarrow.string())
    elif kind in "biuf" and is_native and array.dtype.itemsize <= 8:
        flat = pyarrow.array(rows.reshape(-1))
        if array.ndim == 1:
            return "plain", flat
        if array.dtype.itemsize > 1 or kind == "b":
            return "list", pyarrow.FixedSizeListArray.from_arrays(flat, width)

    # Everything else, images of bytes among them: a list of single bytes would be slow and large.
    content = [None, pyarrow.py_buffer(rows.reshape(-1).view(np.uint8))]
    binary = pyarrow.binary(width * array.dtype.itemsize)
    return "bytes", pyarrow.FixedSizeBinaryArray.from_buffers(binary, len(rows), content)


def _has_surrogates(texts: list[str]) -> bool:
    """Return whether a text has lone surrogates, which UTF-8, and so Parquet, cannot encode."""
    return any("\ud800" <= letter <= "\udfff" for letter in "".join(texts))


# ---- reading -------------------------------------------------------------------------------------------------


def read_parquet(path: Path, columns: Collection[str] | None) -> tuple[dict[str, Tree], dict[str, Any]]:
    """Return the columns and the marks of a file that `write_parquet` wrote, or of a plain table of numbers and text.

    Call it within `naming_damage`.

    Raises:
        MissingColumnError: the file lacks one of `columns`.
        ClaimedSizeError: the columns do not fit into memory.
    """
    with import_pyarrow().parquet.ParquetFile(path, page_checksum_verification=True) as file:
        note = _note_of(file, path, columns)
        names = _field_names(note)
        _check_sizes(map(file.metadata.row_group, range(file.metadata.num_row_groups)), note)
        table = file.read(columns=names)
        chunks = {name: table.column(name).chunks for name in names}
        return _decode(note, chunks, None), note["marks"]


def parquet_parts(path: Path, size: int, columns: Collection[str] | None) -> Iterator[dict[str, Tree]]:
    """Iterate over the rows of a file in parts of up to `size` rows. One row group is held in memory at a time."""
    with import_pyarrow().parquet.ParquetFile(path, page_checksum_verification=True) as file:
        note = _note_of(file, path, columns)
        names = _field_names(note)
        _check_rows_only(note, file.metadata.num_rows)
        # Group by group: `iter_batches` over several groups would keep all of them in memory.
        for group in range(file.metadata.num_row_groups):
            _check_sizes([file.metadata.row_group(group)], note)
            for part in file.iter_batches(size, row_groups=[group], columns=names, use_threads=False):
                chunks = {name: [part.column(name)] for name in names}
                yield _decode(note, chunks, part.num_rows)


def _note_of(file: Any, path: Path, columns: Collection[str] | None) -> dict[str, Any]:
    """Return the note of a file, with the descriptions of the requested columns only."""
    raw = (file.schema_arrow.metadata or {}).get(_NOTE)
    note = decode_note(raw) if raw is not None else {"marks": {}, "columns": _plain_columns(file)}
    if columns is not None:
        missing = sorted(set(columns) - set(note["columns"]))
        if missing:
            raise MissingColumnError(f"{path} has no column {missing[0]!r}; columns are {sorted(note['columns'])}")
        note["columns"] = {name: note["columns"][name] for name in columns}
    return note


def _plain_columns(file: Any) -> dict[str, Any]:
    """Describe the columns of a table from another program: numbers, bools, text and fixed-size lists of numbers.

    Raises:
        ValueError: a column has another type.
    """
    kinds = import_pyarrow().types
    columns = {}
    for field in file.schema_arrow:
        inner = field.type
        width: list[int] = []
        how = "plain"
        if kinds.is_fixed_size_list(inner):
            width = [inner.list_size]
            inner = inner.value_type
            how = "list"

        if kinds.is_boolean(inner) or kinds.is_integer(inner) or kinds.is_floating(inner):
            dtype = np.dtype(inner.to_pandas_dtype()).str
        elif not width and (kinds.is_string(inner) or kinds.is_large_string(inner)):
            how = "text"
            dtype = "U"  # the width is known when the rows have been read
        else:
            raise ValueError(
                f"its column {field.name!r} is of type {field.type}; allowed are numbers, bools, text and "
                "fixed-size lists of numbers"
            )
        key = {"how": how, "name": field.name, "shape": [file.metadata.num_rows, *width], "dtype": dtype}
        columns[field.name] = {"kind": "array", "dtype": dtype, "key": key}
    return columns


def _field_names(note: Mapping[str, Any]) -> list[str]:
    """Return the names of the Parquet columns that hold the leaves of a note."""
    names = []
    for item in note["columns"].values():
        names += [key["name"] for key in array_keys(item) if "name" in key]
    return names


def _check_sizes(groups: Iterable[Any], note: Mapping[str, Any]) -> None:
    """Check that the columns of these row groups fit into memory, by the sizes that Parquet's directory and the note
    claim.

    A page that unpacks to more than the directory claims is bounded as well: pages claim their sizes as 32-bit numbers.

    Raises:
        ClaimedSizeError: the columns do not fit.
    """
    wanted = set(_field_names(note))
    num_rows = 0
    packed = 0
    for group in groups:
        num_rows += group.num_rows
        for number in range(group.num_columns):
            column = group.column(number)
            if column.path_in_schema.split(".")[0] in wanted:
                packed += column.total_uncompressed_size

    decoded = 0
    for name, item in note["columns"].items():
        for key in array_keys(item):
            # Encodings store millions of equal rows in a few bytes, so the size of the pages says nothing about the
            # arrays: they are computed from the number of rows.
            what = f"its column {name!r}"
            dtype = plain_dtype(key["dtype"]) if "dtype" in key else np.dtype("u8")  # objects: a pointer each
            num_items = num_rows if key["how"] != "nothing" else count_of(what, key["shape"][:1])
            decoded += bytes_of(what, key["shape"][1:], dtype) * num_items

    # Twice: arrow's arrays and ours exist at the same time.
    check_claim("what it holds, unpacked and as arrays,", packed + 2 * decoded)


def _check_rows_only(note: Mapping[str, Any], num_rows: int) -> None:
    """Raise `ValueError` if a column has another number of rows than the file, as in batches with sequences."""
    for name, item in note["columns"].items():
        if any(key["shape"][0] != num_rows for key in array_keys(item)) or note["marks"].get("time_major"):
            raise ValueError(
                f"its column {name!r} has other rows than steps, as batches with sequences do; read it with "
                "SampleBatch.from_parquet"
            )


def _decode(note: Mapping[str, Any], chunks: Mapping[str, list[Any]], num_rows: int | None) -> dict[str, Any]:
    """Return the columns of a note from the arrow arrays of each Parquet column.

    `num_rows` is the number of rows if the chunks are a part of the file, and None for the whole file.
    """

    def shape_of(key: Mapping[str, Any]) -> list[int]:
        return key["shape"] if num_rows is None else [num_rows, *key["shape"][1:]]

    def get(key: Mapping[str, Any]) -> np.ndarray:
        shape = shape_of(key)
        if key["how"] == "nothing":
            return np.zeros(shape, plain_dtype(key["dtype"]))

        column = chunks[key["name"]]
        if key["how"] == "text":
            return np.array(_cells(column, shape[0]), plain_dtype(key["dtype"]))

        # Before the array is allocated: the note of a foreign file may claim any number of rows.
        num_stored = sum(map(len, column))
        if shape[0] > num_stored:
            raise ClaimedSizeError(
                f"its column {key['name']!r} claims {shape[0]:,} rows, the file holds {num_stored:,}"
            )
        out = np.zeros(shape, plain_dtype(key["dtype"]))
        _fill(out, column, key["how"], key["name"])
        return out

    def get_objects(key: Mapping[str, Any]) -> np.ndarray:
        shape = shape_of(key)
        return text_to_objects(_cells(chunks[key["name"]], math.prod(shape)), shape)

    return {name: decode_column(item, get, get_objects) for name, item in note["columns"].items()}


def _cells(chunks: list[Any], count: int) -> list[str]:
    """Return the first `count` texts of a Parquet column; `ValueError` if there are fewer."""
    cells: list[Any] = []
    for chunk in chunks:
        cells += chunk.to_pylist()
    cells = cells[:count]
    if len(cells) != count or None in cells:
        raise ValueError(f"{count} rows are needed, there are {sum(cell is not None for cell in cells)}")
    return cells


def _fill(out: np.ndarray, chunks: list[Any], how: str, name: str) -> None:
    """Write the first `len(out)` rows of the chunks to `out`. The nulls of a shorter column follow them.

    Raises:
        ValueError: there are fewer rows, or a row is null.
    """
    done = 0
    for chunk in chunks:
        rows = chunk.slice(0, len(out) - done)
        cells = rows.flatten() if how == "list" else rows
        nulls = rows.null_count or cells.null_count
        if nulls:
            raise ValueError(f"its column {name!r} has {nulls} empty cells (null) among the rows")

        if how == "bytes":
            size = rows.type.byte_width
            content = np.frombuffer(rows.buffers()[1], np.uint8) if len(rows) else np.empty(0, np.uint8)
            # The buffer is that of the whole chunk.
            values = content[rows.offset * size : (rows.offset + len(rows)) * size].view(out.dtype)
        else:
            values = cells.to_numpy(zero_copy_only=False)
        out[done : done + len(rows)] = values.reshape((len(rows), *out.shape[1:]))
        done += len(rows)
    if done != len(out):
        raise ValueError(f"its column {name!r} has {done} rows, {len(out)} are needed")
