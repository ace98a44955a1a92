"""Columns as plain arrays and JSON, and `.npz` files: nothing is pickled, nothing lost on the way back.

A column becomes a tree of JSON whose leaves name arrays that the file holds in its own way. Tensors become arrays
of the same bits. Rows of objects (`infos`) may be None, bool, int, float, str, arrays, numpy scalars, and dicts,
lists and tuples of them.
"""

from __future__ import annotations

import base64
import json
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lockstep.data.trees import Leaf, Tree, object_rows
from lockstep.state.replace import replacing_file
from lockstep.state.sizes import check_archive, check_claim

Put = Callable[[np.ndarray, str], Any]
"""Takes an array and the path of the leaf; returns what names it in the JSON"""
Get = Callable[[Any], np.ndarray]

_BITS: dict[torch.dtype, torch.dtype] = {torch.bfloat16: torch.uint16}
_BITS |= {getattr(torch, name): torch.uint8 for name in dir(torch) if name.startswith("float8_")}
"""types that numpy lacks, and what their bits are stored as"""

ALLOWED_OBJECTS = "None, bool, int, float, str, arrays, numpy scalars, tensors, and dicts, lists and tuples of them"


def encode_column(column: Tree, put: Put, put_objects: Put, path: str) -> Any:
    """Return a column as JSON; its arrays go to `put`, its arrays of objects to `put_objects`."""
    if isinstance(column, dict):
        for key in column:
            if type(key) not in (str, int, bool):
                raise TypeError(f"column {path!r} has the key {key!r}; keys must be str or int to be written")
        return {
            "kind": "dict",
            "items": [[key, encode_column(part, put, put_objects, f"{path}/{key}")] for key, part in column.items()],
        }
    if isinstance(column, tuple):
        parts = [encode_column(part, put, put_objects, f"{path}/{i}") for i, part in enumerate(column)]
        return {"kind": "tuple", "items": parts}
    if isinstance(column, np.ndarray) and column.dtype == object:
        return {"kind": "objects", "key": put_objects(column, path)}
    array, kind = plain_array(column, path)
    return {**kind, "key": put(array, path)}


def decode_column(item: Mapping[str, Any], get: Get, get_objects: Get) -> Any:
    """Return the inverse of `encode_column`."""
    kind = item["kind"]
    if kind == "dict":
        return {key: decode_column(part, get, get_objects) for key, part in item["items"]}
    if kind == "tuple":
        return tuple(decode_column(part, get, get_objects) for part in item["items"])
    if kind == "objects":
        return get_objects(item["key"])
    return restored_leaf(get(item["key"]), item)


def array_keys(item: Mapping[str, Any]) -> Iterator[Any]:
    """Iterate over the keys of all arrays of a described column."""
    if "key" in item:
        yield item["key"]
    else:
        for part in item["items"]:
            yield from array_keys(part[1] if item["kind"] == "dict" else part)


def plain_array(leaf: Leaf, path: str) -> tuple[np.ndarray, dict[str, str]]:
    """Return a leaf as a numpy array (tensors share memory where they can), and its kind for `restored_leaf`.

    Raises `TypeError` naming the column for arrays that files cannot hold (structured, masked, objects).
    """
    if isinstance(leaf, torch.Tensor):
        if leaf.layout is not torch.strided or leaf.is_quantized:
            raise TypeError(f"column {path!r} is a tensor with layout {leaf.layout}; dense tensors can be written")
        plain = leaf.detach().resolve_conj().resolve_neg().cpu()
        bits = _BITS.get(plain.dtype)
        name = str(leaf.dtype).removeprefix("torch.")
        try:
            return (plain if bits is None else plain.view(bits)).numpy(), {"kind": "tensor", "dtype": name}
        except TypeError:
            raise TypeError(f"column {path!r} is a tensor of {leaf.dtype}, which cannot be written") from None
    if type(leaf) not in (np.ndarray, np.memmap) or leaf.dtype.hasobject or leaf.dtype.kind == "V":
        raise TypeError(
            f"column {path!r} is a {type(leaf).__name__} of {getattr(leaf, 'dtype', None)}, which cannot be written; "
            "allowed are plain arrays of numbers, bools, text, bytes and dates, and dense tensors"
        )
    return leaf, {"kind": "array", "dtype": leaf.dtype.str}


def restored_leaf(array: np.ndarray, kind: Mapping[str, Any]) -> Any:
    """Return the leaf that `plain_array` was given."""
    if kind["kind"] == "array":
        stored = plain_dtype(kind["dtype"])
        if array.dtype == stored:
            return array
        check_claim(f"a column of type {kind['dtype']}", array.size * stored.itemsize)
        return array.astype(stored)
    dtype = getattr(torch, kind["dtype"], None)
    if kind["kind"] != "tensor" or not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown kind of column {kind['kind']!r} {kind['dtype']!r}")
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    return tensor.view(dtype) if dtype in _BITS else tensor


def plain_dtype(text: str) -> np.dtype:
    """Return the dtype of a name read from a file; `ValueError` for objects and structures."""
    dtype = np.dtype(text)
    if dtype.hasobject or dtype.kind == "V":
        raise ValueError(f"arrays of type {text!r} are not read")
    return dtype


# ---- objects as JSON -----------------------------------------------------------------------------------------


def objects_to_text(rows: np.ndarray, path: str) -> list[str]:
    """Return each object of an array as one JSON text."""
    return [json.dumps(encode_object(row, path)) for row in rows.reshape(-1)]


