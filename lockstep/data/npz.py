"""Columns in one `.npz` file without loss and without pickle.

Each leaf is one array of the file; a JSON text beside them keeps names, nesting and kinds. Rows of objects
(`infos`) are JSON as well.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping
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
)
from lockstep.state.replace import replacing_file

if TYPE_CHECKING:
    from lockstep.data.sample_batch import SampleBatch

_FORMAT = "lockstep-sample-batch"
_INDEX = "__index__"


def write_npz(path: Path, columns: Mapping[str, Any], marks: Mapping[str, Any]) -> Path:
    """Writes to a file beside `path` first and renames it, so that no half file is left; returns the path."""
    path = path if path.suffix == ".npz" else path.with_name(path.name + ".npz")
    arrays: dict[str, np.ndarray] = {}

    def put(array: np.ndarray, _: str) -> str:
        key = f"array_{len(arrays)}"
        arrays[key] = array
        return key

    def put_objects(rows: np.ndarray, name: str) -> Any:
        return {"shape": list(rows.shape), "rows": objects_to_text(rows, name)}

    described = {name: encode_column(column, put, put_objects, name) for name, column in columns.items()}
    described_marks = {name: encode_object(value, name) for name, value in marks.items()}
    text = json.dumps({"format": _FORMAT, "version": 1, "marks": described_marks, "columns": described})
    arrays[_INDEX] = np.frombuffer(text.encode(), dtype=np.uint8)
    with replacing_file(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    return path


def read_npz(cls: type[SampleBatch], path: Path) -> SampleBatch:
    """The batch in a file; `ValueError` naming the file where it is damaged or was not written by `write_npz`."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        index = json.loads(arrays[_INDEX].tobytes().decode())
        if index["format"] != _FORMAT:
            raise ValueError(f"its format is {index['format']!r}")
        columns = {
            name: decode_column(item, arrays.__getitem__, _read_objects) for name, item in index["columns"].items()
        }
        return cls(columns, **{f"_{name}": decode_object(value) for name, value in index["marks"].items()})
    except DAMAGE as error:
        raise ValueError(f"{path} is no readable SampleBatch file: {error}") from error


def _read_objects(item: Any) -> np.ndarray:
    return object_rows([decode_object(json.loads(row)) for row in item["rows"]]).reshape(item["shape"])


DAMAGE = (
    *(KeyError, ValueError, OSError, EOFError, AttributeError, TypeError, IndexError),
    *(zipfile.BadZipFile, zlib.error, OverflowError, RuntimeError),
)
"""What reading a damaged file can raise, whichever library meets it first"""
