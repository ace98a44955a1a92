"""Columns in one `.npz` file without loss and without pickle.

Each leaf is one array of the file; a JSON text beside them keeps names, nesting and kinds. Rows of objects
(`infos`) are written as JSON, their arrays as arrays of the file.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

_FORMAT = "lockstep-sample-batch"
_INDEX = "__index__"


def write_npz(path: Path, columns: Mapping[str, Any], marks: Mapping[str, Any]) -> Path:
    """Writes to a file beside `path` first and renames it, so that no half file is left; returns the path."""
    path = path if path.suffix == ".npz" else path.with_name(path.name + ".npz")
    arrays: dict[str, np.ndarray] = {}
    described = {name: _encode(column, arrays, name) for name, column in columns.items()}
    text = json.dumps({"format": _FORMAT, "version": 1, "marks": dict(marks), "columns": described})
    arrays[_INDEX] = np.frombuffer(text.encode(), dtype=np.uint8)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def read_npz(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Columns and marks; `ValueError` naming the file where it is damaged or was not written by `write_npz`."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        index = json.loads(arrays[_INDEX].tobytes().decode())
        if index["format"] != _FORMAT:
            raise ValueError(f"its format is {index['format']!r}")
        columns = {name: _decode(item, arrays) for name, item in index["columns"].items()}
        return columns, index["marks"]
    except FileNotFoundError:
        raise
    except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise ValueError(f"{path} is no readable SampleBatch file: {error}") from error


def _encode(value: Any, arrays: dict[str, np.ndarray], name: str) -> Any:
    if value is None or isinstance(value, bool | str) or type(value) in (int, float):
        return value
    if isinstance(value, list):
        return [_encode(item, arrays, name) for item in value]
    if isinstance(value, tuple):
        return {"kind": "tuple", "items": [_encode(item, arrays, name) for item in value]}
    if isinstance(value, dict):
        pairs = [[_encode(key, arrays, name), _encode(item, arrays, name)] for key, item in value.items()]
        return {"kind": "dict", "items": pairs}
    if isinstance(value, np.ndarray) and value.dtype == object:
        rows = [_encode(item, arrays, name) for item in value.reshape(-1)]
        return {"kind": "objects", "shape": list(value.shape), "items": rows}
    if isinstance(value, np.ndarray | np.generic):
        key = f"array_{len(arrays)}"
        arrays[key] = np.asarray(value)
        return {"kind": "array" if isinstance(value, np.ndarray) else "scalar", "key": key}
    if isinstance(value, torch.Tensor):
        key = f"array_{len(arrays)}"
        plain = value.detach().cpu()
        arrays[key] = (plain.view(torch.uint16) if plain.dtype == torch.bfloat16 else plain).numpy()
        return {"kind": "tensor", "key": key, "dtype": str(value.dtype).removeprefix("torch.")}
    raise TypeError(
        f"column {name!r} holds a {type(value).__name__}, which cannot be written without pickle; allowed are None, "
        "bool, int, float, str, arrays, and dicts, lists and tuples of them"
    )


def _decode(item: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(item, list):
        return [_decode(part, arrays) for part in item]
    if not isinstance(item, dict):
        return item
    kind = item["kind"]
    if kind == "tuple":
        return tuple(_decode(part, arrays) for part in item["items"])
    if kind == "dict":
        return {_decode(key, arrays): _decode(part, arrays) for key, part in item["items"]}
    if kind == "objects":
        flat = np.empty(len(item["items"]), dtype=object)
        for position, part in enumerate(item["items"]):
            flat[position] = _decode(part, arrays)
        return flat.reshape(item["shape"])
    array = arrays[item["key"]]
    if kind == "scalar":
        return array[()]
    if kind == "tensor":
        tensor = torch.from_numpy(array)
        return tensor.view(torch.bfloat16) if item["dtype"] == "bfloat16" else tensor
    return array