def text_to_objects(texts: Sequence[str], shape: Sequence[int]) -> np.ndarray:
    """Return the inverse of `objects_to_text`."""
    return object_rows([decode_object(json.loads(text)) for text in texts]).reshape(shape)


def encode_object(value: object, path: str) -> Any:
    """Return an object as JSON, arrays inside as base64; `TypeError` naming the column for another kind of object."""
    if value is None or type(value) in (bool, str, int, float):
        return value
    if type(value) is list:
        return [encode_object(item, path) for item in value]
    if isinstance(value, tuple):
        return {"kind": "tuple", "items": [encode_object(item, path) for item in value]}
    if isinstance(value, dict):
        pairs = [[encode_object(key, path), encode_object(item, path)] for key, item in value.items()]
        return {"kind": "dict", "items": pairs}
    if isinstance(value, np.ndarray) and value.dtype == object:
        rows = [encode_object(item, path) for item in value.reshape(-1)]
        return {"kind": "objects", "shape": list(value.shape), "items": rows}
    if isinstance(value, np.generic):
        array, kind = plain_array(np.asarray(value), path)
        return {**kind, "kind": "scalar", "base64": _base64(array)}
    if isinstance(value, np.ndarray | torch.Tensor):
        array, kind = plain_array(value, path)
        return {**kind, "stored": array.dtype.str, "shape": list(array.shape), "base64": _base64(array)}
    raise TypeError(
        f"column {path!r} holds a {type(value).__name__}, which cannot be written without pickle; allowed are "
        f"{ALLOWED_OBJECTS}"
    )


def decode_object(item: Tree) -> Any:
    """Return the inverse of `encode_object`."""
    if isinstance(item, list):
        return [decode_object(part) for part in item]
    if not isinstance(item, dict):
        return item
    kind = item["kind"]
    if kind == "tuple":
        return tuple(decode_object(part) for part in item["items"])
    if kind == "dict":
        return {decode_object(key): decode_object(part) for key, part in item["items"]}
    if kind == "objects":
        return object_rows([decode_object(part) for part in item["items"]]).reshape(item["shape"])
    content = base64.b64decode(item["base64"], validate=True)
    if kind == "scalar":
        return np.frombuffer(content, plain_dtype(item["dtype"]))[0]
    array = np.frombuffer(content, plain_dtype(item["stored"])).reshape(item["shape"]).copy()
    return restored_leaf(array, item)


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")


# ---- files ---------------------------------------------------------------------------------------------------

FORMAT = "lockstep-sample-batch"
_INDEX = "__index__"
DAMAGE = (
    *(KeyError, ValueError, OSError, EOFError, AttributeError, TypeError, IndexError),
    *(zipfile.BadZipFile, zlib.error, tokenize.TokenError, SyntaxError, OverflowError, RuntimeError),
)
"""what reading a damaged file can raise, whichever library meets it first"""


class MissingColumnError(KeyError):
    """A column that was asked for is not in the file, which is sound."""


@contextmanager
def naming_damage(path: Path, kind: str) -> Iterator[None]:
    """Raise `ValueError` naming the file where reading it fails, but for a file or column that is not there."""
    try:
        yield
    except (MissingColumnError, FileNotFoundError):
        raise
    except DAMAGE as error:
        raise ValueError(f"{path} is no readable {kind}: {error}") from error


def write_npz(path: Path, columns: Mapping[str, Tree], marks: Mapping[str, Any]) -> Path:
    """Write columns to one `.npz` file; return its path. No half file is left.

    Each leaf is one array of the file; a JSON text beside them keeps names, nesting and kinds.
    """
    path = path if path.suffix == ".npz" else path.with_name(path.name + ".npz")
    arrays: dict[str, np.ndarray] = {}

    def put(array: np.ndarray, _: str) -> str:
        key = f"array_{len(arrays)}"
        arrays[key] = array
        return key

    def put_objects(rows: np.ndarray, name: str) -> Any:
        return {"shape": list(rows.shape), "rows": objects_to_text(rows, name)}

    arrays[_INDEX] = np.frombuffer(encode_note(columns, marks, put, put_objects).encode(), dtype=np.uint8)
    with replacing_file(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    return path


def read_npz(path: Path) -> tuple[dict[str, Tree], dict[str, Any]]:
    """Return the columns and the marks in a file; use it within `naming_damage`."""
    check_archive(path)
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    note = decode_note(arrays[_INDEX].tobytes())

    def get_objects(key: Mapping[str, Any]) -> np.ndarray:
        return text_to_objects(key["rows"], key["shape"])

    columns = {name: decode_column(item, arrays.__getitem__, get_objects) for name, item in note["columns"].items()}
    return columns, note["marks"]


def encode_note(columns: Mapping[str, Tree], marks: Mapping[str, Any], put: Put, put_objects: Put) -> str:
    """Return the JSON text that a file of columns carries beside its arrays."""
    described = {name: encode_column(column, put, put_objects, name) for name, column in columns.items()}
    described_marks = {name: encode_object(value, name) for name, value in marks.items()}
    return json.dumps({"format": FORMAT, "version": 1, "marks": described_marks, "columns": described})


def decode_note(text: bytes) -> dict[str, Any]:
    """Return what `encode_note` wrote, with the columns as described there."""
    note = json.loads(text)
    if note["format"] != FORMAT:
        raise ValueError(f"its format is {note['format']!r}")
    return {"columns": note["columns"], "marks": {name: decode_object(value) for name, value in note["marks"].items()}}
