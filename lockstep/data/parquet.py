"""Columns in Parquet files without loss, and Parquet files as a stream of batches.

Each leaf is one Parquet column (`obs/camera`): numbers as they are, rows of numbers as fixed-size lists (rows of
bytes and types that Parquet lacks: fixed-size binary), text as text, objects as JSON. What Parquet cannot say
(nesting, shapes, tensor or array, layout) is JSON in the file's metadata, under `lockstep`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lockstep.data.codec import (
    decode_column,
    decode_object,
    encode_column,
    encode_object,
    object_rows,
    objects_to_text,
    plain_dtype,
)
from lockstep.data.npz import DAMAGE
from lockstep.state.messages import install_hint
from lockstep.state.replace import replacing_file

if TYPE_CHECKING:
    from lockstep.data.sample_batch import SampleBatch

_NOTE = b"lockstep"
_FORMAT = "lockstep-sample-batch"


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise ImportError(f"Parquet files need pyarrow: {install_hint('offline')}") from None
    return pyarrow


# ---- writing -------------------------------------------------------------------------------------------------


def write_parquet(
    path: Path, columns: Mapping[str, Any], marks: Mapping[str, Any], compression: str, row_group_size: int
) -> Path:
    """Writes to a file beside `path` first and renames it, so that no half file is left; returns the path."""
    pyarrow = _pyarrow()
    if row_group_size < 1:
        raise ValueError(f"row_group_size={row_group_size}; it must be at least 1")
    path = path if path.suffix == ".parquet" else path.with_name(path.name + ".parquet")
    fields: dict[str, Any] = {}

    def put(array: np.ndarray, name: str) -> Any:
        how, field = _to_arrow(pyarrow, array)
        key = {"how": how, "dtype": array.dtype.str, "shape": list(array.shape)}
        return key if field is None else {**key, "name": _add(fields, name, field)}

    def put_objects(rows: np.ndarray, name: str) -> Any:
        field = pyarrow.array(objects_to_text(rows, name), type=pyarrow.string())
        return {"how": "json", "shape": list(rows.shape), "name": _add(fields, name, field)}

    described = {name: encode_column(column, put, put_objects, name) for name, column in columns.items()}
    described_marks = {name: encode_object(value, name) for name, value in marks.items()}
    note = json.dumps({"format": _FORMAT, "version": 1, "marks": described_marks, "columns": described})
    longest = max((len(field) for field in fields.values()), default=0)
    table = pyarrow.table({name: _filled(pyarrow, field, longest) for name, field in fields.items()})
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
    while name in fields:
        name += "+"
    fields[name] = field
    return name


def _to_arrow(pyarrow: Any, array: np.ndarray) -> tuple[str, Any]:
    """How the rows of an array are stored, and the arrow array (None where a row has no bytes)."""
    width = math.prod(array.shape[1:])
    if width * array.dtype.itemsize == 0:
        return "nothing", None
    kind, native = array.dtype.kind, array.dtype.isnative
    rows = np.ascontiguousarray(array)
    if kind == "U" and array.ndim == 1 and native:
        texts = rows.tolist()
        if not any("\ud800" <= letter <= "\udfff" for text in texts for letter in text):
            return "text", pyarrow.array(texts, type=pyarrow.string())
    elif kind in "biuf" and native and array.dtype.itemsize <= 8:
        flat = pyarrow.array(rows.reshape(-1))
        if array.ndim == 1:
            return "plain", flat
        if array.dtype.itemsize > 1 or kind == "b":
            return "list", pyarrow.FixedSizeListArray.from_arrays(flat, width)
    content = [None, pyarrow.py_buffer(rows.reshape(-1).view(np.uint8))]
    binary = pyarrow.binary(width * array.dtype.itemsize)
    return "bytes", pyarrow.FixedSizeBinaryArray.from_buffers(binary, len(rows), content)


def _filled(pyarrow: Any, field: Any, length: int) -> Any:
    """Nulls after the rows of a shorter column (one row for each sequence)."""
    return pyarrow.concat_arrays([field, pyarrow.nulls(length - len(field), field.type)])


# ---- reading -------------------------------------------------------------------------------------------------


def read_parquet(cls: type[SampleBatch], path: Path, columns: Collection[str] | None) -> SampleBatch:
    """The batch in a file: written by `write_parquet`, or a plain table of numbers, bools and text."""
    with _opened(path) as file:
        try:
            note = _note_of(file, path, columns)
            names = _field_names(note)
            table = file.read(columns=names)
            decoded = _decode(note, {name: table.column(name).chunks for name in names}, None)
            marks = {f"_{name}": decode_object(value) for name, value in note["marks"].items()}
            return cls(decoded, **marks)
        except DAMAGE as error:
            raise _unreadable(path, error) from error


def parquet_batches(
    paths: str | Path | Iterable[str | Path], size: int, columns: Collection[str] | None = None
) -> Iterator[SampleBatch]:
    """The rows of one or several Parquet files in order, in batches of up to `size` rows of one row group.

    One row group is held in memory at a time (`to_parquet(row_group_size=...)`). `columns` (all by default) names
    those to read.

    Raises `ValueError` naming the file where it is damaged, foreign or holds sequences, `KeyError` naming a
    column that is missing, `ValueError` for `size < 1`.
    """
    from lockstep.data.sample_batch import SampleBatch

    if size < 1:
        raise ValueError(f"size={size}; it must be at least 1")
    for path in [paths] if isinstance(paths, str | Path) else paths:
        with _opened(Path(path)) as file:
            try:
                note = _note_of(file, Path(path), columns)
                names = _field_names(note)
                _check_rows_only(note, file.metadata.num_rows)
                for group in range(file.metadata.num_row_groups):  # all at once would keep all of them in memory
                    for part in file.iter_batches(size, row_groups=[group], columns=names, use_threads=False):
                        chunks = {name: [part.column(name)] for name in names}
                        yield SampleBatch(_decode(note, chunks, part.num_rows))
            except DAMAGE as error:
                raise _unreadable(Path(path), error) from error


def _opened(path: Path) -> Any:
    pyarrow = _pyarrow()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        return pyarrow.parquet.ParquetFile(path, page_checksum_verification=True)
    except DAMAGE as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: BaseException) -> Exception:
    if isinstance(error, _UserError):
        return error.said
    return ValueError(f"{path} is no readable Parquet file of a SampleBatch: {error}")


class _UserError(ValueError):
    """Carries an error of the call, not of the file, past the handlers of damage."""

    def __init__(self, said: Exception) -> None:
        super().__init__(str(said))
        self.said = said


def _note_of(file: Any, path: Path, columns: Collection[str] | None) -> dict[str, Any]:
    """What the file says of its columns (of those wanted)."""
    raw = (file.schema_arrow.metadata or {}).get(_NOTE)
    note = json.loads(raw) if raw is not None else {"marks": {}, "columns": _plain_columns(file)}
    if raw is not None and note["format"] != _FORMAT:
        raise ValueError(f"its format is {note['format']!r}")
    if columns is not None:
        missing = sorted(set(columns) - set(note["columns"]))
        if missing:
            said = f"{path} has no column {missing[0]!r}; columns are {sorted(note['columns'])}"
            raise _UserError(KeyError(said))
        note["columns"] = {name: note["columns"][name] for name in columns}
    return note


def _plain_columns(file: Any) -> dict[str, Any]:
    """A note for a table from elsewhere: numbers, bools and text, and fixed-size lists of numbers, without nulls."""
    pyarrow = _pyarrow()
    described = {}
    for field in file.schema_arrow:
        inner, width, how = field.type, [], "plain"
        if pyarrow.types.is_fixed_size_list(inner):
            inner, width, how = inner.value_type, [inner.list_size], "list"
        key = {"how": how, "name": field.name, "shape": [file.metadata.num_rows, *width]}
        if not width and (pyarrow.types.is_string(inner) or pyarrow.types.is_large_string(inner)):
            described[field.name] = {"kind": "array", "dtype": "", "key": {**key, "how": "text", "dtype": ""}}
            continue
        kinds = pyarrow.types
        if not (kinds.is_boolean(inner) or kinds.is_integer(inner) or kinds.is_floating(inner)):
            raise ValueError(
                f"its column {field.name!r} is of type {field.type}; allowed are numbers, bools, text and "
                "fixed-size lists of numbers"
            )
        dtype = np.dtype(inner.to_pandas_dtype()).str
        described[field.name] = {"kind": "array", "dtype": dtype, "key": {**key, "dtype": dtype}}
    return described


def _keys(item: Any) -> Iterator[dict[str, Any]]:
    """The keys of all arrays of a described column."""
    if "key" in item:
        yield item["key"]
    else:
        for part in item["items"]:
            yield from _keys(part[1] if item["kind"] == "dict" else part)


def _field_names(note: Mapping[str, Any]) -> list[str]:
    return [key["name"] for item in note["columns"].values() for key in _keys(item) if "name" in key]


def _check_rows_only(note: Mapping[str, Any], num_rows: int) -> None:
    for name, item in note["columns"].items():
        if any(key["shape"][0] != num_rows for key in _keys(item)) or note["marks"].get("time_major"):
            raise ValueError(
                f"its column {name!r} has other rows than steps, as batches with sequences do; read it with "
                "SampleBatch.from_parquet"
            )


def _decode(note: Mapping[str, Any], chunks: Mapping[str, list[Any]], num_rows: int | None) -> dict[str, Any]:
    """Columns from arrow arrays; `num_rows` of them where the chunks are a part of the file."""

    def shape_of(key: Mapping[str, Any]) -> list[int]:
        return key["shape"] if num_rows is None else [num_rows, *key["shape"][1:]]

    def get(key: Mapping[str, Any]) -> np.ndarray:
        shape = shape_of(key)
        if key["how"] == "text":
            return _texts(_cells(chunks[key["name"]], shape[0]), key["dtype"])
        out = np.zeros(shape, plain_dtype(key["dtype"]))
        if key["how"] != "nothing":
            _fill(out, chunks[key["name"]], key["how"], key["name"])
        return out

    def get_objects(key: Mapping[str, Any]) -> np.ndarray:
        shape = shape_of(key)
        texts = _cells(chunks[key["name"]], math.prod(shape))
        return object_rows([decode_object(json.loads(text)) for text in texts]).reshape(shape)

    def decoded(item: Mapping[str, Any]) -> Any:
        if item["kind"] == "array" and not item["dtype"]:  # text from elsewhere: only the rows tell how wide it is
            return get(item["key"])
        return decode_column(item, get, get_objects)

    return {name: decoded(item) for name, item in note["columns"].items()}


def _cells(chunks: list[Any], count: int) -> list[str]:
    cells = [cell for chunk in chunks for cell in chunk.to_pylist()][:count]
    if len(cells) != count or None in cells:
        raise ValueError(f"{count} rows are needed, there are {sum(cell is not None for cell in cells)}")
    return cells


def _texts(cells: list[str], dtype: str) -> np.ndarray:
    return np.array(cells, dtype=plain_dtype(dtype)) if dtype else np.array(cells, dtype=np.str_)


def _fill(out: np.ndarray, chunks: list[Any], how: str, name: str) -> None:
    """Writes the rows of the chunks to `out`, which has as many rows or fewer (nulls follow then)."""
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
            values = content[rows.offset * size : (rows.offset + len(rows)) * size].view(out.dtype)
        else:
            values = cells.to_numpy(zero_copy_only=False)
        out[done : done + len(rows)] = values.reshape((len(rows), *out.shape[1:]))
        done += len(rows)
    if done != len(out):
        raise ValueError(f"its column {name!r} has {done} rows, {len(out)} are needed")
